#!/usr/bin/env bash
# convert.sh STAGE: the SIF of an image, <stage>_<version>_<first 12 hex of the digest>.sif in SIF_DIR.
#
#   IMAGE     the image (default lsdflow/<stage>:<version> of this checkout)
#   TORCH     cuda (default), or cpu: the image <version>-cuda or <version>-cpu of a stage that uses torch
#   BACKEND   torch (default), or tensorflow: the image <version>-tensorflow
#   SIF_DIR   where to (default .cache/sif); an SIF that is there already stays
#   CONTAINER_TOOL  docker (default), or podman
# Labels, environment and entry point of the image come along; lsdflow.image.digest says which image it was.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=containers/facts.sh
source containers/facts.sh

stage=$(known_stage "${1:-}")
image=${IMAGE:-lsdflow/$stage:$(image_version "$stage")}
folder=${SIF_DIR:-.cache/sif}
apptainer=$(command -v apptainer || command -v singularity) || { echo "error: neither apptainer nor singularity is here" >&2; exit 66; }
have_image "$image" || { printf 'error: no image %s\n   fix: %s\n' "$image" "$(order_of "$stage")" >&2; exit 66; }

digest=$(digest_of "$image")
version=$("$TOOL" image inspect --format '{{index .Config.Labels "org.opencontainers.image.version"}}' "$image")
hex=${digest#sha256:}
sif=$folder/${stage}_${version}_${hex:0:12}.sif
if [[ -s $sif ]]; then
  touch "$sif" # the newest one of a version is that of this checkout
  echo "$sif is there"
  exit
fi

mkdir -p "$folder"
started=$SECONDS
work=$(mktemp -d "$folder/.convert-XXXXXX")
trap 'rm -rf "$work"' EXIT
"$TOOL" save "$image" | "$PYTHON" containers/oci_layout.py "$work/oci"
printf 'Bootstrap: oci\nFrom: oci\n' >"$work/definition"
printf '\n%%labels\n    lsdflow.image.digest %s\n' "$digest" >>"$work/definition"

# zstd at level 1: a quarter of gzip's time for a file a tenth larger. In its folder, since a label tells where from.
(cd "$work" && exec "$apptainer" --quiet build --disable-cache --tmpdir "${TMPDIR:-/tmp}" \
  --mksquashfs-args '-comp zstd -Xcompression-level 1' made.sif definition)
chmod 0644 "$work/made.sif"
mv "$work/made.sif" "$sif"
printf '%s  %d MB  %d s\n' "$sif" $(($(stat -c %s "$sif") / 1000000)) $((SECONDS - started))
