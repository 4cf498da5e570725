# shellcheck shell=bash
# Settings of the bed and the few functions that all its parts use. Sourced, never run.
# shellcheck disable=SC2034  # read by the files that source this one

# The folder of everything that the bed writes: downloads, daemons' state, logs, secrets. After `down` it can be deleted.
BED=${LSDFLOW_BED:-/var/tmp/lsdflow-bed}
BED_NET=${LSDFLOW_BED_NET:-10.99.0}             # first three numbers of the bridge's /24 network
BED_SHARED=${LSDFLOW_BED_SHARED:-/shared}       # storage that head and nodes have in common
BED_DOCKER_ROOT=${LSDFLOW_BED_DOCKER_ROOT:-$BED/docker}
BED_ACCOUNTING=${LSDFLOW_BED_ACCOUNTING:-1}     # 0: no slurmdbd, no sacct
BED_SOURCE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
BED_CLONE=$(cd "$BED_SOURCE/../../.." && pwd)
BED_PYTHON=${LSDFLOW_BED_PYTHON:-$BED_CLONE/.venv/blocks/bin/python}   # needs pymongo: it makes the database users
BED_PIP=${LSDFLOW_BED_PIP:-$BED_CLONE/.venv/tools/bin/python}         # has pip, and so knows this machine's package indexes

BRIDGE=lsdflow0
HEAD_ADDRESS=$BED_NET.1
FILE_PORT=8099                                  # local package folders, served to image builds on the bridge
MONGO_PORT=27017
NODES=(n1 n2)
NODE_CPUS=4                                     # claimed, not had: scheduling is real, speed is not
NODE_MEMORY_MB=8000
NODE_GPUS=2
USERS=(alice:5001 bob:5002)                     # unprivileged, the same numbers on every node
CGROUP_V1=(cpu cpuacct cpuset memory devices freezer pids)

export DOCKER_HOST=${DOCKER_HOST:-unix:///run/docker.sock}
export DEBIAN_FRONTEND=noninteractive
export BED BED_NET BED_SHARED

say() { printf '%s bed: %s\n' "$(date +%T)" "$*" >&2; }

# The machine cannot carry the bed (not Debian, no packages, no namespaces): code 3, which tests report as NOT RUN.
impossible() {
  say "NOT POSSIBLE HERE: $*"
  exit 3
}

# step TEXT COMMAND...: run it and print how long it took.
step() {
  local text=$1 begun=${EPOCHREALTIME/./}
  shift
  "$@"
  printf '%s bed: %-28s %5d.%d s\n' "$(date +%T)" "$text" \
    $(((${EPOCHREALTIME/./} - begun) / 1000000)) $(((${EPOCHREALTIME/./} - begun) / 100000 % 10)) >&2
}

# wait_for SECONDS COMMAND...: until it succeeds; fails after that time.
wait_for() {
  local seconds=$1 end
  shift
  end=$((SECONDS + seconds))
  until "$@" >/dev/null 2>&1; do
    if ((SECONDS >= end)); then
      say "gave up after $seconds s: $*"
      return 1
    fi
    sleep 0.2
  done
}

address_of() { echo "$BED_NET.1${1#n}"; }       # n1 -> 10.99.0.11

has_cgroup_v1() { [[ -d /sys/fs/cgroup/memory ]]; }

# A pid file holds "PID START": the start time distinguishes our process from a later one with the same number.
running() {
  local pid start
  [[ -s $BED/run/$1 ]] || return 1
  read -r pid start <"$BED/run/$1"
  [[ $(started_at "$pid") == "$start" ]] && ! grep -qs '^State:[[:space:]]*[ZX]' "/proc/$pid/status"
}
stopped() { ! running "$1"; }
pid_of() { cut -d' ' -f1 "$BED/run/$1"; }
started_at() { sed -E 's/.*\) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20; }

# start_daemon NAME COMMAND...: in a session of its own and outside the caller's cgroup, output in log/NAME.log.
start_daemon() {
  local name=$1
  shift
  running "$name" && return
  rm -f "$BED/run/$name"
  # shellcheck disable=SC2016  # the inner shell expands
  setsid bash -c '
    for group in /sys/fs/cgroup/{cpu,cpuacct,cpuset,memory,devices,freezer,pids}/cgroup.procs; do
      [[ ! -e $group ]] || echo $$ >"$group"
    done
    echo "$$ $(sed -E "s/.*\) //" /proc/$$/stat | cut -d" " -f20)" >"$0"
    exec "$@"' "$BED/run/$name" "$@" >>"$BED/log/$name.log" 2>&1 </dev/null &
  wait_for 5 running "$name" || { tail -n 5 "$BED/log/$name.log" >&2; return 1; }
}

# stop_daemon NAME [SIGNAL]: and wait until it has ended.
stop_daemon() {
  if running "$1"; then
    kill "-${2:-TERM}" "$(pid_of "$1")"
    wait_for 25 stopped "$1"
  fi
  rm -f "$BED/run/$1"
}

as_user() { setpriv --reuid "$1" --regid "$1" --init-groups -- "${@:2}"; }
