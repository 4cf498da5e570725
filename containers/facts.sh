# Read by the scripts beside it: what a stage, its version, an image and its digest are.
# shellcheck shell=bash
TOOL=${CONTAINER_TOOL:-docker}
PYTHON=${PYTHON:-python3.11}
BACKEND=${BACKEND:-torch}
TORCH=${TORCH:-cuda}
STAGES=(prepare train-lsd train-acrlsd predict watershed agglomerate segment evaluate)

# known_stage NAME: the name, or the list of names and exit code 2.
known_stage() {
  local stage
  for stage in "${STAGES[@]}"; do
    if [[ $stage == "$1" ]]; then
      echo "$stage"
      return
    fi
  done
  printf 'error: no such stage: %s\n   one of: %s\n' "${1:-(none given)}" "${STAGES[*]}" >&2
  return 2
}

# version_of FOLDER: the version in stages/FOLDER/pyproject.toml.
version_of() {
  sed -n 's/^version = "\(.*\)"$/\1/p' "stages/$1/pyproject.toml" | head -1
}

# has_backends STAGE: whether its image has a variant for training with tensorflow.
has_backends() { grep -q '^ARG BACKEND$' "containers/$1/Dockerfile"; }

# image_version STAGE: the version of its image, which names the variant of a stage that uses torch: 0.1.0-cpu, 0.1.0-cuda,
# 0.1.0-tensorflow. Exit code 2 if there is no such variant.
image_version() {
  if [[ ! $TORCH =~ ^(cpu|cuda)$ ]]; then
    printf 'error: no such variant of torch: %s\n   one of: cpu cuda\n' "$TORCH" >&2
    return 2
  fi
  case $BACKEND in
    torch) printf '%s%s\n' "$(version_of "$1")" "$(if uses_torch "$1"; then echo "-$TORCH"; fi)" ;;
    tensorflow)
      has_backends "$1" || {
        printf 'error: the image of %s has no variant with tensorflow\n   those that have: train-lsd train-acrlsd\n' "$1" >&2
        return 2
      }
      printf '%s-%s\n' "$(version_of "$1")" "$BACKEND"
      ;;
    *)
      printf 'error: no such backend: %s\n   one of: torch tensorflow\n' "$BACKEND" >&2
      return 2
      ;;
  esac
}

# order_of STAGE: how the image is asked of make.
order_of() {
  local more=''
  if uses_torch "$1"; then more=" TORCH=$TORCH"; fi
  [[ $BACKEND == torch ]] || more=" BACKEND=$BACKEND TORCH=cpu"
  printf 'make image STAGE=%s%s' "$1" "$more"
}

uses_torch() { [[ -e stages/$1/cuda.lock ]]; }

# The commit, with -dirty when what an image is made of differs from it.
revision_of_checkout() {
  local revision
  revision=$(git rev-parse HEAD 2>/dev/null) || { echo unknown; return; }
  if [[ -n $(git status --porcelain -- stages containers .dockerignore) ]]; then revision+=-dirty; fi
  echo "$revision"
}

# $SOURCE_URL, or where the checkout came from if that is a public kind of address (no folder, no name or password).
source_address() {
  local origin=${SOURCE_URL:-$(git remote get-url origin 2>/dev/null || true)}
  if [[ $origin == https://* && $origin != *@* ]]; then echo "$origin"; else echo unknown; fi
}

have_image() { "$TOOL" image inspect "$1" >/dev/null 2>&1; }

# digest_of IMAGE: the registry's digest, or for an image that no registry has seen, its id; sha256:...
digest_of() {
  local found
  found=$("$TOOL" image inspect --format '{{range .RepoDigests}}{{println .}}{{end}}' "$1" | sed -n 's/.*@\(sha256:.*\)/\1/p' | head -1)
  [[ -n $found ]] || found=$("$TOOL" image inspect --format '{{.Id}}' "$1")
  [[ $found == sha256:* ]] || found=sha256:$found # podman leaves the prefix out
  echo "$found"
}
