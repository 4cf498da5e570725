#!/usr/bin/env bash
# install_prometheus.sh FOLDER - Prometheus, promtool and node_exporter for the tests of monitoring: FOLDER/usr/bin.
# Debian's packages, unpacked and not installed: no root, no service. Addresses of mirrors are those apt is configured with.
set -euo pipefail
PACKAGES=(prometheus prometheus-node-exporter)
folder=$(mkdir -p "$1" && cd "$1" && pwd)
programs=("$folder"/usr/bin/{prometheus,promtool,prometheus-node-exporter})

complete() { local p; for p in "${programs[@]}"; do [[ -x $p ]] || return 1; done; }
download() { (cd "$folder" && apt-get download -q "${PACKAGES[@]}") 2>&1; }

exec 9>"$folder/.lock"
flock 9 # tests that begin at once wait for the one that downloads
complete && exit 0
if ! command -v apt-get >/dev/null; then
  echo "error: no apt-get here. Put prometheus, promtool and prometheus-node-exporter (node_exporter) into $folder/usr/bin" >&2
  exit 1
fi
# Lists that are missing or old; only root may renew them.
log=$(download) || { ((EUID == 0)) && apt-get update -q >/dev/null && log=$(download); } || {
  printf 'error: the packages of Debian cannot be downloaded: %s\n%s\n' "${PACKAGES[*]}" "$log" >&2
  exit 1
}
for deb in "$folder"/*.deb; do dpkg-deb -x "$deb" "$folder"; done
rm -f "$folder"/*.deb
complete || { echo "error: the packages lack a program: ${programs[*]}" >&2; exit 1; }
