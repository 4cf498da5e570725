"""Print what the stages of a finished experiment took, as rows of machines.toml, for plans that have measured nothing.

    python benchmarks/record_run.py EXPERIMENT

The rows go into stages/_launch/src/lsdflow_launch/planning/machines.toml, below the name of the machine. Run the
experiment with 1 thread for each worker, when nothing else runs. What is spent outside blocks is not printed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from lsdflow_contract.experiment import load_experiment
from lsdflow_launch.commands import ask_stage
from lsdflow_launch.descriptions import plans_of
from lsdflow_launch.disk import disk_use, result_folders
from lsdflow_launch.planning.evidence import RSS, evidence_of
from lsdflow_launch.planning.jobs import local_job
from lsdflow_launch.planning.plan import units_of

# Memory of Python with the libraries of a stage, before it has read a block: 92 to 165 MiB were measured.
PROCESS_BYTES = 157e6
# Seconds of blocks grow with the first of these that the stage's plan has.
WORK = ("multiply_adds", "voxels_read_with_context", "voxels")

if __name__ == "__main__":
    experiment = load_experiment(Path(sys.argv[1]))
    for stage, facts in plans_of(experiment, ask_stage).items():
        job, written = local_job(experiment, stage, facts), disk_use(result_folders(experiment.layout, stage))
        for number_of_pass, (name, units) in enumerate(units_of(stage, facts).items()):
            done, *_ = evidence_of(experiment, stage, name, facts, {}, job)
            row = f'"{stage}{"." + name if name else ""}"'
            for number in {"seconds", RSS} & {*done.rates}:
                amount = done.scaled(number, units, job).value or 0
                unit = "voxels_of_a_block" if number == RSS else next(unit for unit in WORK if units.get(unit))
                first = f"one = {PROCESS_BYTES:g}, " if number == RSS else ""
                rate = (amount - PROCESS_BYTES * (number == RSS)) / units[unit]
                print(f"{row}.{number} = {{ {first}{unit} = {rate:.3g} }}")
            if "blocks" in units:  # what all passes wrote is counted with the first one
                rate = 0 if number_of_pass else written.size_bytes / units["voxels"]
                print(f"{row}.bytes_written = {{ voxels = {rate:.3g} }}")
