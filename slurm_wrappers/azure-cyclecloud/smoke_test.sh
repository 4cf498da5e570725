#!/usr/bin/env bash
# Is this cluster ready for lsdflow? Run on the scheduler as the lab's user; starts one small job per partition
# (on an empty cluster that means one machine each, some minutes), prints one line per check, leaves 1 if any failed.
set -euo pipefail
shopt -s inherit_errexit

usage() {
  cat <<USAGE
smoke_test.sh --sif WATERSHED.sif [--mount /data] [--uri-file FILE] [--partitions 'cpu gpu gpulowprio'] [--minutes 40] [--driver yes]
  --sif        SIF of a block stage, on the mount; it is executed on a node of each partition
  --uri-file   file with the database's URI (default MOUNT/lsdflow/secrets/mongo.uri; 'none' leaves the database out)
  --minutes    how long to wait for a job, machines included
  --driver     'no' on a test cluster whose GPUs are none: nvidia-smi is not asked
USAGE
}

sif='' mount=/data uri_file='' partitions='cpu gpu gpulowprio' minutes=40 driver=yes
while (($#)); do
  case $1 in
    --sif) sif=$2 ;;
    --mount) mount=$2 ;;
    --uri-file) uri_file=$2 ;;
    --partitions) partitions=$2 ;;
    --minutes) minutes=$2 ;;
    --driver) driver=$2 ;;
    *) usage >&2; exit 2 ;;
  esac
  shift 2
done
[[ -n $sif ]] || { usage >&2; exit 2; }
uri_file=${uri_file:-$mount/lsdflow/secrets/mongo.uri}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
failures=0

# check NAME COMMAND...: one line, with what the command said if it failed.
check() {
  local name=$1 said
  shift
  if said=$("$@" 2>&1); then
    printf 'ok    %-32s %s\n' "$name" "$(tail -n 1 <<<"$said")"
  else
    printf 'FAIL  %-32s %s\n' "$name" "$said"
    failures=$((failures + 1))
  fi
}

has_partition() { sinfo --noheader --partition="$1" --format='%R: %D nodes of %c CPUs, gres %G, %a' | grep .; }

# Every block is published by writing aside and renaming: the new name must show the whole file, over an older one too.
renames() {
  printf 'old\n' >"$work/file"
  head -c 1048576 /dev/zero >"$work/file.new"
  mv "$work/file.new" "$work/file"
  [[ $(stat -c %s "$work/file") == 1048576 && ! -e $work/file.new ]] || return 1
  findmnt --noheadings --output SOURCE,FSTYPE --target "$work"
}

# lsdflow takes no locks on shared storage, so both answers are fine; NFS without locks must say nolock.
lock_state() {
  local options
  options=$(findmnt --noheadings --output OPTIONS --target "$work")
  if [[ ,$options, == *,nolock,* || $options == *local_lock=all* ]]; then
    echo 'no locks between nodes (nolock): fine for lsdflow, not for SQLite or HDF5 writers'
  elif flock --timeout 10 "$work/file" true; then
    echo 'locks answer'
  else
    echo 'a lock never came: mount with nolock'
    return 1
  fi
}

private_file() {
  local mode
  mode=$(stat -c %a "$1")
  [[ $mode == 600 && -O $1 ]] || { echo "$1 has mode $mode; it must be yours, mode 600"; return 1; }
  echo 'mode 600, yours'
}

database() {
  singularity --quiet exec --cleanenv --no-eval --bind "$here" --bind "$(dirname "$uri_file")" "$sif" \
    python "$here/mongo_check.py" "$uri_file" && echo 'in with the password, out without'
}

write_job() {
  cat >"$work/job.sh" <<JOB
#!/usr/bin/env bash
set -euo pipefail
singularity --quiet exec --cleanenv --no-eval --nv $(printf %q "$sif") watershed --version
if [[ \$SLURM_JOB_PARTITION == *gpu* && $driver == yes ]]; then
  nvidia-smi --query-gpu=name,memory.total --format=csv,noheader
fi
hostname >"\$1"
JOB
}

# job PARTITION: a tiny job runs the SIF there and leaves a file on the mount, which this machine must see.
job() {
  local gres=() log=$work/$1.log
  [[ $1 != *gpu* ]] || gres=(--gres=gpu:1)
  timeout "$((minutes * 60))" sbatch --wait --parsable --partition="$1" "${gres[@]}" --job-name="smoke-$1" --time=5 \
    --mem=1G --export=NONE --output="$log" "$work/job.sh" "$work/$1.host" || {
      [[ ! -f $log ]] || cat "$log"
      return 1
    }
  for _ in {1..30}; do
    [[ ! -s $work/$1.host ]] || break
    sleep 2 # NFS clients refresh a folder after some seconds
  done
  [[ -s $work/$1.host ]] || { echo 'the job ended, but its file does not show on the mount'; return 1; }
  echo "on $(<"$work/$1.host"): $(tr '\n' ' ' <"$log")"
}

work=$(mktemp -d "$mount/smoke-test-XXXXXX")
trap 'rm -rf "$work"' EXIT
write_job

check 'mount' mountpoint "$mount"
check 'rename on the mount' renames
check 'locks on the mount' lock_state
check 'apptainer here' singularity --version
if [[ $uri_file != none ]]; then
  check 'URI file' private_file "$uri_file"
  check 'database' database
fi
for partition in $partitions; do
  check "partition $partition" has_partition "$partition"
  check "job in $partition" job "$partition"
done
if ((failures)); then
  echo "$failures failed"
  exit 1
fi
echo 'this cluster is ready'
