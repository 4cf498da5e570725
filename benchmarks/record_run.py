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
from lsdflow_launch.planning.evidence import RSS, evidence_of
from lsdflow_launch.planning.jobs import jobs_of
from lsdflow_launch.planning.plan import units_of

# Memory of Python with the libraries of a stage, before it has read a block: 92 to 165 MiB were measured.
PROCESS_BYTES = 157e6

if __name__ == "__main__":
    experiment = load_experiment(Path(sys.argv[1]))
    for stage, facts in plans_of(experiment, ask_stage).items():
        evidence = evidence_of(experiment, stage, facts, {}, jobs_of(experiment, stage, facts, on_slurm=False))
        for name, units in units_of(stage, facts).items():
            done, on_disk, *_ = evidence(name)
            for number, rates in {**done.rates, **on_disk.rates}.items():
                ((unit, rate),) = rates.items()
                first = ""
                if unit == "iterations":
                    unit, rate = "multiply_adds", rate * units["iterations"] / units["multiply_adds"]
                elif number == RSS:
                    unit, rate = "voxels_of_a_block", (rate - PROCESS_BYTES) / units["voxels_of_a_block"]
                    first = f"one = {PROCESS_BYTES:g}, "
                elif number == "bytes_written" and "voxels" in units:
                    unit, rate = "voxels", rate * units[unit] / units["voxels"]
                elif number != "seconds":  # what each stage computes itself
                    continue
                print(f'"{stage}{"." + name if name else ""}".{number} = {{ {first}{unit} = {rate:.3g} }}')
