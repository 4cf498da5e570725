#!/usr/bin/env bash
# Scheduler: MongoDB with a password on the private address, its data on a disk of its own.
set -euo pipefail
files=$CYCLECLOUD_SPEC_PATH/files
shared=$(dirname "$CYCLECLOUD_SPEC_PATH")/default/files
# shellcheck source-path=SCRIPTDIR source=../../../default/cluster-init/files/node.sh
source "$shared/node.sh"
# shellcheck source-path=SCRIPTDIR source=../../../default/cluster-init/files/packages.env
source "$shared/packages.env"
# shellcheck source-path=SCRIPTDIR source=../files/mongod.sh
source "$files/mongod.sh"

version_is_safe "$MONGOD_VERSION" || fail "mongod $MONGOD_VERSION lets strangers read its memory (CVE-2025-14847): 7.0.28, 8.0.17 or later"
lab_user=$(setting lsdflow.user)
id "$lab_user" >/dev/null || fail "no user $lab_user on this machine: give them access to the cluster in CycleCloud, then start again"
disk=$(setting lsdflow.mongo.disk)
port=$(setting lsdflow.mongo.port)
cache_gb=$(setting lsdflow.mongo.cache_gb)
point=$(setting lsdflow.mount.point)

apt-get update
if [[ $(mongod --version 2>/dev/null || true) != *"v$MONGOD_VERSION"* ]]; then
  install_package "mongodb-org-server_${MONGOD_VERSION}_amd64.deb" "$shared/packages.sha256"
fi
# The package's own service would start a second server without a password.
systemctl disable --now mongod.service
systemctl mask mongod.service

if [[ ! -x /opt/lsdflow/python/bin/python ]]; then
  apt-get install --yes --no-install-recommends python3-venv
  python3 -m venv /opt/lsdflow/python
fi
/opt/lsdflow/python/bin/python -m pip install --quiet --require-hashes --requirement "$files/pymongo.lock"

install -d -m 755 /opt/lsdflow /etc/lsdflow
install -m 755 "$files/mongod.sh" "$files/mongo_setup.py" /opt/lsdflow/
install -m 644 "$files/lsdflow-mongod.service" /etc/systemd/system/
printf '%s=%q\n' MONGO_DISK "$disk" MONGO_PORT "$port" MONGO_CACHE_GB "$cache_gb" MOUNT_POINT "$point" LAB_USER "$lab_user" \
  >/etc/lsdflow/mongo.env
systemctl daemon-reload
systemctl enable lsdflow-mongod.service
systemctl restart lsdflow-mongod.service
say "MongoDB $MONGOD_VERSION is up; its address for $lab_user: $point/lsdflow/secrets/mongo.uri"
