# What pipeline.sh, stage.sbatch and sweep.sbatch share: messages, settings, the checked SIF of a stage, signals and requeue.
# Nothing here evaluates text: settings and pins are read line by line, and every command is an array.
# shellcheck shell=bash

# Exit codes that are used here; README.md of the project explains all of them.
readonly MISSING=66 NO_SERVICE=69 INTERNAL=70 INTERRUPTED=75 MISMATCH=76 BAD_CONFIG=78
readonly -a TORCH_STAGES=(train-lsd train-acrlsd predict)
# shellcheck disable=SC2034 # the scripts that source this file read them
readonly -a BLOCK_STAGES=(predict watershed agglomerate segment evaluate) \
  ALL_STAGES=(prepare train-lsd train-acrlsd predict watershed agglomerate segment evaluate)

# fail CODE WHAT [WANTED [FOUND [FIX [NOTE]]]]: prints the message in the form of all lsdflow commands, and exits.
fail() {
  local code=$1 name
  printf 'error: %s\n' "$2" >&2
  shift 2
  for name in wanted found fix note; do
    if [[ -n ${1:-} ]]; then printf '%8s: %s\n' "$name" "$1" >&2; fi
    shift || true
  done
  exit "$code"
}

say() { printf '%(%H:%M:%S)T %s\n' -1 "$*" >&2; }

# show COMMAND...: as one could type it.
show() {
  local word
  printf '$'
  for word in "$@"; do
    if [[ $word =~ ^[A-Za-z0-9_./:=,@%+-]+$ ]]; then printf ' %s' "$word"; else printf ' %s' "${word@Q}"; fi
  done
  printf '\n'
}

# is_one_of WORD WORDS...
is_one_of() {
  local IFS=$'\n'
  [[ $'\n'"${*:2}"$'\n' == *$'\n'"$1"$'\n'* ]]
}

