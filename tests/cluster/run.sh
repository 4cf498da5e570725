#!/usr/bin/env bash
# run.sh [PYTEST OPTIONS]: the tests on a cluster. `make test-cluster` calls it.
#
# Uses the machine's own cluster where SLURM has two nodes and Apptainer is there; else brings up the bed, and takes it
# down again at the end (LSDFLOW_BED_KEEP=1: leaves it up). A machine that cannot carry the bed: NOT RUN is printed,
# code 0; with LSDFLOW_CLUSTER_REQUIRED=1, code 3.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
clone=$(cd "$here/../.." && pwd)
export DOCKER_HOST=${DOCKER_HOST:-unix:///run/docker.sock}

cluster_is_there() {
  command -v sinfo >/dev/null && command -v singularity >/dev/null || return 1
  (($(timeout 10 sinfo -h -N -t idle,mixed,allocated -o %N 2>/dev/null | sort -u | wc -l) >= 2))
}

not_run() {
  printf '\n%s\n=== test-cluster: NOT RUN. %s\n%s\n\n' "${line:=$(printf '=%.0s' {1..100})}" "$1" "$line" >&2
  [[ ${LSDFLOW_CLUSTER_REQUIRED:-0} == 0 ]] || exit 3
  exit 0
}

if ! cluster_is_there; then
  code=0
  "$here/bed/bed.sh" up || code=$?
  case $code in
    0) [[ ${LSDFLOW_BED_KEEP:-0} != 0 ]] || trap '"$here/bed/bed.sh" down' EXIT ;;
    3) not_run "This machine cannot carry the test cluster; the reason is printed above." ;;
    *) exit "$code" ;;
  esac
fi

cd "$clone"
export LSDFLOW_ON_CLUSTER=1 LSDFLOW_BIN=$clone/bin
.venv/blocks/bin/pytest -p no:cacheprovider --durations=12 "${@:-tests/cluster/on_cluster}"
