#!/usr/bin/env bash
# Figures of one GPU, on a machine without network: ./run.sh STEP... | all   [--device cpu] [--tiny]
#   tests     all tests marked gpu; float32, TF32 and bf16 at every tile
#   predict   tile x block x cache x workers, beside eager torch and the roofline
#   train     speed at every precision, waiting for data, NCCL with one process, offloading
#   quality   7 minutes of training on FIB-25 (MINUTES=8 for more), scored on sections it has not seen
# Each step ends within 9 minutes (LIMIT seconds). Tables go to $OUT, else to ./results; a step that fails says why there.
# PYTHON (python3) has Python 3.12, torch and the other packages that benchmarks/gpu_bundle/requirements.in names.
set -uo pipefail
bundle=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python3}
results=${OUT:-$PWD/results}
scratch=${SCRATCH:-${TMPDIR:-/tmp}/lsdflow-gpu-bundle-$(id -u)}
options=()
steps=()
while (($#)); do
  case $1 in
    tests | predict | train | quality) steps+=("$1") ;;
    all) steps=(tests predict train quality) ;;
    --device) options+=(--device "$2") && shift ;;
    --tiny) options+=(--tiny) ;;
    *) sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit 2 ;;
  esac
  shift
done
((${#steps[@]})) || { sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit 2; }

# The wheels are unpacked once, within seconds: nothing is fetched, nothing is compiled.
site=$scratch/site-$(cd "$bundle" && cat wheels/SHA256SUMS | sha256sum | cut -c1-16)
if [[ ! -e $site/.complete ]]; then
  rm -rf "$site" && mkdir -p "$site" "$results" || exit 1
  "$python" -m pip install --quiet --disable-pip-version-check --no-index --no-deps --no-compile --no-cache-dir \
    --ignore-requires-python --target "$site" "$bundle"/wheels/*.whl && touch "$site/.complete" || exit 1
fi
mkdir -p "$results" || exit 1
here=$site:$bundle/benchmarks/gpu_bundle/stand_ins:$bundle/benchmarks:$bundle/benchmarks/gpu_bundle
export PYTHONPATH=$here${PYTHONPATH:+:$PYTHONPATH} LSDFLOW_BIN=$site/bin NUMBA_CACHE_DIR=${NUMBA_CACHE_DIR:-$scratch/numba}
export PYTHONUNBUFFERED=1

# part PROGRAM ARGUMENT...: a program of a step, in the time that the step has left
part() {
  local left=$((LIMIT - (SECONDS - started))) code=0
  export GPU_BUNDLE_COMMAND="./run.sh $step${options[*]:+ ${options[*]}}"
  if ((left > 0)); then timeout --kill-after=10 "$left" "$python" "$@" "${options[@]}" || code=$?; else code=124; fi
  if ((code)); then
    failed=1
    printf '\n**%s failed** (exit code %s%s). The end of its log:\n\n```text\n' "${1##*/}" "$code" "$( ((code == 124)) && echo ', no time left')"
    tail -n 25 "$log" && printf '```\n'
  fi
}

run_step() {
  local started=$SECONDS LIMIT=${LIMIT:-540}
  local benchmarks=$bundle/benchmarks own=$bundle/benchmarks/gpu_bundle
  printf '## %s\n\n' "$step"
  case $step in
    tests)
      part "$own/step_tests.py"
      part "$benchmarks/gpu.py" predict
      ;;
    predict) part "$own/step_predict.py" --minutes $((LIMIT / 60 - 1)) ;;
    train)
      part "$benchmarks/gpu.py" train
      part "$benchmarks/gpu.py" ranks
      part "$benchmarks/gpu.py" data
      ;;
    quality) part "$own/step_quality.py" "$bundle/data/trvol-250-2.zarr" --minutes "${MINUTES:-7}" ;;
  esac
  printf '\n%s took %s s%s.\n' "$step" $((SECONDS - started)) "$( ((failed)) && echo ', and failed')"
  ((!failed))
}

code=0
for step in "${steps[@]}"; do
  failed=0
  log=$results/$step.log
  run_step 2>"$log" | tee "$results/$step.md" || code=1
done
exit "$code"