# require_plain_path FOLDER: refuses what would mean something else to sbatch (%), to the container's option --bind (: and ,)
# or in jobs.tsv.
require_plain_path() {
  [[ ! $1 =~ [[:cntrl:]\'\"\\\$\`%:,\;] ]] || fail "$BAD_CONFIG" 'the path of the experiment cannot be used here' \
    "none of ' \" \\ \$ \` % : , ;" "$1"
}

# --- settings -----------------------------------------------------------------------------------------------------
declare -A SETTING=()
declare -a SETS=() BINDS=() BINDS_RO=() SBATCH_OPTIONS=()

# read_settings FILE [NAME]: lines KEY='value' (no quote inside); SET, BIND, BIND_RO and SBATCH_OPTION may be repeated.
read_settings() {
  local line key value number=0
  while IFS= read -r line || [[ -n $line ]]; do
    number=$((number + 1))
    if [[ $line =~ ^[[:space:]]*(#.*)?$ ]]; then continue; fi
    [[ $line =~ ^([A-Z][A-Z_]*)=\'([^\']*)\'$ ]] || fail "$BAD_CONFIG" "${2:-$1}, line $number: not a setting" "KEY='value'" "$line"
    key=${BASH_REMATCH[1]} value=${BASH_REMATCH[2]}
    [[ ! $value =~ [[:cntrl:]] ]] || fail "$BAD_CONFIG" "${2:-$1}, line $number: a control character"
    case $key in
      SET) SETS+=("$value") ;;
      BIND) BINDS+=("$value") ;;
      BIND_RO) BINDS_RO+=("$value") ;;
      SBATCH_OPTION) SBATCH_OPTIONS+=("$value") ;;
      *) SETTING[$key]=$value ;;
    esac
  done <"$1"
}

# setting KEY [DEFAULT]
setting() { printf '%s' "${SETTING[$1]:-${2:-}}"; }

# stage_key STAGE: its prefix in settings and pins, TRAIN_LSD for train-lsd.
stage_key() {
  local upper=${1^^}
  printf '%s' "${upper//-/_}"
}

# toml_text TABLE KEY: the text of a line KEY = "text" under [TABLE] of $EXPERIMENT_FILE; nothing if it is not written so.
# (The node may have no Python; the image has one, but is not found yet.)
toml_text() {
  local line inside=''
  while IFS= read -r line || [[ -n $line ]]; do
    if [[ $line =~ ^[[:space:]]*\[ ]]; then
      inside=''
      if [[ $line =~ ^[[:space:]]*\[[[:space:]]*"$1"[[:space:]]*\] ]]; then inside=yes; fi
    elif [[ -n $inside && $line =~ ^[[:space:]]*"$2"[[:space:]]*=[[:space:]]*[\"\']([^\"\']+)[\"\'] ]]; then
      printf '%s' "${BASH_REMATCH[1]}"
      return
    fi
  done <"$EXPERIMENT_FILE"
}

# load_modules: `module load` of the words of MODULES. Jobs get no environment of the shell that submitted them, so a shell
# that lacks the command `module` reads /etc/profile, as a login shell does.
load_modules() {
  local -a modules
  local code=0
  read -ra modules <<<"$(setting MODULES)"
  ((${#modules[@]})) || return 0
  set +u # neither the profile nor `module` is written for it
  # shellcheck disable=SC1091
  if ! command -v module >/dev/null; then source /etc/profile || true; fi
  module load "${modules[@]}" || code=$?
  set -u
  return "$code"
}

# --- the image of a stage -------------------------------------------------------------------------------------------
# use_image STAGE PINS: sets SIF, the checked file of the stage's pin, with PIN_VERSION, PIN_DIGEST (or empty), SIF_DIGEST.
use_image() {
  read_pin "$1" "$2"
  find_sif "$1"
  check_sif "$1"
}

# read_pin STAGE FILE: the line <STAGE>_IMAGE=name:version[@sha256:...].
read_pin() {
  local key line found=''
  key=$(stage_key "$1")_IMAGE
  [[ -r $2 ]] || fail "$MISSING" "no pinned images" "$2" '' "make pins PINS=$2"
  while IFS= read -r line || [[ -n $line ]]; do
    if [[ $line == "$key="* ]]; then found=${line#*=}; fi
  done <"$2"
  [[ $found =~ ^[a-zA-Z0-9./:_-]+:([A-Za-z0-9_][A-Za-z0-9_.-]*)(@(sha256:[0-9a-f]{64}))?$ ]] ||
    fail "$BAD_CONFIG" "$1 has no usable pin in $2" "$key=name:version@sha256:..." "${found:-nothing}"
  PIN_VERSION=${BASH_REMATCH[1]} PIN_DIGEST=${BASH_REMATCH[3]:-}
  [[ $PIN_VERSION != latest ]] || fail "$BAD_CONFIG" "$key is latest" "a fixed version"
}

# find_sif STAGE: the file of the pin in the folder IMAGES.
find_sif() {
  local folder stem note='' hex=${PIN_DIGEST#sha256:}
  local -a found
  folder=$(setting IMAGES)
  stem=$folder/${1}_$PIN_VERSION
  if [[ -n $hex ]]; then
    SIF=${stem}_${hex:0:12}.sif
  else
    SIF=$stem.sif
    if [[ ! -e $SIF ]]; then
      found=("$stem"_*.sif)
      if [[ -e ${found[0]} ]]; then SIF=${found[0]}; fi
      ((${#found[@]} == 1)) || fail "$MISMATCH" "several SIFs fit the pin of $1" "a pin with @sha256:..." "${found[*]}"
    fi
  fi
  # Once, images with torch for CPU and for CUDA had the same version.
  if is_one_of "$1" "${TORCH_STAGES[@]}" && [[ $PIN_VERSION != *-* ]]; then
    note=": it names no variant, write $PIN_VERSION-cuda or $PIN_VERSION-cpu"
  fi
  [[ -r $SIF ]] || fail "$MISSING" "no SIF of $1" "$SIF" "$(cd "$folder" 2>/dev/null && echo "${1}"_*.sif)" \
    "$(sif_order "$1") SIF_DIR=$folder, or correct $(stage_key "$1")_IMAGE in images.env$note" \
    "the folder is images in [cluster] of experiment.toml; for a stage by hand it may also be LSDFLOW_IMAGES"
}

# sif_order STAGE: the command that makes the SIF of the pin; the version of an image with torch or tensorflow names the variant.
sif_order() {
  local more=''
  case $PIN_VERSION in
    *-cuda-tensorflow) more=' BACKEND=tensorflow TORCH=cuda' ;;
    *-tensorflow) more=' BACKEND=tensorflow TORCH=cpu' ;;
    *-cpu | *-cuda | *-cuda12) more=" TORCH=${PIN_VERSION##*-}" ;;
  esac
  printf 'make sif STAGE=%s%s' "$1" "$more"
}

# label NAME LABELS: the value of a label in what `singularity inspect --labels` printed.
label() { awk -v name="$1: " 'index($0, name) == 1 { print substr($0, length(name) + 1); exit }' <<<"$2"; }

# check_sif STAGE: refuses a SIF that is not what the pin says.
check_sif() {
  local labels wanted found
  labels=$("$(setting SINGULARITY singularity)" inspect --labels "$SIF") || fail "$MISSING" "the SIF cannot be read" "$SIF"
  found="$(label lsdflow.stage "$labels") $(label org.opencontainers.image.version "$labels")"
  SIF_DIGEST=$(label lsdflow.image.digest "$labels")
  wanted="$1 $PIN_VERSION"
  if [[ -n $PIN_DIGEST ]]; then
    wanted+=" $PIN_DIGEST"
    found+=" $SIF_DIGEST"
  fi
  [[ $wanted == "$found" ]] || fail "$MISMATCH" "$SIF is another image than the pinned one" "$wanted" "$found" \
    "convert the pinned image again ($(sif_order "$1")), or correct $(stage_key "$1")_IMAGE in images.env"
}

# --- a program in a job -----------------------------------------------------------------------------------------------
job_id() {
  if [[ -n ${SLURM_ARRAY_JOB_ID:-} ]]; then
    printf '%s_%s' "$SLURM_ARRAY_JOB_ID" "$SLURM_ARRAY_TASK_ID"
  else
    printf '%s' "${SLURM_JOB_ID:-0}"
  fi
}

# is_in_queue JOB: pending or running. Also true if SLURM does not answer: a needless restart does no harm.
is_in_queue() {
  local found
  found=$(squeue --noheader --jobs="$1" --states=PENDING,CONFIGURING,RUNNING,SUSPENDED,REQUEUED,REQUEUE_HOLD --format=%T 2>&1) || {
    [[ $found != *'Invalid job id'* ]]
    return
  }
  [[ -n $found ]]
}

SIGNAL='' COORDINATOR='' # the last signal that the job received; of a worker: its coordinator's job
# run_and_wait COMMAND...: in the background, so that this shell handles signals at once; it forwards them as TERM. Sets CODE.
# (bash delays a signal while a command runs in the foreground, and SLURM would kill the program without a warning.)
run_and_wait() {
  local child before code
  show "$@" >&2
  "$@" &
  child=$!
  trap 'SIGNAL=TERM; kill -TERM "$child" 2>/dev/null || true' TERM INT
  trap 'SIGNAL=USR2; kill -TERM "$child" 2>/dev/null || true' USR2
  CODE=-1
  while :; do
    before=$SIGNAL code=0
    SIGNAL=''
    wait "$child" || code=$?
    if [[ -z $SIGNAL ]]; then # the child ended; a signal did not end `wait`
      SIGNAL=$before
      if ((code != 127 || CODE < 0)); then CODE=$code; fi
      break
    fi
    CODE=$code
  done
  # From here on a signal changes nothing: a requeue ends this shell with TERM before it ends itself.
  trap '' TERM INT USR2
}

# end_job: exits with CODE. An interrupted job first returns to the queue under its own number, so that jobs which wait for
# it still do. It does not after TERM: that is scancel, or a preemption or time limit after which SLURM itself decides.
end_job() {
  local restarts=${SLURM_RESTART_COUNT:-0} most
  most=$(setting MAX_RESTARTS 20)
  say "$STAGE: ended with exit code $CODE${SIGNAL:+ after SIG$SIGNAL}"
  if ((CODE != INTERRUPTED)) || [[ $SIGNAL == TERM || -z ${SLURM_JOB_ID:-} ]]; then exit "$CODE"; fi
  if [[ -n $COORDINATOR ]] && ! is_in_queue "$COORDINATOR"; then
    say "the coordinator, job $COORDINATOR, is gone: this worker does not return to the queue"
    exit 0
  fi
  ((restarts < most)) || fail "$INTERNAL" "$STAGE was interrupted again after $restarts restarts" "at most $most" '' \
    'read the log; submitted again, the stage resumes: finished blocks are kept'
  say "$ scontrol requeue $(job_id)"
  scontrol requeue "$(job_id)" || fail "$NO_SERVICE" "the job could not be put back into the queue" '' '' 'submit it again (lsdflow submit)'
  exit "$CODE"
}
