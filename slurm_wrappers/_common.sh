# Read by every script beside it: settings, the checked SIF of a stage, the container's command line, signals, requeue.
# shellcheck shell=bash
#
# Nothing here evaluates text: settings and pins are read line by line, and every command is an array.

# The words of the exit codes that are used here; all of them: README.md of the project.
readonly MISSING=66 NO_SERVICE=69 INTERNAL=70 INTERRUPTED=75 MISMATCH=76 BAD_CONFIG=78
readonly REPORT_SECONDS=600
# shellcheck disable=SC2034 # pipeline.sh reads them
readonly -a ALL_STAGES=(prepare train-lsd train-acrlsd predict watershed agglomerate segment evaluate)
readonly -a TORCH_STAGES=(train-lsd train-acrlsd predict)
readonly -a BLOCK_STAGES=(predict watershed agglomerate segment evaluate)

# fail CODE WHAT [WANTED [FOUND [TO_DO [NOTE]]]]: the message in the form of all lsdflow commands, and the end.
fail() {
  local code=$1 name text
  printf 'error: %s\n' "$2" >&2
  shift 2
  for name in wanted found fix note; do
    text=${1:-}
    shift || true
    if [[ -n $text ]]; then printf '%8s: %s\n' "$name" "$text" >&2; fi
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
  local word=$1 other
  shift
  for other in "$@"; do [[ $word != "$other" ]] || return 0; done
  return 1
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

# read_settings FILE [NAME]: lines KEY='value' (no quote inside); SET, BIND, BIND_RO and SBATCH_OPTION may stand many times.
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

# --- the image of a stage -------------------------------------------------------------------------------------------
# read_pin STAGE FILE: sets PIN_VERSION, PIN_DIGEST (or empty) from the line <STAGE>_IMAGE=name:version[@sha256:...].
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

# sif_order STAGE: the command that makes the SIF of the pin; the version of an image with torch or tensorflow names the variant.
sif_order() {
  local more=''
  case $PIN_VERSION in
    *-cuda-tensorflow) more=' BACKEND=tensorflow TORCH=cuda' ;;
    *-tensorflow) more=' BACKEND=tensorflow TORCH=cpu' ;;
    *-cpu | *-cuda) more=" TORCH=${PIN_VERSION##*-}" ;;
  esac
  printf 'make sif STAGE=%s%s' "$1" "$more"
}

# variant_fix STAGE: for a pin of the time when images with torch for CPU and for CUDA had the same version.
variant_fix() {
  if is_one_of "$1" "${TORCH_STAGES[@]}" && [[ $PIN_VERSION != *-* ]]; then
    printf ': it names no variant, write %s-cuda or %s-cpu' "$PIN_VERSION" "$PIN_VERSION"
  fi
}

