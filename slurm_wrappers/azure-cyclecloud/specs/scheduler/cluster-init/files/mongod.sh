#!/usr/bin/env bash
# MongoDB on the scheduler: `prepare` before mongod starts, `setup` after, both at every boot (the address may be new).
# Settings come from /etc/lsdflow/mongo.env, written by cluster-init; secrets are stored in files on the database's disk.
set -euo pipefail

SECRETS_FOLDER=secrets

fail() {
  printf 'lsdflow: %s\n' "$*" >&2
  exit 1
}

# is_private_address A: an IPv4 address of a private network (RFC 1918, or 100.64/10 that providers use inside).
is_private_address() {
  [[ $1 =~ ^10(\.[0-9]{1,3}){3}$ || $1 =~ ^192\.168(\.[0-9]{1,3}){2}$ || $1 =~ ^172\.(1[6-9]|2[0-9]|3[01])(\.[0-9]{1,3}){2}$ ||
    $1 =~ ^100\.(6[4-9]|[7-9][0-9]|1[01][0-9]|12[0-7])(\.[0-9]{1,3}){2}$ ]]
}

# The first private address of this machine's interfaces.
private_address() {
  local address
  for address in $(ip -4 -o address show scope global | awk '{sub("/.*", "", $4); print $4}'); do
    if is_private_address "$address"; then
      printf '%s\n' "$address"
      return
    fi
  done
  fail "no private IPv4 address on this machine: MongoDB is not started on a public one"
}

# version_is_safe V: CVE-2025-14847 (memory read without a password) is fixed from these versions on.
version_is_safe() {
  local least
  case $1 in
    7.0.*) least=7.0.28 ;;
    8.0.*) least=8.0.17 ;;
    8.2.*) least=8.2.3 ;;
    *) return 1 ;;
  esac
  [[ $(printf '%s\n%s\n' "$least" "$1" | sort -V | head -n 1) == "$least" ]]
}

# mongod_config ADDRESSES PORT DISK CACHE_GB: the configuration, on stdout. Nothing secret in it.
mongod_config() {
  cat <<CONFIG
net:
  bindIp: $1
  port: $2
  unixDomainSocket: {enabled: false}
  compression: {compressors: disabled}
security:
  authorization: enabled
  keyFile: $3/$SECRETS_FOLDER/keyfile
replication:
  replSetName: lsdflow
storage:
  dbPath: $3/db
  wiredTiger: {engineConfig: {cacheSizeGB: $4}}
systemLog:
  destination: file
  path: $3/log/mongod.log
  logAppend: true
processManagement:
  fork: false
CONFIG
}

# make_secrets FOLDER: keyfile, admin's and lab's password, each made once, each 0600.
make_secrets() {
  local name
  mkdir -p "$1"
  chmod 700 "$1"
  for name in keyfile admin lsdflow; do
    [[ -s $1/$name ]] || (
      umask 077
      head -c 36 /dev/urandom | base64 | tr '+/' 'AB' >"$1/$name.new"
      mv "$1/$name.new" "$1/$name"
    )
    chmod 600 "$1/$name"
  done
}

prepare() {
  local address
  mountpoint -q "$MONGO_DISK" || fail "$MONGO_DISK is not mounted: the database's own disk is missing"
  address=$(private_address)
  mkdir -p "$MONGO_DISK/db" "$MONGO_DISK/log"
  make_secrets "$MONGO_DISK/$SECRETS_FOLDER"
  chown -R mongodb: "$MONGO_DISK/db" "$MONGO_DISK/log" "$MONGO_DISK/$SECRETS_FOLDER"
  mongod_config "127.0.0.1,$address" "$MONGO_PORT" "$MONGO_DISK" "$MONGO_CACHE_GB" >/etc/lsdflow/mongod.conf.new
  mv /etc/lsdflow/mongod.conf.new /etc/lsdflow/mongod.conf
}

setup() {
  local address
  address=$(private_address)
  mountpoint -q "$MOUNT_POINT" || fail "$MOUNT_POINT is not mounted: nowhere to leave the database's address"
  /opt/lsdflow/python/bin/python /opt/lsdflow/mongo_setup.py --secrets "$MONGO_DISK/$SECRETS_FOLDER" \
    --address "$address" --port "$MONGO_PORT" --uri-file "$MOUNT_POINT/lsdflow/secrets/mongo.uri" --owner "$LAB_USER"
}

# Sourced (by tests and by cluster-init) it only gives its functions.
if [[ ${BASH_SOURCE[0]} == "$0" ]]; then
  # shellcheck source=/dev/null
  source /etc/lsdflow/mongo.env
  case ${1:-} in
    prepare | setup) "$1" ;;
    *) fail "usage: mongod.sh prepare|setup" ;;
  esac
fi
