# Read by the scripts beside it: what a stage, its version, an image and its digest are.
# shellcheck shell=bash
TOOL=${CONTAINER_TOOL:-docker}
PYTHON=${PYTHON:-python3.11}
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