# find_sif STAGE: sets SIF, the file of the pin in the folder IMAGES.
find_sif() {
  local folder stem hex=${PIN_DIGEST#sha256:}
  local -a there=()
  folder=$(setting IMAGES)
  stem=$folder/${1}_$PIN_VERSION
  if [[ -n $hex ]]; then
    SIF=${stem}_${hex:0:12}.sif
  else
    SIF=$stem.sif
    if [[ ! -e $SIF ]]; then
      shopt -s nullglob
      there=("$stem"_*.sif)
      shopt -u nullglob
      if ((${#there[@]} == 1)); then SIF=${there[0]}; fi
      ((${#there[@]} < 2)) || fail "$MISMATCH" "several SIFs fit the pin of $1" "a pin with @sha256:..." "${there[*]}"
    fi
  fi
  [[ -r $SIF ]] || fail "$MISSING" "no SIF of $1" "$SIF" "$(cd "$folder" 2>/dev/null && echo "${1}"_*.sif)" \
    "$(sif_order "$1") SIF_DIR=$folder, or correct $(stage_key "$1")_IMAGE in images.env$(variant_fix "$1")" \
    "the folder is images in [cluster] of experiment.toml; for a stage by hand it may also be LSDFLOW_IMAGES"
}

# label NAME LABELS: the value of a label in what `singularity inspect --labels` printed.
label() { awk -v name="$1: " 'index($0, name) == 1 { print substr($0, length(name) + 1); exit }' <<<"$2"; }

# check_sif STAGE: refuses a SIF that is not what the pin says. Sets SIF_DIGEST.
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

# use_image STAGE PINS
use_image() {
  read_pin "$1" "$2"
  find_sif "$1"
  check_sif "$1"
}

# --- the job --------------------------------------------------------------------------------------------------------
job_id() {
  if [[ -n ${SLURM_ARRAY_JOB_ID:-} ]]; then
    printf '%s_%s' "$SLURM_ARRAY_JOB_ID" "$SLURM_ARRAY_TASK_ID"
  else
    printf '%s' "${SLURM_JOB_ID:-0}"
  fi
}

# own_address: this node's address for the workers: of the interface named by INTERFACE, else the first; never loopback.
own_address() {
  local interface address
  interface=$(setting INTERFACE)
  if [[ -n $interface ]]; then
    address=$(ip -o -4 address show dev "$interface" | awk '{ sub("/.*", "", $4); print $4; exit }')
  else
    address=$(hostname -I | tr ' ' '\n' | grep -v -e '^127\.' -e '^::1$' -e '^$' | head -n 1)
  fi
  [[ -n $address ]] || fail "$BAD_CONFIG" "$(hostname) has no address that workers could reach" '' "${interface:-no interface}" \
    'set interface in [cluster]'
  printf '%s' "$address"
}

# main STAGE SUBMISSION ROLE, as pipeline.sh calls it; or main STAGE EXPERIMENT [VERB] [OPTIONS], as a person does.
main() {
  STAGE=$1
  shift
  if [[ -e ${1:-}/settings.env ]]; then
    begin "$1"
    take_role "${@:2}"
  else
    # shellcheck source=slurm_wrappers/_by_hand.sh
    source "$(dirname "${BASH_SOURCE[0]}")/_by_hand.sh"
    by_hand "$@"
  fi
}

# begin SUBMISSION: what a job of a submission needs before it takes its role.
begin() {
  SUBMISSION=$1 PINS=$1/images.env
  # sbatch --export=NONE would otherwise hold for the steps of srun as well.
  export SLURM_EXPORT_ENV=ALL
  read_settings "$SUBMISSION/settings.env"
  EXPERIMENT=$(setting EXPERIMENT)
  EXPERIMENT_FILE=$EXPERIMENT/experiment.toml
  begin_job
}

# begin_job: the checked SIF, and a private folder for temporary files.
begin_job() {
  say "$STAGE: job $(job_id) on $(hostname), restart ${SLURM_RESTART_COUNT:-0}"
  use_image "$STAGE" "$PINS"
  TEMPORARY=$(mktemp -d "${TMPDIR:-/tmp}/lsdflow-$(job_id)-XXXXXX")
  trap 'rm -rf -- "$TEMPORARY"' EXIT
}

declare -a CONTAINER_ENV=() # more variables of the container
# pass_on NAMES...: the container has, of these variables, those that are set here (--cleanenv leaves it none).
pass_on() {
  local name
  for name in "$@"; do
    if [[ -n ${!name:-} ]]; then CONTAINER_ENV+=(--env "$name=${!name}"); fi
  done
}

# container: fills COMMAND with `singularity exec ...` up to the SIF. `exec`, since `run` evaluates its arguments.
container() {
  local path uri_file
  COMMAND=("$(setting SINGULARITY singularity)" exec --nv --cleanenv --no-eval --no-home --no-mount tmp --pwd "$EXPERIMENT")
  for path in ${BINDS_RO[@]+"${BINDS_RO[@]}"}; do COMMAND+=(--bind "$path:$path:ro"); done
  for path in "$EXPERIMENT" ${BINDS[@]+"${BINDS[@]}"}; do COMMAND+=(--bind "$path"); done
  COMMAND+=(--bind "$TEMPORARY:/tmp" --env TMPDIR=/tmp)
  COMMAND+=(--env "LSDFLOW_IMAGE_DIGEST=${PIN_DIGEST:-$SIF_DIGEST}")
  if [[ -n $SUBMISSION ]]; then # a stage by hand has no workers in other jobs
    COMMAND+=(--env "LSDFLOW_HOST=$(own_address)" --env "LSDFLOW_SUBMISSION=${SUBMISSION##*/}")
  fi
  COMMAND+=(--env "LSDFLOW_JOB=$(job_id) restart ${SLURM_RESTART_COUNT:-0}")
  # What the job was given: where SLURM does not confine it to that, the container would see all of the node.
  pass_on SLURM_MEM_PER_NODE SLURM_MEM_PER_CPU CUDA_VISIBLE_DEVICES SLURM_CPUS_PER_TASK SLURM_JOB_CPUS_PER_NODE SLURM_TASKS_PER_NODE SLURM_NODEID
  uri_file=$(setting MONGO_URI_FILE)
  if [[ -n $uri_file ]]; then # the path only: what is in the file is seen by the stage alone
    COMMAND+=(--bind "$uri_file:$uri_file:ro" --env "MONGO_URI_FILE=$uri_file")
  fi
  COMMAND+=(${CONTAINER_ENV[@]+"${CONTAINER_ENV[@]}"} "$SIF")
}

# stage_arguments VERB [STAGE]: adds the stage's command to COMMAND.
stage_arguments() {
  local set
  COMMAND+=("${2:-$STAGE}" "$1" --experiment "$EXPERIMENT_FILE")
  for set in ${SETS[@]+"${SETS[@]}"}; do COMMAND+=(--set "$set"); done
}

# stage_command VERB: fills COMMAND with the whole line.
stage_command() {
  container
  stage_arguments "$1"
}

# run_stage VERB [OPTIONS]: the stage's command in its container; ends the job.
run_stage() {
  stage_command "$1"
  run_and_wait "${COMMAND[@]}" "${@:2}"
  end_job
}

TOLD='' # the last signal that came
# run_and_wait COMMAND...: in the background, so that signals reach this shell at once; passed on as TERM. Sets CODE.
# (bash lets a signal wait while a command runs in the foreground, and SLURM would kill the program unwarned.)
run_and_wait() {
  local child told_before code
  show "$@" >&2
  "$@" &
  child=$!
  trap 'TOLD=TERM; kill -TERM "$child" 2>/dev/null || true' TERM INT
  trap 'TOLD=USR2; kill -TERM "$child" 2>/dev/null || true' USR2
  CODE=-1
  while :; do
    told_before=$TOLD code=0
    TOLD=''
    wait "$child" || code=$?
    if [[ -z $TOLD ]]; then # not a signal that ended `wait`, but the child
      TOLD=$told_before
      if ((code != 127 || CODE < 0)); then CODE=$code; fi
      break
    fi
    CODE=$code
  done
  # From here on a signal changes nothing: a requeue ends this shell with TERM before it ends itself.
  trap '' TERM INT USR2
}

# end_job: with the program's exit code, unless the job comes back.
end_job() {
  say "$STAGE: ended with exit code $CODE${TOLD:+ after SIG$TOLD}"
  if ((CODE == INTERRUPTED)); then
    come_back
  elif ((CODE != 0)) && [[ -z $TOLD && -z ${COORDINATOR:-} && -n $SUBMISSION && $STAGE != evaluate ]]; then
    report || say "no report of the failure: lsdflow report $EXPERIMENT"
  fi
  exit "$CODE"
}

# report: the pages of what there is now, by the pinned image of evaluate: nothing that comes after a failure writes them.
report() (
  trap - TERM INT USR2
  use_image evaluate "$PINS"
  container
  stage_arguments report evaluate
  show "${COMMAND[@]}" >&2
  timeout --signal=KILL "$REPORT_SECONDS" "${COMMAND[@]}"
)

# come_back: an interrupted job goes back into the queue under its own number, so that jobs that wait for it still do.
# Not after TERM: that is scancel, or a preemption or time limit after which SLURM itself decides.
come_back() {
  local restarts=${SLURM_RESTART_COUNT:-0} most
  most=$(setting MAX_RESTARTS 20)
  if [[ $TOLD == TERM || -z ${SLURM_JOB_ID:-} ]]; then return; fi
  if [[ -n ${COORDINATOR:-} ]] && ! is_in_queue "$COORDINATOR"; then
    say "the coordinator, job $COORDINATOR, is gone: nothing to come back for"
    exit 0
  fi
  ((restarts < most)) || fail "$INTERNAL" "$STAGE was interrupted again after $restarts restarts" "at most $most" '' \
    'read the log; submitted again, the stage resumes: finished blocks are kept'
  say "$ scontrol requeue $(job_id)"
  scontrol requeue "$(job_id)" || fail "$NO_SERVICE" "the job could not be put back into the queue" '' '' 'submit it again (lsdflow submit)'
}

# is_in_queue JOB: pending or running. True as well if nobody answers: better to come back for nothing than not at all.
is_in_queue() {
  local found
  found=$(squeue --noheader --jobs="$1" --states=PENDING,CONFIGURING,RUNNING,SUSPENDED,REQUEUED,REQUEUE_HOLD --format=%T 2>&1) || {
    [[ $found != *'Invalid job id'* ]]
    return
  }
  [[ -n $found ]]
}

# --- roles ----------------------------------------------------------------------------------------------------------
# take_role ROLE [COORDINATOR]: what a job of a submission does for its stage.
take_role() {
  local kind=run
  if is_one_of "$STAGE" "${BLOCK_STAGES[@]}"; then kind=blocks; fi
  if [[ $STAGE == train-* ]]; then kind=training; fi
  case $kind:${1:-} in
    blocks:coordinate) run_stage run --set compute.runner=cluster ;; # hands blocks to the workers of other jobs
    blocks:work) work "$2" ;;
    blocks:verify) verify ;;
    training:run) train ;;
    training:step) step ;;
    run:run) run_stage run ;;
    *:verify) run_stage verify ;;
    *) fail 2 "no role ${1:-}" 'coordinate | work COORDINATOR_JOB | verify; of prepare and trainings: run | verify' ;;
  esac
}

