# shellcheck shell=bash
# How much of the CPU time that this machine asked for, since this file was sourced, its host gave to others.
# From proc(5): `steal` of the first line of /proc/stat, against all time in which the CPUs were wanted.
STARVED_PERCENT=20
_stat=${LSDFLOW_CI_STAT:-/proc/stat}

_cpu_ticks() { # WANTED STOLEN
  local user nice system irq soft steal
  read -r _ user nice system _ _ irq soft steal _ <"$_stat"
  echo $((user + nice + system + irq + soft + steal)) "$steal"
}
read -r _wanted_before _stolen_before <<<"$(_cpu_ticks)"

stolen_percent() {
  local wanted stolen
  read -r wanted stolen <<<"$(_cpu_ticks)"
  echo $((100 * (stolen - _stolen_before) / (wanted - _wanted_before + 1)))
}

starved() { (($(stolen_percent) >= STARVED_PERCENT)); }
