"""`lsdflow submit`: writes the settings of the cluster wrappers from the experiment file, and runs pipeline.sh.

The wrappers (slurm_wrappers/) submit the jobs. They read the settings from standard input, so a user without lsdflow
can do the same with a file.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from lsdflow_contract.errors import ConfigError, MissingInput
from lsdflow_contract.experiment import Experiment
from lsdflow_launch.chain import stages_of
from lsdflow_launch.images.mounts import mounts_of, uri_file_of
from lsdflow_launch.slurm.table import cluster_of, job_settings

WRAPPERS_VARIABLE = "LSDFLOW_WRAPPERS"
# Nothing is expanded in a line KEY='value'; only these characters could end it or break sbatch's file patterns.
FORBIDDEN = ("'", "\n", "\r", "\0")


def wrappers_folder() -> Path:
    """Return the folder of pipeline.sh: $LSDFLOW_WRAPPERS, or slurm_wrappers of the clone with this package or command.

    Raises MissingInput (66) if there is none.
    """
    told = os.environ.get(WRAPPERS_VARIABLE)
    starts = (Path(__file__), Path(sys.argv[0]).absolute())
    folders = [Path(told)] if told else [p / "slurm_wrappers" for start in starts for p in start.parents]
    for folder in folders:
        if (folder / "pipeline.sh").is_file():
            return folder.resolve()
    raise MissingInput(
        "the wrappers of the cluster are not here",
        where=folders[0],
        wanted="pipeline.sh",
        fix=f"name their folder in {WRAPPERS_VARIABLE}: slurm_wrappers of a clone",
    )


def settings_text(experiment: Experiment) -> str:
    """Return all settings of the wrappers, one KEY='value' per line.

    Raises ConfigError (78) for a wrong [cluster] table or a value that cannot be written in such a line.
    """
    table = cluster_of(experiment)
    root = experiment.path.parent
    uri_file = uri_file_of(experiment)
    settings = [
        ("EXPERIMENT", str(root)),
        ("NAME", experiment.common.name),
        ("STAGES", " ".join(stages_of(experiment))),
        ("IMAGES", str(experiment.resolve(table.images))),
        ("SINGULARITY", table.singularity),
        *((("MONGO_URI_FILE", str(uri_file)),) if uri_file else ()),
        *(("BIND_RO", str(m.target)) for m in mounts_of(experiment) if not m.writable and m.target != uri_file),
        *(("BIND", str(experiment.resolve(path))) for path in table.binds),
        *(("SET", override) for override in experiment.overrides if not override.strip().startswith("cluster.")),
        ("ACCOUNT", table.account),
        ("QOS", table.qos),
        *(("SBATCH_OPTION", option) for option in table.options),
        ("INTERFACE", table.interface),
        ("WARN_S", str(table.warn_s)),
        ("MAX_RESTARTS", str(table.max_restarts)),
        *job_settings(table, experiment).items(),
    ]
    for key, value in settings:
        if any(character in value for character in FORBIDDEN):
            raise ConfigError(
                f"{key} holds a quote or a line break", found=repr(value), fix="write it in experiment.toml"
            )
        if key in ("BIND", "BIND_RO", "MONGO_URI_FILE") and any(c in value for c in ":,"):
            raise ConfigError("a folder with : or , cannot be bound", found=value, fix="rename it, or use a link")
    return "".join(f"{key}='{value}'\n" for key, value in settings if value)


def submit(experiment: Experiment, first: str, last: str, *, dry_run: bool = False) -> int:
    """Submit the stages `first` to `last` as a chain of jobs. Returns the exit code of pipeline.sh.

    Raises UsageError (2) for an unknown stage, MissingInput (66) without wrappers or sbatch, ConfigError (78).
    """
    stages_of(experiment, first, last)
    options = ["--settings", "-", "--from", first, "--to", last]
    return _pipeline(experiment, options, settings_text(experiment), dry_run)


def add_workers(experiment: Experiment, stage: str, count: int, *, dry_run: bool = False) -> int:
    """Add workers to a stage whose coordinator is in the queue. Returns the exit code of pipeline.sh."""
    return _pipeline(experiment, ["--only-workers", f"{stage}={count}"], "", dry_run)


def _pipeline(experiment: Experiment, options: Sequence[str], settings: str, dry_run: bool) -> int:
    if not dry_run and shutil.which("sbatch") is None:
        raise MissingInput("no sbatch here", fix="run this on a login node of the cluster, or look with --dry-run")
    command = [str(wrappers_folder() / "pipeline.sh"), "--experiment", str(experiment.path.parent), *options]
    command += ["--dry-run"] if dry_run else []
    return subprocess.run(command, input=settings, text=True, check=False).returncode
