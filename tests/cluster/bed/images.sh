# shellcheck shell=bash
# Docker Engine and the base images that stage images are built on. Sourced by bed.sh.
#
# There may be no image registry within reach, so stand-ins under the public names are made from the Debian mirror that
# apt uses. The base image alone carries what this machine needs to reach its package indexes (its certificates, a
# pip.conf written at run time from pip's own settings), so Dockerfiles name no index and no certificate.

BASE_IMAGE=debian:bookworm-slim

start_docker() {
  docker version >/dev/null 2>&1 && return       # the machine has one running
  local socket=${DOCKER_HOST#unix://}
  rm -f "$BED/run/dockerd.pid"
  start_daemon dockerd dockerd --host "unix://$socket" --data-root "$BED_DOCKER_ROOT" \
    --exec-root "$BED/run/docker" --pidfile "$BED/run/dockerd.pid"
  wait_for 30 docker version
}

# Local folders that pip is configured with are served on the bridge: builds cannot see the machine's file system.
start_file_server() {
  "$BED_PYTHON" "$BED_SOURCE/pip_for_images.py" "http://$HEAD_ADDRESS:$FILE_PORT" "$BED/served" \
    --certificates /etc/lsdflow-bed/ca.crt >"$BED/pip.conf.new" < <("$BED_PIP" -m pip config list)
  if [[ -d $BED/served ]]; then
    start_daemon files python3 -m http.server "$FILE_PORT" --bind "$HEAD_ADDRESS" --directory "$BED/served"
  fi
  mv "$BED/pip.conf.new" "$BED/pip.conf"
}

# Earlier runs leave some 6 GB each: SIFs (the newest of each image stays), killed conversions, images without a name,
# build cache. A Docker Engine that the bed did not start is left alone.
free_disk() {
  local image
  rm -rf "$BED/shared"/images/.convert-*
  for image in $(find "$BED/shared" -path "$BED/shared/images/*.sif" -printf '%f\n' | sed 's/_[0-9a-f]*[.]sif$//' | sort -u); do
    find "$BED/shared/images" -name "${image}_*.sif" -printf '%T@ %p\n' | sort -rn | sed '1d;s/^[^ ]* //' | xargs -r rm -f
  done
  running dockerd || return 0
  docker image prune --force >>"$BED/log/images.log" 2>&1
  if ! docker builder prune --force --keep-storage 8GB >>"$BED/log/images.log" 2>&1; then
    say "the build cache cannot be pruned, because a build was killed; Docker starts with an empty folder"
    stop_daemon dockerd
    rm -rf "$BED_DOCKER_ROOT"
    start_docker
  fi
}

make_base_images() {
  has_image $BASE_IMAGE || make_debian
  has_image python:3.11-slim || build_standin python:3.11-slim "$BED_SOURCE/images"
  has_image mongo:6 || make_mongo
}

has_image() { docker image inspect "$1" >/dev/null 2>&1; }

make_debian() {
  say "making $BASE_IMAGE"
  local root=$BED/image-files
  rm -rf "$root"
  mkdir -p "$root/etc/lsdflow-bed" "$root/etc/apt/apt.conf.d"
  cp /etc/ssl/certs/ca-certificates.crt "$root/etc/lsdflow-bed/ca.crt"
  cp "$BED/pip.conf" "$root/etc/pip.conf"
  find /etc/apt/apt.conf.d -name '99*' -exec cp {} "$root/etc/apt/apt.conf.d/" \;   # how this machine reaches its mirror
  mmdebstrap --quiet --variant=minbase --customize-hook="copy-in $root/etc /" \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' bookworm - "$(apt_sources)" 2>"$BED/log/mmdebstrap.log" |
    docker import --change 'CMD ["bash"]' --change 'ENV SSL_CERT_FILE=/etc/lsdflow-bed/ca.crt' - $BASE_IMAGE >/dev/null ||
    impossible "no base image can be made from the Debian mirror: see $BED/log/mmdebstrap.log"
}

# The machine's own Debian sources; the classic one-file form or the newer one.
apt_sources() {
  local file=/etc/apt/sources.list.d/debian.sources
  if [[ -s $file ]]; then echo $file; else echo /etc/apt/sources.list; fi
}

make_mongo() {
  local context=$BED/mongo-image
  mkdir -p "$context"
  ln -f "$BED/bin/mongod" "$context/mongod"
  build_standin mongo:6 "$context"
}

# build_standin NAME CONTEXT: from images/<repository>.Dockerfile
build_standin() {
  say "making $1"
  docker build --quiet --tag "$1" --file "$BED_SOURCE/images/${1%%:*}.Dockerfile" "$2" >>"$BED/log/images.log" 2>&1 || {
    tail -n 20 "$BED/log/images.log" >&2
    return 1
  }
}
