#!/usr/bin/env bash
# What one GPU does with lsdflow, on a machine without network, the most valuable first:
#   ./run.sh rehearse [--seconds 780] [--results results] [--parts tests,stage] [--ablation] [--device cpu] [--tiny]
#   tests     all tests marked gpu, and whether anything beside the input changes the bits of a tile
#   network   the networks alone, at three tiles; where their time goes, by operation and by kernel
#   stage     predict from disk to disk, with its default settings
#   training  iterations per second, and the share of the time that is spent waiting for data
#   quality   trains two networks side by side for the time that is left, and keeps them
# Each part ends with its share of the seconds. Its rows are in results.md as soon as they are known; what there was no time
# for is listed at the end. PYTHON (python3) has Python 3.12, torch and what benchmarks/gpu_bundle/requirements.in names.
set -uo pipefail
bundle=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python3}
scratch=${SCRATCH:-${TMPDIR:-/tmp}/lsdflow-gpu-bundle-$(id -u)}
[[ ${1:-} == rehearse ]] || { sed -n '2,11s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit 2; }
shift

# The wheels are unpacked once, within seconds: nothing is fetched, nothing is compiled.
site=$scratch/site-$(cd "$bundle" && cat wheels/SHA256SUMS | sha256sum | cut -c1-16)
if [[ ! -e $site/.complete ]]; then
  rm -rf "$site" && mkdir -p "$site" || exit 1
  "$python" -m pip install --quiet --disable-pip-version-check --no-index --no-deps --no-compile --no-cache-dir \
    --ignore-requires-python --target "$site" "$bundle"/wheels/*.whl && touch "$site/.complete" || exit 1
fi
here=$site:$bundle/benchmarks/gpu_bundle/stand_ins:$bundle/benchmarks:$bundle/benchmarks/gpu_bundle
export PYTHONPATH=$here${PYTHONPATH:+:$PYTHONPATH} LSDFLOW_BIN=$site/bin NUMBA_CACHE_DIR=${NUMBA_CACHE_DIR:-$scratch/numba}
export PYTHONUNBUFFERED=1
exec "$python" "$bundle/benchmarks/gpu_bundle/rehearse.py" "$@" --spent "$SECONDS" --data "$bundle/data"
