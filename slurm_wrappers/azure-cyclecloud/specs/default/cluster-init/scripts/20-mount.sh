#!/usr/bin/env bash
# Every node: the shared volume, by one line of fstab, before any job starts.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../files/node.sh
source "$CYCLECLOUD_SPEC_PATH/files/node.sh"

kind=$(setting lsdflow.mount.kind)
address=$(setting lsdflow.mount.address)
export_path=$(setting lsdflow.mount.export)
point=$(setting lsdflow.mount.point)

command -v mount.nfs >/dev/null || { apt-get update && apt-get install --yes --no-install-recommends nfs-common; }
mkdir -p "$point"
line=$(fstab_line "$address" "$export_path" "$point" "$kind")
write_fstab /etc/fstab "$line"
systemctl daemon-reload
mountpoint -q "$point" || mount "$point" || fail "$address:$export_path does not mount: same virtual network? export policy? port 2049 (Blob: 111 and 2048) open?"
require_mount slurmd "$point"
say "$point is $address:$export_path ($kind)"
