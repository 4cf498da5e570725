#!/usr/bin/env bash
# Submits the stages of an experiment as a chain of jobs; prints every command. `lsdflow submit DIR` calls it.
#
#   pipeline.sh EXPERIMENT [--settings FILE] [--from STAGE] [--to STAGE] [--dry-run]
#   pipeline.sh EXPERIMENT --scale STAGE=N [--dry-run]             more workers for a stage that is running
#
# EXPERIMENT is the folder, also as --experiment EXPERIMENT. FILE is one like example.settings.env (default:
# EXPERIMENT/settings.env); `-` is standard input. What is submitted is copied first: these scripts, the settings and the
# pins go to EXPERIMENT/runs/submit/<time>/, with a line in jobs.tsv for every job.
#
#   coordinator <-after- workers      a stage of blocks; the workers begin when the coordinator does
#        ^-------afterany- verify     checks everything the stage made; fails unless it is complete
#                             ^-afterok- next stage     is cancelled (kill-on-invalid-dep) if verify fails
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=slurm_wrappers/_common.sh
source "$here/_common.sh"

experiment='' settings='' first='' last='' dry='' scale=''
while (($#)); do
  case $1 in
    --experiment) experiment=${2:?} && shift ;;
    --settings) settings=${2:?} && shift ;;
    --from) first=${2:?} && shift ;;
    --to) last=${2:?} && shift ;;
    --scale) scale=${2:?} && shift ;;
    --dry-run) dry=yes ;;
    -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0" && exit ;;
    -*) fail 2 "unknown option $1" '' '' "$0 --help" ;;
    *)
      [[ -z $experiment ]] || fail 2 'more than one experiment' 'pipeline.sh EXPERIMENT' "$experiment, $1"
      experiment=$1
      ;;
  esac
  shift
done
[[ -n $experiment ]] || fail 2 'no experiment' 'pipeline.sh EXPERIMENT'
if [[ -f $experiment ]]; then experiment=$(dirname "$experiment"); fi
[[ -e $experiment/experiment.toml ]] || fail "$MISSING" 'no experiment file' "$experiment/experiment.toml" '' 'lsdflow init DIR ...'
experiment=$(cd "$experiment" && pwd -P)
require_plain_path "$experiment"

# --- what is to be submitted ------------------------------------------------------------------------------------
submission=''
freeze() {
  local name
  name=$(date -u +%Y%m%dT%H%M%S)-$$
  submission=$experiment/runs/submit/$name
  if [[ -n $dry ]]; then return; fi
  mkdir -p "$submission"
  cp "$here/_common.sh" "$here/stage.sbatch" "$here/pipeline.sh" "$experiment/images.env" "$submission/"
  for name in "${ALL_STAGES[@]}"; do # their resources come from the settings
    sed '/^#SBATCH/d' "$here/$name.sbatch" >"$submission/$name.sbatch"
  done
  : >"$submission/jobs.tsv"
  {
    printf "EXPERIMENT='%s'\n" "$experiment"
    printf '%s\n' "$settings_text"
  } >"$submission/settings.env"
}

# read_text: settings into memory, since standard input can be read only once.
read_text() {
  if [[ -z $settings && -e $experiment/settings.env ]]; then settings=$experiment/settings.env; fi
  [[ -n $settings ]] || fail 2 'no settings' '--settings FILE, or EXPERIMENT/settings.env' '' "begin with $here/example.settings.env"
  if [[ $settings == - ]]; then settings_text=$(cat); else settings_text=$(<"$settings"); fi
  read_settings <(printf '%s\n' "$settings_text") "$settings"
  [[ ${SETTING[EXPERIMENT]:-$experiment} == "$experiment" ]] || fail "$BAD_CONFIG" 'the settings are of another experiment' \
    "$experiment" "${SETTING[EXPERIMENT]}"
}

