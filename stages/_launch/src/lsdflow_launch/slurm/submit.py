"""`lsdflow submit` writes the settings of the cluster wrappers and runs pipeline.sh; `lsdflow scale` adds workers.

The wrappers (slurm_wrappers/) submit the jobs. They read the settings from standard input, so a user without lsdflow
can do the same with a file.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, NoReturn

import typer

from lsdflow_command.app import exit_codes
from lsdflow_command.completion import one_of
from lsdflow_command.experiment_lock import require_idle
from lsdflow_contract.errors import ConfigError, MissingInput, UsageError
from lsdflow_contract.experiment import BLOCK_STAGES, STAGES, Experiment, load_experiment
from lsdflow_contract.manifest import record_for_later_jobs
from lsdflow_launch.chain import first_stage, stages_of
from lsdflow_launch.checkpoint_selection.automatic import may_select
from lsdflow_launch.checkpoint_selection.region import STAGE
from lsdflow_launch.commands import ask_stage
from lsdflow_launch.images.container import choose_ask
from lsdflow_launch.images.engines import mounts_of, uri_file_of
from lsdflow_launch.options import Debug, First, Folder, Json, Last, Set
from lsdflow_launch.output import next_line, print_answer, stdout_for_json
from lsdflow_launch.preflight import Scope, show_problems
from lsdflow_launch.slurm.dry_run import missing_for_jobs, rows_of_jobs, show_jobs
from lsdflow_launch.slurm.jobs import cancel_submission, newest_submission, refuse_if_queued, submitted_jobs
from lsdflow_launch.slurm.table import cluster_of, job_settings, require_block_stage

LOG = logging.getLogger("lsdflow.run")
WRAPPERS_VARIABLE = "LSDFLOW_WRAPPERS"
# Nothing is expanded in a line KEY='value'; only these characters could end it or break sbatch's file patterns.
FORBIDDEN = ("'", "\n", "\r", "\0")
WORKERS, OF_STAGES = (
    "STAGE=N: number of worker jobs of a stage (repeat for more)",
    one_of([f"{stage}=" for stage in BLOCK_STAGES]),
)
Workers = Annotated[list[str] | None, typer.Option(help=WORKERS, autocompletion=OF_STAGES)]
MoreWorkers = Annotated[
    list[str],
    typer.Argument(help="STAGE=N: number of worker jobs to add", metavar="STAGE=N", autocompletion=OF_STAGES),
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="show the jobs, what is missing for them, and the sbatch commands; submit nothing"),
]


def wrappers_folder() -> Path:
    """Return the folder of pipeline.sh: $LSDFLOW_WRAPPERS, or slurm_wrappers of the clone with this package or command.

    Raises MissingInput (66) if there is none.
    """
    named = os.environ.get(WRAPPERS_VARIABLE)
    starts = (Path(__file__), Path(sys.argv[0]).absolute())
    folders = [Path(named)] if named else [p / "slurm_wrappers" for start in starts for p in start.parents]
    for folder in folders:
        if (folder / "pipeline.sh").is_file():
            return folder.resolve()
    raise MissingInput(
        "the wrappers of the cluster are not here",
        where=folders[0],
        wanted="pipeline.sh",
        fix=f"name their folder in {WRAPPERS_VARIABLE}: slurm_wrappers of a clone",
    )


def settings_text(experiment: Experiment, stages: Sequence[str] | None = None) -> str:
    """Return all settings of the wrappers, one KEY='value' per line. stages: to submit (None = all).

    Raises ConfigError (78) for a wrong [cluster] table or a value that cannot be written in such a line.
    """
    table = cluster_of(experiment)
    root = experiment.path.parent
    uri_file = uri_file_of(experiment)
    settings = [
        ("EXPERIMENT", str(root)),
        ("NAME", experiment.common.name),
        ("STAGES", " ".join(stages or stages_of(experiment))),
        ("IMAGES", str(experiment.resolve(table.images))),
        ("SINGULARITY", table.singularity),
        ("MODULES", table.modules),
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


def submit_chain(experiment: Experiment, first: str, last: str, *, dry_run: bool = False) -> int:
    """Submit the stages `first` to `last` as a chain of jobs. Returns the exit code of pipeline.sh.

    Raises UsageError (2) for an unknown stage, MissingInput (66) without wrappers or sbatch, ConfigError (78).
    """
    if not dry_run:
        require_idle(experiment.layout)
    stages = stages_of(experiment, first, last)
    if "predict" in stages and may_select(experiment, after_training=STAGE in stages):
        LOG.warning(
            "jobs do not choose a checkpoint and a threshold on the sections that the training holds out. To use that "
            "choice: `lsdflow select-checkpoint DIR` after the training, then `lsdflow submit DIR --from predict`"
        )
    settings = settings_text(experiment, stages)
    options = ["--settings", "-", "--from", first, "--to", last]
    code = _pipeline(experiment, options, settings, dry_run)
    submission = newest_submission(experiment)
    if code == 0 and not dry_run and submission is not None:
        record_for_later_jobs(experiment.layout, submission.name, STAGES[: STAGES.index(first)])
    return code


def add_workers(experiment: Experiment, stage: str, count: int, *, dry_run: bool = False) -> int:
    """Add workers to a stage whose coordinator is in the queue. Returns the exit code of pipeline.sh."""
    return _pipeline(experiment, ["--scale", f"{stage}={count}"], "", dry_run)


def _pipeline(experiment: Experiment, options: Sequence[str], settings: str, dry_run: bool) -> int:
    if not dry_run and shutil.which("sbatch") is None:
        raise MissingInput("no sbatch here", fix="run this on a login node of the cluster, or use --dry-run")
    command = [str(wrappers_folder() / "pipeline.sh"), "--experiment", str(experiment.path.parent), *options]
    command += ["--dry-run"] if dry_run else []
    return subprocess.run(command, input=settings, text=True, check=False).returncode


def add_cluster_verbs(app: typer.Typer) -> None:
    """Register `submit`, `scale` and `cancel`."""

    @app.command()
    def submit(
        folder: Folder,
        first: First = STAGES[0],
        last: Last = STAGES[-1],
        override: Set = None,
        workers: Workers = None,
        dry_run: DryRun = False,
        as_json: Json = False,
        debug: Debug = False,
    ) -> None:
        """Submit all stages to SLURM as jobs that wait for each other; shows every command."""
        with exit_codes(debug, as_json), stdout_for_json(as_json):
            counts = dict(_workers_of(text) for text in workers or ())
            more = [f"cluster.{stage}.workers={count}" for stage, count in counts.items()]
            experiment = load_experiment(folder, [*(override or []), *more])
            cluster_of(experiment)
            if not dry_run:
                refuse_if_queued(experiment)
            ask = choose_ask(experiment)
            first = first_stage(experiment, first)
            stages = stages_of(experiment, first, last)
            scope = Scope(stages, in_images=ask is ask_stage, on_cluster=not dry_run)
            show_problems(experiment, as_json=False, ask=ask, scope=scope)
            more_facts = _dry_run_facts(experiment, stages) if dry_run else {}
            code = submit_chain(experiment, first, last, dry_run=dry_run)
        _print_submission(experiment, code, dry_run, as_json, more_facts)
        raise typer.Exit(code)

    @app.command()
    def scale(
        folder: Folder, workers: MoreWorkers, dry_run: DryRun = False, as_json: Json = False, debug: Debug = False
    ) -> NoReturn:
        """Submit more worker jobs for stages that are running."""
        with exit_codes(debug, as_json), stdout_for_json(as_json):
            counts = dict(_workers_of(text) for text in workers)
            experiment = load_experiment(folder)
            code = max(add_workers(experiment, stage, count, dry_run=dry_run) for stage, count in counts.items())
        _print_submission(experiment, code, dry_run, as_json)
        raise typer.Exit(code)

    @app.command()
    def cancel(folder: Folder, as_json: Json = False, debug: Debug = False) -> None:
        """Cancel all jobs of the last submission; finished blocks are kept."""
        with exit_codes(debug, as_json):
            lines = cancel_submission(load_experiment(folder))
            print_answer({"cancelled": lines}, "\n".join(lines), as_json)


def _dry_run_facts(experiment: Experiment, stages: Sequence[str]) -> dict[str, Any]:
    """Print the jobs with their resources and what is missing, before the commands; return both."""
    rows, missing = rows_of_jobs(experiment, stages), missing_for_jobs(experiment, stages)
    show_jobs(rows, missing)
    sys.stdout.flush()  # the wrappers print the commands to the same stream
    return {"resources": rows, "missing": missing}


def _print_submission(
    experiment: Experiment,
    code: int,
    dry_run: bool,
    as_json: bool,
    more_facts: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Print the jobs that are in the queue now, and the command that follows them."""
    submission = None if dry_run or code else newest_submission(experiment)
    step = f"lsdflow status {experiment.path.parent}"
    jobs = [] if submission is None else [dataclasses.asdict(job) for job in submitted_jobs(submission)]
    facts = {"exit_code": code, "submission": str(submission) if submission else None, "jobs": jobs, "next": step}
    facts |= more_facts
    print_answer(facts, next_line(step) if submission else "", as_json)


def _workers_of(text: str) -> tuple[str, int]:
    stage, _, count = text.partition("=")
    require_block_stage(stage)
    if not count.isdigit() or int(count) < 1:
        raise UsageError("workers are STAGE=N", found=text)
    return stage, int(count)
