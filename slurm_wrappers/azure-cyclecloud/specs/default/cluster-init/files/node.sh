# shellcheck shell=bash
# What the cluster-init scripts share: settings of the cluster, verified packages, the mount. Sourced, never run.

JETPACK=${JETPACK:-/opt/cycle/jetpack/bin/jetpack}

say() { printf 'lsdflow: %s\n' "$*"; }
fail() {
  printf 'lsdflow: %s\n' "$*" >&2
  exit 1
}

# setting KEY: a value of the cluster template; an empty one stops the node here, not three scripts later.
setting() {
  local value
  value=$("$JETPACK" config "$1") || fail "$1 is not set in the cluster template"
  [[ -n $value && $value != None ]] || fail "$1 is empty in the cluster template"
  printf '%s\n' "$value"
}

# install_package FILE SUMS: a .deb of the project's blobs, installed only if its sum is the one that the lab wrote down.
install_package() {
  local file=$1 sums=$2 folder
  grep -q "  $file\$" "$sums" || fail "$file has no sum in $(basename "$sums"): see README, step 2"
  folder=$(mktemp -d)
  (cd "$folder" && "$JETPACK" download --project lsdflow "$file" && grep "  $file\$" "$sums" | sha256sum --check --quiet -) ||
    fail "$file does not have the checksum in $(basename "$sums")"
  DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends "$folder/$file"
  rm -rf "$folder"
}

# mount_options KIND: what each kind of storage needs.
mount_options() {
  local always=rw,hard,proto=tcp,_netdev,nofail
  case $1 in
    netapp-nfs3) echo "$always,vers=3,sec=sys,rsize=262144,wsize=262144" ;;
    netapp-nfs41) echo "$always,vers=4.1,sec=sys,rsize=262144,wsize=262144" ;;
    # Blob's NFS 3.0 has no lock manager: without nolock the mount fails.
    blob-nfs3) echo "$always,vers=3,sec=sys,nolock" ;;
    *) fail "unknown kind of storage '$1': netapp-nfs3, netapp-nfs41 or blob-nfs3" ;;
  esac
}

# fstab_line ADDRESS EXPORT POINT KIND
fstab_line() {
  [[ $1 =~ ^[A-Za-z0-9.-]+$ ]] || fail "the mount's address '$1' is neither a name nor an IPv4 address"
  [[ $2 =~ ^/[A-Za-z0-9._/-]+$ && $3 =~ ^/[A-Za-z0-9._/-]+$ ]] || fail "export '$2' and mount point '$3' must be absolute paths"
  local options
  options=$(mount_options "$4") || return 1 # inside $(...) set -e does not reach
  printf '%s:%s %s nfs %s 0 0\n' "$1" "$2" "$3" "$options"
}

# write_fstab FILE LINE: FILE contains LINE once; an older line for the same mount point is removed. Written aside, then renamed.
write_fstab() {
  local file=$1 line=$2 point new
  point=$(awk '{print $2}' <<<"$line")
  new=$(mktemp "$file.XXXXXX")
  awk -v point="$point" '/^[[:space:]]*#/ || $2 != point' "$file" >"$new"
  printf '%s\n' "$line" >>"$new"
  chmod 644 "$new"
  mv "$new" "$file"
}

# slurmd waits for the mount: otherwise a job would write into the empty folder under it.
require_mount() {
  local folder=/etc/systemd/system/$1.service.d
  mkdir -p "$folder"
  printf '[Unit]\nRequiresMountsFor=%s\n' "$2" >"$folder/lsdflow-mount.conf"
  systemctl daemon-reload
}
