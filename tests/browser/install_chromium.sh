#!/usr/bin/env bash
# The browser of tests/browser: Debian's chromium. As root it is installed where it is missing; other users get instructions.
set -euo pipefail

if [[ -x /usr/bin/chromium ]]; then exit 0; fi
if ((EUID != 0)) || ! command -v apt-get >/dev/null; then
  printf '%s\n' "tests/browser needs /usr/bin/chromium, which is not on this machine." \
    "To do, as root on Debian: apt-get install chromium    (or put a Chromium there)" >&2
  exit 66
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null
[[ -x /usr/bin/chromium ]]
