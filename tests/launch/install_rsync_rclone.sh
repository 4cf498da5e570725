#!/usr/bin/env bash
# What `lsdflow sync` calls, for its tests: Debian's rsync and rclone. As root they are installed where they are missing.
set -euo pipefail

missing=()
for program in rsync rclone; do command -v "$program" >/dev/null || missing+=("$program"); done
((${#missing[@]})) || exit 0
if ((EUID != 0)) || ! command -v apt-get >/dev/null; then
  echo "the tests of sync need ${missing[*]}; as root on Debian: apt-get install ${missing[*]}" >&2
  exit 66
fi
export DEBIAN_FRONTEND=noninteractive
options=(-qq -o DPkg::Lock::Timeout=300) # other parts of CI install packages, too
apt-get "${options[@]}" update
apt-get "${options[@]}" install -y --no-install-recommends "${missing[@]}" >/dev/null
