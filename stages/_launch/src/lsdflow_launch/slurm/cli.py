"""The commands of a cluster, submit and cancel, and the facts about jobs that `status` adds."""

from __future__ import annotations

import dataclasses
import json
import logging
import shutil
import subprocess
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from lsdflow_command.app import OldReplaceOption, exit_codes
from lsdflow_command.completion import one_of
from lsdflow_contract.errors import MissingInput, StageError, UsageError
from lsdflow_contract.experiment import STAGES, Experiment, load_experiment
from lsdflow_launch.answer import following, print_answer, stdout_for_json
from lsdflow_launch.chain import stage_arguments, stages_of
from lsdflow_launch.commands import ask_stage, stage_command
from lsdflow_launch.images.container import Containers
from lsdflow_launch.options import Debug, First, Folder, Json, Last, Set
from lsdflow_launch.slurm.follow import refuse_if_queued, run_on_slurm
from lsdflow_launch.slurm.jobs import (
    cancel_submission,
    job_facts,
    newest_submission,
    submitted_jobs,
    submitted_overrides,
)
from lsdflow_launch.slurm.submit import add_workers
from lsdflow_launch.slurm.submit import submit as submit_chain
from lsdflow_launch.slurm.table import BLOCK_STAGES, cluster_of, require_block_stage
from lsdflow_launch.telling.activity import with_activity
from lsdflow_launch.telling.block_state import progress_text, with_blocks
from lsdflow_launch.telling.state import Wanted, status_of

LOG = logging.getLogger("lsdflow.status")
Ask = Callable[[str, Sequence[str]], Any]
WORKERS, OF_STAGES = (
    "STAGE=N: number of worker jobs of a stage (repeat for more)",
    one_of([f"{stage}=" for stage in BLOCK_STAGES]),
)
Workers = Annotated[list[str] | None, typer.Option(help=WORKERS, autocompletion=OF_STAGES)]


def add_verbs(app: typer.Typer, show_problems: Callable[[Experiment, Ask, Wanted], None]) -> None:
    """Register `submit` and `cancel`."""

    @app.command()
    def submit(
        folder: Folder,
        first: First = STAGES[0],
        last: Last = STAGES[-1],
        override: Set = None,
        workers: Workers = None,
        only_workers: Annotated[
            bool,
            typer.Option(
                "--only-workers", help="submit no stages: add the workers of --workers to stages that are running"
            ),
        ] = False,
        replace: OldReplaceOption = False,
        dry_run: Annotated[
            bool, typer.Option("--dry-run", help="show the sbatch commands; submit and write nothing")
        ] = False,
        as_json: Json = False,
        debug: Debug = False,
    ) -> None:
        """Submit all stages to SLURM as jobs that wait for each other; shows every command."""
        del replace
        with exit_codes(debug, as_json), stdout_for_json(as_json):
            wanted = dict(_workers_of(text) for text in workers or ())
            more = [f"cluster.{stage}.workers={count}" for stage, count in wanted.items()]
            experiment = load_experiment(folder, [*(override or []), *more])
            if only_workers:
                if not wanted:
                    raise UsageError("--only-workers needs --workers STAGE=N")
                code = max(add_workers(experiment, s, n, dry_run=dry_run) for s, n in wanted.items())
            else:
                cluster_of(experiment)
                if not dry_run:
                    refuse_if_queued(experiment)
                ask = asker(experiment)
                stages = stages_of(experiment, first, last)
                looked = Wanted(stages, in_images=ask is ask_stage, on_cluster=not dry_run)
                show_problems(experiment, ask, looked)
                code = submit_chain(experiment, first, last, dry_run=dry_run)
        _tell_submission(experiment, code, dry_run, as_json)
        raise typer.Exit(code)

    @app.command()
    def cancel(folder: Folder, as_json: Json = False, debug: Debug = False) -> None:
        """Cancel all jobs of the last submission; finished blocks are kept."""
        with exit_codes(debug, as_json):
            lines = cancel_submission(load_experiment(folder))
            print_answer({"cancelled": lines}, "\n".join(lines), as_json)


def _tell_submission(experiment: Experiment, code: int, dry_run: bool, as_json: bool) -> None:
    """Print the jobs that are in the queue now, and the command that follows them."""
    submission = None if dry_run or code else newest_submission(experiment)
    step = f"lsdflow status {experiment.path.parent}"
    jobs = [] if submission is None else [dataclasses.asdict(job) for job in submitted_jobs(submission)]
    facts = {"exit_code": code, "submission": str(submission) if submission else None, "jobs": jobs, "next": step}
    print_answer(facts, following(step) if submission else "", as_json)


def follow_on_slurm(experiment: Experiment, first: str, last: str) -> int:
    """Submit and follow, and log the progress that the stages report. Returns the exit code of the chain."""
    cluster_of(experiment)
    ask = asker(experiment)

    def progress(stage: str) -> str:
        try:
            facts = {"state": "running", **ask(stage, stage_arguments("status", experiment))}
            return progress_text(with_activity(experiment, stage, with_blocks(experiment, stage, facts)))
        except StageError as error:
            return error.what

    return run_on_slurm(experiment, first, last, progress)


def asker(experiment: Experiment) -> Ask:
    """Return a function that runs stage commands, in their SIFs where they are not installed (a login node)."""
    try:
        for stage in stages_of(experiment):
            stage_command(stage)
    except MissingInput:
        if shutil.which(cluster_of(experiment).singularity) is None:
            raise
        containers = Containers(experiment, "singularity")
        return lambda stage, arguments: _ask_container(containers, stage, arguments)
    return ask_stage


def whole_status(experiment: Experiment) -> dict[str, dict[str, Any]]:
    """Return the state of every stage and its blocks; of a submitted stage also its jobs, if SLURM answers."""
    submission = newest_submission(experiment)
    if submission is None:
        return _with_blocks(experiment, status_of(experiment))
    if not experiment.overrides:
        experiment = load_experiment(experiment.path, submitted_overrides(submission))
    try:
        jobs = job_facts(experiment, submission)
    except StageError as error:
        LOG.warning("nothing is known of the jobs: %s", error.message())
        jobs = {}
    states = _with_blocks(experiment, status_of(experiment, asker(experiment)))
    return {stage: _joined(facts, jobs.get(stage, {})) for stage, facts in states.items()}


def _joined(facts: dict[str, Any], jobs: dict[str, Any]) -> dict[str, Any]:
    # Without an outcome the files do not show whether a stage is running; the queue does.
    runs = any("RUNNING" in str(jobs.get(role, "")) for role in ("run", "coordinator"))
    state = {"state": "running"} if facts["state"] == "running or killed" and runs else {}
    return {**facts, **state, **jobs}


def _with_blocks(experiment: Experiment, states: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    blocks = {s: with_blocks(experiment, s, facts) if s in BLOCK_STAGES else facts for s, facts in states.items()}
    return {stage: with_activity(experiment, stage, facts) for stage, facts in blocks.items()}


def _ask_container(containers: Containers, stage: str, arguments: Sequence[str]) -> Any:
    done = subprocess.run(containers.command(stage, arguments), capture_output=True, text=True, check=False)
    try:
        return json.loads(done.stdout)
    except json.JSONDecodeError as error:
        raise StageError(f"{stage} gave no answer in its image", found=done.stderr.strip()[-2000:]) from error


def _workers_of(text: str) -> tuple[str, int]:
    stage, _, count = text.partition("=")
    require_block_stage(stage)
    if not count.isdigit() or int(count) < 1:
        raise UsageError("workers are STAGE=N", found=text)
    return stage, int(count)
