#!/usr/bin/env bash
# Every node: Apptainer, nothing else. The stages come as SIF files on the shared mount.
set -euo pipefail
files=$CYCLECLOUD_SPEC_PATH/files
# shellcheck source-path=SCRIPTDIR source=../files/node.sh
source "$files/node.sh"
# shellcheck source-path=SCRIPTDIR source=../files/packages.env
source "$files/packages.env"

if apptainer --version 2>/dev/null | grep -qF " $APPTAINER_VERSION"; then
  say "apptainer $APPTAINER_VERSION is here"
  exit 0
fi
apt-get update
install_package "apptainer_${APPTAINER_VERSION}_amd64.deb" "$files/packages.sha256"
singularity --version