# work COORDINATOR: takes blocks until there are none.
work() {
  COORDINATOR=$1
  run_stage worker
}

# verify: what the next stage waits for. The coordinator has ended, so that workers which have not begun need not; any
# that still run when all is looked at (of a coordinator that was cancelled, say) wait for nobody.
verify() {
  cancel_workers --state=PENDING
  stage_command verify
  run_and_wait "${COMMAND[@]}"
  if ((CODE != INTERRUPTED)); then cancel_workers; fi
  end_job
}

# cancel_workers [OPTIONS of scancel]
cancel_workers() {
  local stage role id rest
  while IFS=$'\t' read -r stage role id rest; do
    if [[ $stage == "$STAGE" && $role == workers ]]; then scancel --quiet "$@" "$id" || true; fi
  done <"$SUBMISSION/jobs.tsv"
}

# train: on one node the plain command; on several, one step a node, which meet at the address of this one, the first.
# The port is of the job, so that two jobs on a node do not meet.
train() {
  local -a cores=()
  if ((${SLURM_NNODES:-1} == 1)); then
    run_stage run
  fi
  # Since SLURM 22.05 a step does not take this over from its job: each would have a single core.
  if [[ -n ${SLURM_CPUS_PER_TASK:-} ]]; then cores=(--cpus-per-task="$SLURM_CPUS_PER_TASK"); fi
  MASTER_ADDR=$(own_address)
  export MASTER_ADDR MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
  run_and_wait srun --nodes="$SLURM_NNODES" --ntasks="$SLURM_NNODES" --ntasks-per-node=1 --kill-on-bad-exit=1 \
    ${cores[@]+"${cores[@]}"} bash "$SUBMISSION/$STAGE.sbatch" "$SUBMISSION" step
  # A step that was killed ends with 128 + KILL, which hides the 75 of the others: they can all go on.
  if ((CODE == 128 + 9)); then CODE=$INTERRUPTED; fi
  end_job
}

# step: one node's part of a training; it learns from SLURM's variables which part.
step() {
  local interface
  pass_on MASTER_ADDR MASTER_PORT SLURM_PROCID SLURM_NTASKS SLURM_LOCALID SLURM_NNODES SLURM_RESTART_COUNT
  # backend = "tensorflow" makes its cluster of these: workers at ports of the job on the nodes of the step.
  pass_on SLURM_JOB_ID SLURM_STEP_NUM_TASKS SLURM_STEP_NUM_NODES SLURM_STEP_NODELIST SLURM_STEP_TASKS_PER_NODE \
    SLURMD_NODENAME
  interface=$(setting INTERFACE)
  if [[ -n $interface ]]; then
    CONTAINER_ENV+=(--env "GLOO_SOCKET_IFNAME=$interface" --env "NCCL_SOCKET_IFNAME=$interface")
  fi
  stage_command run
  run_and_wait "${COMMAND[@]}"
  exit "$CODE"
}
