# A whole stage in one job, submitted by a person: read by main of _common.sh, whose functions it uses.
# shellcheck shell=bash
# shellcheck disable=SC2034 # _common.sh reads what is set here

# usage: for `bash slurm_wrappers/<stage>.sbatch --help`, and in the log of a job without arguments.
usage() {
  cat <<USAGE
usage: sbatch [RESOURCES] slurm_wrappers/$STAGE.sbatch EXPERIMENT [VERB] [OPTIONS]

Runs the whole stage $STAGE of an experiment in one job, in the image that EXPERIMENT/images.env pins.

  EXPERIMENT  the folder of the experiment, or its experiment.toml; relative to the folder where sbatch is called
  VERB        run (default), verify or another verb of the stage
  OPTIONS     of the stage, such as --set $STAGE.KEY=VALUE
  RESOURCES   of sbatch, such as --partition=P --cpus-per-task=16 --mem=64G --time=1-00:00:00 --gres=gpu:1
              default: $(sed -n 's/^#SBATCH \(--cpus-per-task.*\)/\1/p' "$(dirname "${BASH_SOURCE[0]}")/$STAGE.sbatch")

The image is a SIF named ${STAGE}_VERSION_DIGEST.sif. Its folder is \`images\` of [cluster] in experiment.toml; if that is not
set, \$LSDFLOW_IMAGES; if that is not set, EXPERIMENT/images. To make it, on a machine with docker:
  make image STAGE=$STAGE && make sif STAGE=$STAGE SIF_DIR=FOLDER && make pins STAGE=$STAGE PINS=EXPERIMENT/images.env
Inputs outside of EXPERIMENT are bound read-only; for further folders set \$APPTAINER_BIND or \$SINGULARITY_BIND.
The log is $STAGE.JOB.log in the folder where sbatch was called. Two minutes before its time limit the job goes back into the
queue, and then resumes. The job ends with the exit code of the stage: 0 means done.
USAGE
}

# by_hand EXPERIMENT [VERB] [OPTIONS]: ends the job.
by_hand() {
  local verb=run
  case ${1:-} in
    '') usage >&2 && exit 2 ;;
    -h | --help) usage && exit ;;
  esac
  find_experiment "$1"
  shift
  if [[ ${1:-} =~ ^[a-z] ]]; then verb=$1 && shift; fi
  ((${SLURM_NNODES:-1} == 1)) || fail 2 'a stage by hand runs on one node' '--nodes=1' "$SLURM_NNODES nodes" \
    "lsdflow submit $EXPERIMENT, which shares the work among nodes"
  SETTING[SINGULARITY]=$(command -v singularity || command -v apptainer) ||
    fail "$MISSING" 'neither singularity nor apptainer is on this node' '' "PATH=$PATH"
  SETTING[IMAGES]=$(images_folder)
  SETTING[MONGO_URI_FILE]=${MONGO_URI_FILE:-}
  SUBMISSION='' PINS=$EXPERIMENT/images.env
  begin_job
  bind_inputs "$@"
  run_stage "$verb" --set compute.runner=daisy --set "compute.workers=$(worker_processes)" "$@"
}

# find_experiment FOLDER_OR_FILE: sets EXPERIMENT and EXPERIMENT_FILE, absolute.
find_experiment() {
  local file=$1
  if [[ ! -f $file ]]; then file=$file/experiment.toml; fi
  [[ -r $file ]] || fail "$MISSING" 'no experiment file' 'the folder of an experiment, or its experiment.toml' "$file, in $PWD" \
    "lsdflow init $1 ..., or: bash slurm_wrappers/$STAGE.sbatch --help"
  EXPERIMENT=$(cd "$(dirname "$file")" && pwd -P)
  EXPERIMENT_FILE=$EXPERIMENT/$(basename "$file")
  require_plain_path "$EXPERIMENT"
}

# images_folder: where the SIFs are, absolute; usage says how it is chosen.
images_folder() {
  local named
  named=$(toml_text cluster images)
  if [[ -z $named && -n ${LSDFLOW_IMAGES:-} ]]; then named=$(realpath --canonicalize-missing --no-symlinks -- "$LSDFLOW_IMAGES"); fi
  absolute "${named:-images}"
}

# absolute PATH: as the experiment file means it, relative to its folder.
absolute() {
  local path=$1
  if [[ $path != /* ]]; then path=$EXPERIMENT/$path; fi
  realpath --canonicalize-missing --no-symlinks -- "$path"
}

# toml_text TABLE KEY: the text of a line KEY = "text" under [TABLE] of the experiment file; nothing if it is not written so.
# (There may be no Python on the node, and the image, which has one, is what is looked for.)
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

# bind_inputs OPTIONS: binds, to be read, what the experiment or the options name outside of its folder. Every quoted text that
# is the name of an existing file or folder counts: to bind one too many does no harm.
bind_inputs() {
  local text path
  while IFS= read -r text; do
    if [[ -z $text ]]; then continue; fi
    path=$(absolute "$text")
    case $path in # the whole container of an array: its metadata may be above the array
      *.zarr/*) path=${path%%.zarr/*}.zarr ;;
      *.n5/*) path=${path%%.n5/*}.n5 ;;
    esac
    if [[ ! -e $path || $path == / || $path/ == "$EXPERIMENT/"* ]] || is_one_of "$path" ${BINDS_RO[@]+"${BINDS_RO[@]}"}; then continue; fi
    [[ ! $path =~ [:,] ]] || fail "$BAD_CONFIG" 'a path with : or , cannot be bound' '' "$path" 'rename it, or use a link'
    BINDS_RO+=("$path")
  done < <(grep -o "\"[^\"]*\"\|'[^']*'" "$EXPERIMENT_FILE" | sed 's/^.//; s/.$//'; printf '%s\n' "${@#*=}")
}

# worker_processes: one on each core of the job; of predict with GPUs, one on each GPU.
worker_processes() {
  local -a gpus
  IFS=, read -ra gpus <<<"${CUDA_VISIBLE_DEVICES:-}"
  if [[ $STAGE == predict && ${#gpus[@]} -gt 0 ]]; then
    printf '%s' "${#gpus[@]}"
  else
    printf '%s' "${SLURM_CPUS_PER_TASK:-$(nproc)}"
  fi
}