# choose_stages: those of STAGES from --from to --to.
choose_stages() {
  local stage inside=''
  read -ra wanted <<<"$(setting STAGES "${ALL_STAGES[*]}")"
  stages=()
  for stage in "${first:-${wanted[0]}}" "${last:-${wanted[-1]}}" "${wanted[@]}"; do
    is_one_of "$stage" "${ALL_STAGES[@]}" || fail 2 "no stage $stage" "${ALL_STAGES[*]}"
  done
  for stage in "${ALL_STAGES[@]}"; do
    if [[ $stage == "${first:-${wanted[0]}}" ]]; then inside=yes; fi
    if [[ -n $inside ]] && is_one_of "$stage" "${wanted[@]}"; then stages+=("$stage"); fi
    if [[ $stage == "${last:-${wanted[-1]}}" ]]; then break; fi
  done
  ((${#stages[@]})) || fail 2 'no stage to submit' '' "--from $first --to $last"
}

# check_images: before anything waits in a queue; only where the container's program is at hand. A dry run needs no image.
check_images() {
  local stage
  if [[ -n $dry ]]; then return; fi
  load_modules || say "module load $(setting MODULES) failed here"
  if ! command -v "$(setting SINGULARITY singularity)" >/dev/null; then
    say "no $(setting SINGULARITY singularity) here: the jobs will check their images"
    return
  fi
  for stage in "${stages[@]}"; do
    use_image "$stage" "$experiment/images.env"
    say "$stage: $SIF"
  done
}

# --- limits of partitions -----------------------------------------------------------------------------------------
# Lines partition|time limit|cores|MB of every node -> what a job requests that no node of its partitions has.
# shellcheck disable=SC2016 # awk's own variables
readonly OVER_LIMITS='
function seconds(text, days, part, parts) { # minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes[:seconds]]
  if (text !~ /^[0-9][0-9:-]*$/) return 0   # no limit
  days = index(text, "-") ? substr(text, 1, index(text, "-") - 1) : ""
  parts = split(substr(text, index(text, "-") + 1), part, ":")
  if (days != "") return ((days * 24 + part[1]) * 60 + part[2]) * 60 + part[3]
  return parts == 3 ? (part[1] * 60 + part[2]) * 60 + part[3] : part[1] * 60 + part[2]
}
function megabytes(text) { return text * (text ~ /K$/ ? 1 / 1024 : text ~ /G$/ ? 1024 : text ~ /T$/ ? 1048576 : 1) }
BEGIN { FS = "|"; count = split(partition, names, ","); for (n = 1; n <= count; n++) wanted[names[n]] = 1 }
{ name = $1; is_default = sub(/[*]$/, "", name) }
name in wanted || (partition == "" && is_default) {
  found = 1
  if (!seconds($2)) unlimited = 1
  if (seconds($2) > most_time) { most_time = seconds($2); limit = $2 }
  if ($3 + 0 > cores) cores = $3 + 0
  if ($4 + 0 > memory) memory = $4 + 0
}
END {
  where = partition == "" ? "the default partition" : "partition " partition
  if (!found) exit
  if (!unlimited && !qos && seconds(time) > most_time) print job ": time " time ", but " where " allows " limit
  if (cpus > cores) print job ": " cpus " cores, but a node of " where " has " cores
  if (megabytes(mem) > memory) print job ": " mem " of memory, but a node of " where " has " memory "M"
}'

# check_limits STAGES: refuses jobs that SLURM would keep waiting for ever. A quality of service may allow more time.
check_limits() {
  local stage key prefix name nodes problems=''
  nodes=$(timeout 60 sinfo --noheader --Node --format='%P|%l|%c|%m' 2>/dev/null) || true
  if [[ -z $nodes ]]; then say 'sinfo does not answer: the limits of the partitions are not checked'; fi
  for stage in "$@" verify; do
    key=$(stage_key "$stage")
    for prefix in "$key" "${key}_WORKER"; do
      if [[ $prefix == "$key" ]]; then name=$stage; else name="$stage, workers"; fi
      problems+=$(awk -v "job=$name" -v "partition=$(partition "$prefix")" -v "qos=$(setting QOS)" \
        -v "time=$(setting "${prefix}_TIME")" -v "cpus=$(setting "${prefix}_CPUS")" -v "mem=$(setting "${prefix}_MEM")" \
        "$OVER_LIMITS" <<<"$nodes" && echo .)
      problems=${problems%.}
    done
  done
  [[ -z $problems ]] || fail "$BAD_CONFIG" 'jobs that could never start; nothing was submitted' '' "${problems%$'\n'}" \
    'change time, cpus, mem or partition (of workers: worker_time, ...) in [cluster.STAGE] of the experiment file'
}

# --- submitting -------------------------------------------------------------------------------------------------
# partition PREFIX: PREFIX_PARTITION; if it is not set, PARTITION_GPU for a job with a GPU in its GRES, else PARTITION_CPU.
partition() {
  local kind=CPU
  if [[ $(setting "$1_GRES") == *gpu* ]]; then kind=GPU; fi
  printf '%s' "${SETTING[$1_PARTITION]-${SETTING[PARTITION_$kind]:-}}"
}

# resources PREFIX: sets OPTIONS of sbatch from PREFIX_CPUS, _MEM, _TIME, _GRES, _NODES, its partition, and the general ones.
resources() {
  local option
  OPTIONS=()
  for option in "partition=$(partition "$1")" "cpus-per-task=$(setting "$1_CPUS")" "mem=$(setting "$1_MEM")" \
    "time=$(setting "$1_TIME")" "gres=$(setting "$1_GRES")" "nodes=$(setting "$1_NODES")" \
    "account=$(setting ACCOUNT)" "qos=$(setting QOS)"; do
    if [[ -n ${option#*=} ]]; then OPTIONS+=("--$option"); fi
  done
  OPTIONS+=(${SBATCH_OPTIONS[@]+"${SBATCH_OPTIONS[@]}"})
}

# submit STAGE ROLE PREFIX DEPENDENCY ARRAY ARGUMENTS...: sets JOB.
submit() {
  local stage=$1 role=$2 prefix=$3 dependency=$4 array=$5 logs pattern=%x.%j name
  shift 5
  logs=$experiment/runs/$stage/slurm
  name=$(setting NAME experiment)-$stage
  if [[ $role == workers || $role == verify ]]; then name+=-$role; fi
  resources "$prefix"
  local -a command=(sbatch --parsable "--job-name=$name" --requeue --open-mode=append --export=NONE)
  command+=("--signal=B:USR2@$(setting WARN_S 120)")
  if [[ -n $dependency ]]; then command+=("--dependency=$dependency" --kill-on-invalid-dep=yes); fi
  if [[ -n $array ]]; then
    command+=("--array=$array")
    pattern=%x.%A_%a
  fi
  command+=("--chdir=$experiment" "--output=$logs/$pattern.log" "--error=$logs/$pattern.log" "${OPTIONS[@]}")
  command+=("$submission/$stage.sbatch" "$submission" "$@")
  show "${command[@]}"
  JOB="<$stage-$role>"
  if [[ -n $dry ]]; then return; fi
  mkdir -p "$logs"
  JOB=$("${command[@]}" 2>&1) || give_up "$JOB"
  JOB=${JOB##*$'\n'} # warnings come first
  JOB=${JOB%%;*}      # number;cluster
  [[ $JOB =~ ^[0-9]+$ ]] || give_up "$JOB"
  printf '%s\t%s\t%s\t%s\n' "$stage" "$role" "$JOB" "$(date -u +%Y-%m-%dT%H:%M:%SZ)" >>"$submission/jobs.tsv"
  say "$stage $role: job $JOB"
}

# give_up MESSAGE: cancels what was submitted, since half a chain is of no use.
give_up() {
  local stage role id rest code=$BAD_CONFIG
  while IFS=$'\t' read -r stage role id rest; do
    if [[ -z $scale ]]; then scancel "$id" && say "$stage $role: job $id cancelled"; fi
  done <"$submission/jobs.tsv"
  if [[ $1 == *'nable to contact'* ]]; then code=$NO_SERVICE; fi
  fail "$code" 'sbatch refused the job' '' "$1" 'correct [cluster] of the experiment file (partitions: sinfo)'
}

# submit_workers STAGE COUNT DEPENDENCY COORDINATOR: an array, at most WORKERS_AT_ONCE of it at a time.
submit_workers() {
  local key at_once
  key=$(stage_key "$1")
  at_once=$(setting "${key}_WORKERS_AT_ONCE")
  if ! [[ $2 =~ ^[0-9]+$ ]] || (($2 < 1 || $2 > 1000)); then fail "$BAD_CONFIG" "workers of $1" '1 to 1000' "$2"; fi
  submit "$1" workers "${key}_WORKER" "$3" "0-$(($2 - 1))${at_once:+%$at_once}" work "$4"
}

submit_chain() {
  local stage key before=''
  for stage in "${stages[@]}"; do
    key=$(stage_key "$stage")
    if is_one_of "$stage" "${BLOCK_STAGES[@]}"; then
      submit "$stage" coordinator "$key" "$before" '' coordinate
      local coordinator=$JOB
      # `after` holds too when the coordinator is cancelled, hence the earlier stage's verify once more.
      submit_workers "$stage" "$(setting "${key}_WORKERS" 2)" "after:$coordinator${before:+,$before}" "$coordinator"
      submit "$stage" verify VERIFY "afterany:$coordinator${before:+,$before}" '' verify
    else
      submit "$stage" run "$key" "$before" '' run
      submit "$stage" verify VERIFY "afterok:$JOB" '' verify
    fi
    before=afterok:$JOB
  done
}

# add_workers STAGE=N: to the coordinator of the newest submission.
add_workers() {
  local stage=${1%%=*} coordinator
  is_one_of "$stage" "${BLOCK_STAGES[@]}" || fail 2 "$stage has no workers" "${BLOCK_STAGES[*]}"
  submission=$(find "$experiment/runs/submit" -mindepth 1 -maxdepth 1 -type d 2>/dev/null | sort | tail -n 1) || true
  [[ -n $submission ]] || fail "$MISSING" 'nothing was submitted' "$experiment/runs/submit"
  read_settings "$submission/settings.env"
  coordinator=$(awk -F '\t' -v stage="$stage" '$1 == stage && $2 == "coordinator" { id = $3 } END { print id }' "$submission/jobs.tsv")
  if [[ -z $coordinator ]] || ! is_in_queue "$coordinator"; then
    fail "$MISSING" "$stage has no coordinator in the queue" '' "job ${coordinator:-none}" 'lsdflow submit'
  fi
  check_limits "$stage"
  submit_workers "$stage" "${1#*=}" "after:$coordinator" "$coordinator"
}

if [[ -n $scale ]]; then
  add_workers "$scale"
  exit
fi
settings_text='' wanted=() stages=()
read_text
choose_stages
check_limits "${stages[@]}"
check_images
freeze
submit_chain
if [[ -z $dry ]]; then say "submitted: $submission"; fi
