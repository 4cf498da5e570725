#!/usr/bin/env bash
# One node: a set of namespaces (network, processes, mounts, host name, cgroups) on the bed's bridge. With its own
# address, loopback, /tmp and process table it shows what two machines show: a server bound to 127.0.0.1 is not found
# by the other node, and a node can really die. /home, the shared storage and /etc/slurm are the head's.
#
# Sourced by bed.sh for boot, crash, cut and heal; run as `node.sh NAME` it is process 1 of a node.
set -euo pipefail

# The programs of a node see cgroup trees that begin at the node, so that limits of one node are not the other's.
own_cgroups() {
  local group
  has_cgroup_v1 || return 0
  for group in "${CGROUP_V1[@]}"; do
    umount "/sys/fs/cgroup/$group"
    mount -t cgroup -o "$group" cgroup "/sys/fs/cgroup/$group"
  done
}

# Paths that are the node's own: the hosts file, slurmd's spool, /tmp.
own_paths() {
  local files=$BED/nodes/$1
  mount --bind "$BED/nodes/hosts" /etc/hosts
  mkdir -p /var/spool/slurmd
  mount --bind "$files/spool" /var/spool/slurmd
  if [[ $BED == /tmp/* ]]; then                 # keep the bed in sight if it is under the head's /tmp
    mount --bind "$BED" /mnt
    mount --bind "$files/tmp" /tmp
    mkdir -p "$BED"
    mount --move /mnt "$BED"
  else
    mount --bind "$files/tmp" /tmp
  fi
}

be_node() {
  hostname "$1"
  mount --make-rprivate /
  own_paths "$1"
  own_cgroups
  cd /
  ulimit -n 4096
  # slurmd is not process 1 itself: if it alone dies, the node's jobs live on, as on a real node.
  slurmd -D &
  wait $! || true
  exec sleep infinity
}

make_network() {
  local other
  other=$(ip -4 -br addr show to "$BED_NET.0/24" | cut -d' ' -f1 | grep -vx "$BRIDGE" | head -n 1 || true)
  [[ -z $other ]] || impossible "$other has an address in $BED_NET.0/24 already; set LSDFLOW_BED_NET to a free network, as in 10.98.7"
  ip link show "$BRIDGE" >/dev/null 2>&1 || ip link add "$BRIDGE" type bridge
  ip addr replace "$HEAD_ADDRESS/24" dev "$BRIDGE"
  ip link set "$BRIDGE" up
  # Docker drops forwarded packets, and with bridge filtering that means those between the nodes too.
  iptables -C FORWARD -i "$BRIDGE" -o "$BRIDGE" -j ACCEPT 2>/dev/null ||
    iptables -I FORWARD -i "$BRIDGE" -o "$BRIDGE" -j ACCEPT
  write_hosts
}

write_hosts() {
  local node
  mkdir -p "$BED/nodes"
  {
    echo "127.0.0.1 localhost"
    echo "$HEAD_ADDRESS head $(hostname -s)"
    for node in "${NODES[@]}"; do echo "$(address_of "$node") $node"; done
  } >"$BED/nodes/hosts"
  {
    sed '/# lsdflow bed$/d' /etc/hosts
    sed '1d; s/$/ # lsdflow bed/; s/^\([^ ]* head\) [^ ]*/\1/' "$BED/nodes/hosts"
  } >"$BED/nodes/hosts.head"
  cat "$BED/nodes/hosts.head" >/etc/hosts
}

remove_network() {
  iptables -D FORWARD -i "$BRIDGE" -o "$BRIDGE" -j ACCEPT 2>/dev/null || true
  ip link del "$BRIDGE" 2>/dev/null || true
  sed '/# lsdflow bed$/d' /etc/hosts >"$BED/nodes/hosts.head"
  cat "$BED/nodes/hosts.head" >/etc/hosts
}

is_node() { [[ " ${NODES[*]} " == *" $1 "* ]] || { say "no node '$1'; there are ${NODES[*]}"; exit 2; }; }

slurmd_runs() {
  local pid
  for pid in $(ip netns pids "$1" 2>/dev/null); do
    [[ $(cat "/proc/$pid/comm" 2>/dev/null) != slurmd ]] || return 0
  done
  return 1
}

boot() {
  local node=$1 group
  if running "node-$node"; then
    slurmd_runs "$node" || enter "$node" slurmd
    return
  fi
  crash "$node"                                 # sweep up what a dead node left
  mkdir -p "$BED/nodes/$node"/{spool,tmp}
  chmod 1777 "$BED/nodes/$node/tmp"
  ip netns add "$node"
  ip link add "lf-$node" type veth peer name eth0 netns "$node"
  ip link set "lf-$node" master "$BRIDGE" up
  ip -n "$node" addr add "$(address_of "$node")/24" dev eth0
  ip -n "$node" link set eth0 up
  ip -n "$node" link set lo up
  if has_cgroup_v1; then
    for group in "${CGROUP_V1[@]}"; do mkdir -p "/sys/fs/cgroup/$group/lsdflow-$node"; done
    for group in cpus mems; do
      cat "/sys/fs/cgroup/cpuset/cpuset.$group" >"/sys/fs/cgroup/cpuset/lsdflow-$node/cpuset.$group"
    done
  fi
  # shellcheck disable=SC2016  # the inner shell expands
  start_daemon "node-$node" bash -c '
    for group in /sys/fs/cgroup/*/lsdflow-"$0"/cgroup.procs; do [[ ! -e $group ]] || echo $$ >"$group"; done
    exec nsenter --net="/run/netns/$0" unshare --mount --uts --ipc --pid --cgroup --fork --kill-child --mount-proc "$@"' \
    "$node" "$BED_SOURCE/node.sh" "$node"
}

# enter NODE COMMAND...: run it on the node.
enter() {
  local first
  first=$(pgrep -P "$(pid_of "node-$1")" | head -n 1)
  nsenter -t "$first" -m -u -i -n -p -C -- "${@:2}"
}

# Power loss: the cable goes first, so that no connection is closed; then everything on the node ends at once.
crash() {
  ip link set "lf-$1" down 2>/dev/null || true
  stop_daemon "node-$1" KILL
  ip netns del "$1" 2>/dev/null || true
  ip link del "lf-$1" 2>/dev/null || true
}

cut_cable() { ip link set "lf-$1" down; }
heal_cable() { ip link set "lf-$1" up; }

remove_cgroups() {
  local group
  for group in /sys/fs/cgroup/*/lsdflow-*; do
    [[ ! -d $group ]] || find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || true
  done
}

if [[ ${BASH_SOURCE[0]} == "$0" ]]; then
  # shellcheck source=/dev/null
  . "$(dirname "$0")/settings.sh"
  be_node "$1"
fi
