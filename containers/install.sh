#!/usr/bin/env bash
# install.sh LOCK [LSDS]: inside a build, the packages of a lock into /opt/lsdflow: by uv, with hashes, wheels only.
#   LSDS   the lock of the package lsds, for lsd_engine = "lsds": the one package that comes as source
#
# The default index does not have torch's CPU wheel (+cpu in the lock). It comes from a folder of wheels where pip's settings
# in the base image name one that holds it, otherwise from PyTorch's own index (known to uv).
#
# uv does not read the settings of pip: those that say where packages come from are handed on.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
environment=/opt/lsdflow

# Lines `name value` of pip's settings; those of variables come over those of files. (`pip config get` reads one file alone.)
settings=$(python3 -m pip config list | python3 -c '
import ast, sys
found = {}
for line in sorted(sys.stdin, key=lambda line: line.startswith(":env:")):
    key, _, value = line.strip().partition("=")
    found[key.rpartition(".")[2]] = " ".join(str(ast.literal_eval(value)).split())
print(*(f"{name} {value}" for name, value in found.items()), sep="\n")')

# setting NAME: its value, of which there may be several words; nothing if it is not set.
setting() { sed -n "s/^$1 //p" <<<"$settings"; }

# has_torch FOLDER: whether a folder of wheels, a local one or an address, holds a CPU wheel of torch.
has_torch() {
  local list='import sys, urllib.request; sys.stdout.write(urllib.request.urlopen(sys.argv[1], timeout=60).read().decode())'
  case $1 in
    *://*) python3 -c "$list" "$1/" | grep -q 'torch-[0-9][^"]*cpu' ;;
    *) compgen -G "$1/torch-[0-9]*cpu*.whl" >/dev/null ;;
  esac
}

# Hashes are required, so that no index can put another package in the place of a locked one.
options=(--only-binary :all: --link-mode copy --index-strategy unsafe-best-match)
backend=()
if grep -q '^torch==[^ ]*+cpu' "$1"; then backend=(--torch-backend cpu); fi
index=$(setting index-url)
if [[ -n $index ]]; then options+=(--default-index "$index"); fi
read -ra indexes <<<"$(setting extra-index-url)"
for index in ${indexes[@]+"${indexes[@]}"}; do options+=(--index "$index"); done
read -ra hosts <<<"$(setting trusted-host)"
for host in ${hosts[@]+"${hosts[@]}"}; do options+=(--allow-insecure-host "$host"); done
read -ra folders <<<"$(setting find-links)"
for folder in ${folders[@]+"${folders[@]}"}; do
  options+=(--find-links "$folder")
  if ((${#backend[@]})) && has_torch "$folder"; then backend=(); fi
done
certificates=${SSL_CERT_FILE:-$(setting cert)}
if [[ -n $certificates ]]; then export SSL_CERT_FILE=$certificates; fi

python3 -m pip install --quiet --no-deps --require-hashes --only-binary=:all: --target /build -r "$here/installer.lock"
export UV_CACHE_DIR=${PIP_CACHE_DIR:-/var/cache/pip}/uv
set -x # the log of a build says where the packages were searched
/build/bin/uv pip sync --python "$environment/bin/python" --require-hashes "${options[@]}" ${backend[@]+"${backend[@]}"} "$1"
rm -f "$environment/.lock" # of uv itself

if [[ -s ${2:-} ]]; then
  PYTHONPATH=$here/without_cython python3 -m pip --python "$environment/bin/python" install --quiet --no-deps --no-compile \
    --no-build-isolation --no-binary :all: --require-hashes -r "$2"
fi
