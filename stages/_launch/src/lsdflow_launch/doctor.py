"""`lsdflow doctor`: what this machine has for lsdflow, one line each with what to do."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import psutil

from lsdflow_command.cores import available_cores
from lsdflow_contract import CONTRACT_VERSION
from lsdflow_contract.errors import MissingInput
from lsdflow_contract.experiment import STAGES
from lsdflow_launch.commands import stage_command

GIB = 2**30


def findings(folder: Path) -> list[tuple[bool, str]]:
    """(fine, text) lines: commands and their contract, cores, memory, disk of `folder`, GPU driver."""
    memory, disk = psutil.virtual_memory(), shutil.disk_usage(folder)
    cores = available_cores()
    driver = shutil.which("nvidia-smi")
    return [
        *(_command(stage) for stage in STAGES),
        (cores >= 2, f"{cores} cores usable; the tiny profile wants 2"),
        (memory.available >= 6 * GIB, f"{memory.available / GIB:.1f} GiB memory free; the tiny profile wants 6"),
        (disk.free >= 5 * GIB, f"{disk.free / GIB:.0f} GiB free in {folder}; a run writes about 30 bytes per voxel"),
        (True, f"GPU driver: {driver}" if driver else "no GPU driver: networks run on the CPU (use the profile tiny)"),
    ]


def _command(stage: str) -> tuple[bool, str]:
    try:
        command = stage_command(stage)
    except MissingInput as error:
        return False, f"{error.what}: {error.hint}"
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=False)
    told = done.stdout.strip()
    fits = f"(contract {CONTRACT_VERSION.split('.', maxsplit=1)[0]}." in told
    return fits, told if fits else f"{stage}: {told or done.stderr.strip()[-200:]}; wanted contract {CONTRACT_VERSION}"
