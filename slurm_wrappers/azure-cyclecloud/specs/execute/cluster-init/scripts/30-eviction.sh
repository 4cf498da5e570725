#!/usr/bin/env bash
# Workers: the service that stops running jobs when Azure is about to evict this machine.
set -euo pipefail
files=$CYCLECLOUD_SPEC_PATH/files
install -d -m 755 /opt/lsdflow
install -m 755 "$files/eviction.py" /opt/lsdflow/eviction.py
install -m 644 "$files/lsdflow-eviction.service" /etc/systemd/system/lsdflow-eviction.service
systemctl daemon-reload
systemctl enable lsdflow-eviction.service
systemctl restart lsdflow-eviction.service
