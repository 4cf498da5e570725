#!/usr/bin/env bash
# bed.sh - a small real cluster on one Debian 12 machine, as root: Docker Engine, Apptainer, SLURM with two nodes, and
# a mongod that wants a password.
#
#   bed.sh up        install what is missing and start what does not run; again is harmless
#   bed.sh down      stop all of it; packages, images and files of the shared storage stay
#   bed.sh status    what runs
#   bed.sh crash N   node n1 or n2 loses its power          bed.sh boot N   and comes back
#   bed.sh cut N     its network cable is pulled            bed.sh heal N   and put back
#   bed.sh restart-mongo [SECONDS]   mongod is killed and, after a pause, started again on the same files
#
# This machine is head and login node. Settings: settings.sh. Code 3: the machine cannot carry the bed (said why).
set -euo pipefail
export LC_ALL=C.UTF-8
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd /
for part in settings software images slurm node mongo; do
  # shellcheck source=/dev/null
  . "$here/$part.sh"
done

make_folders() {
  mkdir -p "$BED"/{run,log,debs,bin,shared} "$BED_SHARED"
  chmod 755 "$BED"
  chmod 1777 "$BED/shared"
  mountpoint -q "$BED_SHARED" || mount --bind "$BED/shared" "$BED_SHARED"
}

make_users() {
  local user
  for user in "${USERS[@]}"; do
    id "${user%:*}" >/dev/null 2>&1 || useradd --create-home --shell /bin/bash --uid "${user#*:}" "${user%:*}"
    install -d -o "${user%:*}" -g "${user%:*}" "$BED_SHARED/${user%:*}"
  done
}

start_nodes() {
  local node
  for node in "${NODES[@]}"; do boot "$node"; done
  wait_for 40 nodes_are_up
}

foreign_cluster() { [[ ! -e $BED/run/slurmctld ]] && timeout 5 scontrol ping 2>/dev/null | grep -q UP; }

up() {
  check_machine
  ! foreign_cluster || impossible "another SLURM controller runs here"
  mkdir -p "$BED/log"
  step "folders" make_folders
  step "software" install_software
  step "users" make_users
  step "network" make_network
  step "docker" start_docker
  step "disk" free_disk
  step "local package folders" start_file_server
  step "base images" make_base_images
  step "mongod" start_mongo
  step "munge" start_munge
  step "SLURM configuration" write_slurm_config
  step "accounting" start_accounting
  step "controller" start_controller
  step "nodes" start_nodes
}

down() {
  local node user
  if running slurmctld; then
    for user in "${USERS[@]%:*}"; do timeout 5 scancel -u "$user" 2>/dev/null || true; done
  fi
  for node in "${NODES[@]}"; do crash "$node"; done
  local daemon
  for daemon in slurmctld slurmdbd mariadb munged mongod dockerd files; do stop_daemon "$daemon"; done
  remove_cgroups
  [[ ! -d $BED/nodes ]] || remove_network
  ! mountpoint -q "$BED_SHARED" || umount -l "$BED_SHARED"
}

status() {
  local daemon
  for daemon in dockerd files mongod munged mariadb slurmdbd slurmctld "${NODES[@]/#/node-}"; do
    if running "$daemon"; then echo "$daemon: runs ($(pid_of "$daemon"))"; else echo "$daemon: does not run"; fi
  done
  timeout 5 sinfo -N -o '%8N %10P %8t %10G %E' || true
  timeout 5 squeue || true
}

case ${1:-} in
  up | down) step "$1, all of it" "$1" ;;
  status) status ;;
  crash | boot) is_node "${2:-}" && "$1" "$2" ;;
  cut | heal) is_node "${2:-}" && "$1_cable" "$2" ;;
  restart-mongo) restart_mongo "${2:-2}" ;;
  *)
    sed -n '2,12p' "$here/bed.sh" >&2
    exit 2
    ;;
esac
