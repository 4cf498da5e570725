# shellcheck shell=bash
# SLURM on the head: configuration, munge, controller and, if wanted, accounting. Sourced by bed.sh.
#
# Waiting times are cut to seconds, since tests crash nodes and requeue jobs. RequeueExit is NOT set: clusters do not
# have it, so a wrapper has to requeue its job itself.

write_slurm_config() {
  mkdir -p /etc/slurm "$BED/slurm" "$BED/gpus"
  chown slurm: "$BED/slurm"
  local gpu
  for ((gpu = 0; gpu < NODE_GPUS; gpu++)); do   # devices of no driver: enough for SLURM to hand out and to guard
    [[ -c $BED/gpus/gpu$gpu ]] || mknod -m 666 "$BED/gpus/gpu$gpu" c 240 "$gpu"
  done
  slurm_conf >/etc/slurm/slurm.conf
  echo "Name=gpu File=$BED/gpus/gpu[0-$((NODE_GPUS - 1))]" >/etc/slurm/gres.conf
  if has_cgroup_v1; then
    printf '%s\n' CgroupPlugin=cgroup/v1 ConstrainRAMSpace=yes ConstrainDevices=yes >/etc/slurm/cgroup.conf
  fi
  [[ $BED_ACCOUNTING == 0 ]] || write_accounting_config
}

slurm_conf() {
  local node head
  head=$(hostname -s)
  cat <<CONF
ClusterName=bed
SlurmctldHost=$head($HEAD_ADDRESS)
SlurmUser=slurm
StateSaveLocation=$BED/slurm
SlurmctldPidFile=$BED/slurm/slurmctld.pid
SlurmdPidFile=/var/spool/slurmd/slurmd.pid
SlurmdSpoolDir=/var/spool/slurmd
SlurmdParameters=config_overrides      # nodes claim more CPUs than the machine has
ReturnToService=2
MpiDefault=none
GresTypes=gpu
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=512
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=5
SchedulerParameters=batch_sched_delay=0,sched_interval=5,bf_interval=5
AuthInfo=cred_expire=5                 # a requeued job may start again after 5 s, not 2 min
SlurmdTimeout=8                        # a silent node is down after 8 s, not 5 min
KillWait=5                             # SIGTERM, 5 s, SIGKILL; not 30 s
MinJobAge=900                          # squeue and scontrol show ended jobs this long
CONF
  if has_cgroup_v1; then
    printf '%s\n' ProctrackType=proctrack/cgroup TaskPlugin=task/cgroup
  else
    printf '%s\n' ProctrackType=proctrack/linuxproc TaskPlugin=task/none   # no memory or device limits then
  fi
  if [[ $BED_ACCOUNTING != 0 ]]; then
    printf '%s\n' AccountingStorageType=accounting_storage/slurmdbd "AccountingStorageHost=$HEAD_ADDRESS" \
      AccountingStorageTRES=gres/gpu
  fi
  for node in "${NODES[@]}"; do
    echo "NodeName=$node NodeAddr=$(address_of "$node") CPUs=$NODE_CPUS RealMemory=$NODE_MEMORY_MB Gres=gpu:$NODE_GPUS"
  done
  echo "PartitionName=DEFAULT Nodes=ALL MaxTime=1-0 DefaultTime=60 LLN=YES"   # least loaded node first: jobs spread
  printf '%s\n' "PartitionName=cpu Default=YES" "PartitionName=gpu"
}

write_accounting_config() {
  cat >/etc/slurm/slurmdbd.conf <<CONF
DbdHost=$(hostname -s)
DbdAddr=$HEAD_ADDRESS
SlurmUser=slurm
StorageType=accounting_storage/mysql
StorageUser=slurm
PidFile=$BED/slurm/slurmdbd.pid
CONF
  chown slurm: /etc/slurm/slurmdbd.conf
  chmod 600 /etc/slurm/slurmdbd.conf
}

start_munge() {
  install -d -o munge -g munge /run/munge
  running munged || rm -f /run/munge/*
  [[ -s /etc/munge/munge.key ]] || mungekey --create
  start_daemon munged setpriv --reuid munge --regid munge --clear-groups munged --foreground
  wait_for 10 bash -c 'munge --no-input | unmunge'
}

start_accounting() {
  [[ $BED_ACCOUNTING != 0 ]] || return 0
  if [[ ! -d $BED/mysql ]]; then
    install -d -o mysql "$BED/mysql"
    mariadb-install-db --user=mysql --datadir="$BED/mysql" --skip-test-db >>"$BED/log/mariadb.log" 2>&1
  fi
  install -d -o mysql /run/mysqld
  start_daemon mariadb mariadbd --user=mysql --datadir="$BED/mysql" --skip-networking --innodb-buffer-pool-size=64M
  wait_for 20 mariadb -e \
    "CREATE USER IF NOT EXISTS slurm@localhost IDENTIFIED VIA unix_socket; GRANT ALL ON slurm_acct_db.* TO slurm@localhost"
  start_daemon slurmdbd setpriv --reuid slurm --regid slurm --clear-groups slurmdbd -D
  wait_for 20 sacctmgr -n list cluster
  [[ -n $(sacctmgr -n list cluster bed) ]] || sacctmgr -iQ add cluster bed >/dev/null
}

start_controller() {
  start_daemon slurmctld setpriv --reuid slurm --regid slurm --clear-groups slurmctld -D
  wait_for 20 bash -c 'scontrol ping | grep -q UP'
}

nodes_are_up() {
  (($(sinfo -h -N -p cpu -t idle,mixed,allocated -o %N | sort -u | wc -l) == ${#NODES[@]}))
}
