#!/usr/bin/env bash
# build.sh STAGE: the image lsdflow/<stage>:<version> of this checkout.
#
#   CONTAINER_TOOL  docker (default), or podman
#   TORCH           cuda (default), or cpu: the variant of the stages that use torch, as <version>-cuda or <version>-cpu
#   BACKEND         torch (default), or tensorflow: train-lsd and train-acrlsd as <version>-tensorflow, TORCH=cpu only
#   BASE_IMAGE, BASE_DIGEST, SOURCE_URL    the base, its digest (for releases), the address of the source (default: origin's)
#   BUILD_ARGS      further options, such as --no-cache or --build-arg PIP_EXTRA_INDEX_URL=...
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=containers/facts.sh
source containers/facts.sh

stage=$(known_stage "${1:-}")
version=$(image_version "$stage")
revision=$(revision_of_checkout)
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 315532800)}
image=lsdflow/$stage:$version

if [[ $BACKEND == tensorflow && ! -e stages/_tensorflow/$TORCH.lock ]]; then
  printf 'error: no image of %s for TORCH=%s: tensorflow is locked for CPUs only\n   fix: %s\n' \
    "$stage" "$TORCH" "$(order_of "$stage")" >&2
  exit 78
fi

# A machine without a registry has a stand-in under the shorter name.
if [[ -z ${BASE_IMAGE:-} ]]; then
  BASE_IMAGE=python:3.11-slim-bookworm
  have_image "$BASE_IMAGE" || "$TOOL" pull -q "$BASE_IMAGE" >/dev/null 2>&1 || BASE_IMAGE=python:3.11-slim
fi
if [[ -n ${BASE_DIGEST:-} ]]; then
  base_found=$BASE_DIGEST
else
  have_image "$BASE_IMAGE" || "$TOOL" pull -q "$BASE_IMAGE" >/dev/null
  base_found=$(digest_of "$BASE_IMAGE")
fi

"$PYTHON" containers/ledger.py may-build "$stage"

options=(
  --file -
  --tag "$image"
  --build-arg "BASE_IMAGE=$BASE_IMAGE"
  --build-arg "BASE_DIGEST=${BASE_DIGEST:-}"
  --build-arg "BASE_FOUND=$base_found"
  --build-arg "VERSION=$version"
  --build-arg "REVISION=$revision"
  --build-arg "CREATED=$(date --utc --date="@$epoch" +%Y-%m-%dT%H:%M:%SZ)"
  --build-arg "CONTRACT=$(version_of _contract)"
  --build-arg "SOURCE=$(source_address)"
  --build-arg "SOURCE_DATE_EPOCH=$epoch"
)
if uses_torch "$stage"; then options+=(--build-arg "TORCH=$TORCH"); fi
if [[ $BACKEND != torch ]]; then options+=(--build-arg "BACKEND=$BACKEND"); fi
read -ra more <<<"${BUILD_ARGS:-}"

started=$SECONDS
# The Dockerfile comes by stdin: BuildKit knows files of a folder by size and time alone, and two Dockerfiles of one
# fresh clone can be equal in both. It then builds another stage than it was asked for (seen); hence also the check.
DOCKER_BUILDKIT=1 "$TOOL" build "${options[@]}" "${more[@]}" . <"containers/$stage/Dockerfile"
made=$("$TOOL" image inspect --format '{{index .Config.Labels "lsdflow.stage"}} {{index .Config.Labels "org.opencontainers.image.version"}}' "$image")
if [[ $made != "$stage $version" ]]; then
  printf 'error: the build of %s made the image of another: %s\n' "$image" "$made" >&2
  exit 70
fi
size=$("$TOOL" image inspect --format '{{.Size}}' "$image")
printf '%s  %s  %d MB  base %s  %d s\n' "$image" "$(digest_of "$image")" $((size / 1000000)) "$BASE_IMAGE" $((SECONDS - started))
