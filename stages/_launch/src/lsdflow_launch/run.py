"""`lsdflow run`: check all stages, run them on a backend, and report how the run ended and what to do next.

Backends: locally as commands, locally in containers, or as jobs of a cluster.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from lsdflow_command.app import exit_codes
from lsdflow_command.completion import one_of
from lsdflow_command.experiment_lock import experiment_lock, require_idle, require_no_chain
from lsdflow_contract.errors import (
    BlocksFailed,
    ConfigError,
    Interrupted,
    StageError,
    StorageFailure,
    UsageError,
)
from lsdflow_contract.experiment import STAGES, Experiment, did_you_mean, load_experiment
from lsdflow_launch.chain import LAST, Chain, first_stage, stages_of
from lsdflow_launch.checkpoint_selection.automatic import select_before_predict
from lsdflow_launch.commands import Ask, Call, ask_stage, run_stage
from lsdflow_launch.images.container import ContainerOptions, Containers, choose_ask
from lsdflow_launch.init.template import require_known_keys
from lsdflow_launch.options import Debug, Engine, First, Folder, Images, Json, Last, Network, Set
from lsdflow_launch.output import next_line, print_answer, print_scores, result_facts, stdout_for_json
from lsdflow_launch.preflight import EXPERIMENT, Scope, print_problems, problems_of
from lsdflow_launch.report import refreshed_report
from lsdflow_launch.slurm.follow import run_on_slurm
from lsdflow_launch.slurm.jobs import refuse_if_known_to_be_queued
from lsdflow_launch.slurm.table import cluster_of
from lsdflow_launch.status import newest_run, outcome_of, progress_of

BACKENDS = ("local", "container", "slurm")
DEFAULT_CONTAINERS = ContainerOptions()
FIRST_STEPS = (
    "First time here: lsdflow demo demo && lsdflow run demo",
    "Your own volume: lsdflow init exp --volume raw.zarr && lsdflow run exp",
    "What is done, and what failed: lsdflow status exp",
    "TAB completes stages, folders and keys: lsdflow --install-completion",
)


def run_on(backend: str, experiment: Experiment, first: str, last: str, options: ContainerOptions) -> tuple[str, int]:
    """Run the stages `first` to `last` on a backend. Returns the first that failed and its exit code, else "" and 0.

    Of jobs of a cluster only the exit code is known.

    Raises UsageError (2) for an unknown backend or stage, OutputConflict (73) if another command works on the
    experiment; and the errors of Containers.check before anything runs.
    """
    if backend not in BACKENDS:
        raise UsageError(
            f"unknown backend {backend!r}", wanted=", ".join(BACKENDS), fix=did_you_mean(backend, BACKENDS)
        )
    stages = stages_of(experiment, first, last)
    with refreshed_report(experiment):
        if backend == "slurm":
            return "", _follow_on_slurm(experiment, first, last)
        with experiment_lock(experiment.layout):
            if backend == "local":
                return run_chain(experiment, stages, run_stage, ask_stage)
            containers = Containers(experiment, options.engine, options.sifs, options.network)
            containers.check(stages)
            return run_chain(experiment, stages, containers, containers.ask)


def run_chain(experiment: Experiment, stages: tuple[str, ...], caller: Call, ask: Ask) -> tuple[str, int]:
    """Run the stages; before predict, choose the checkpoint where the network was not trained.

    Returns the first stage that failed and its exit code, else "" and 0.
    """
    begin = stages.index("predict") if "predict" in stages else len(stages)
    stage, code = Chain(experiment, stages[:begin], caller).first_failure()
    if code == 0 and begin < len(stages):
        code = select_before_predict(experiment, caller, ask)
    return (stage, code) if code else Chain(experiment, stages[begin:], caller).first_failure()


def _follow_on_slurm(experiment: Experiment, first: str, last: str) -> int:
    """Submit and follow, and log the progress that the stages report. Returns the exit code of the chain."""
    cluster_of(experiment)
    ask = choose_ask(experiment)

    def progress(stage: str) -> str:
        """Return the progress that a stage reports, or why it reports none."""
        try:
            return progress_of(experiment, stage, ask)
        except StageError as error:
            return error.what

    return run_on_slurm(experiment, first, last, progress)


@dataclass(frozen=True)
class Ending:
    """The stage that ended a chain ("" if none did, or if it is not known), and the error that it reported."""

    stage: str = ""
    error: dict[str, Any] | None = None


def ending_of(experiment: Experiment, stages: Sequence[str], code: int, failed: str = "") -> Ending:
    """Return the stage that ended a chain of `stages` with `code`, and its error, if its newest run reports this code.

    failed: that stage; if it is not known, as for jobs that were followed, the first that ended with `code` is taken.
    """
    for stage in ((failed,) if failed else stages) if code else ():
        outcome = outcome_of(newest_run(experiment, stage, refused=True))
        if outcome.get("exit_code") == code:
            return Ending(stage, outcome.get("error"))
    return Ending(failed)


@dataclass(frozen=True)
class RunOptions:
    """The options of `lsdflow run`, except --set."""

    backend: str = "local"
    first: str = STAGES[0]
    last: str = STAGES[-1]
    containers: ContainerOptions = DEFAULT_CONTAINERS

    def words(self) -> str:
        """Return the options as typed on the command line, without defaults."""
        containers = self.containers
        given = {
            "--backend": self.backend if self.backend != "local" else None,
            "--from": self.first if self.first != STAGES[0] else None,
            "--to": self.last if self.last != STAGES[-1] else None,
            "--engine": containers.engine,
            "--images": containers.sifs,
            "--network": containers.network,
        }
        return "".join(f" {option} {shlex.quote(str(v))}" for option, v in given.items() if v is not None)


def next_steps(experiment: Experiment, code: int, options: RunOptions | None = None) -> list[str]:
    """Return useful commands after a run that ended with `code`, the most likely first, each with its reason.

    options: the options of the run, which are repeated.
    """
    options, folder = options or RunOptions(), shlex.quote(_display_path(experiment.path.parent))
    settings = "".join(f" --set {shlex.quote(o)}" for o in experiment.overrides)
    again = f"lsdflow run {folder}{options.words()}{settings}"
    see_status, again_after = (
        f"lsdflow status {folder}    # what failed, and why",
        f"{again}    # resumes, once that is fixed",
    )
    steps = {
        0: [f"lsdflow view {folder}    # view the result", f"lsdflow status {folder}"],
        Interrupted.exit_code: [f"{again}    # resumes"],
        BlocksFailed.exit_code: [see_status, f"{again}    # retries only those blocks"],
        StorageFailure.exit_code: [f"df -h {folder}    # free some space", again_after],
        ConfigError.exit_code: [f"lsdflow validate {folder}{settings}    # all problems at once", again_after],
    }
    return steps.get(Interrupted.exit_code if code > 128 else code, [see_status, again_after])


def _display_path(path: Path) -> str:
    """Return the path relative to the working folder if it is inside it."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) and path != here else str(path)


def add_run_verb(app: typer.Typer) -> None:
    """Register `run`."""

    @app.command()
    def run(
        folder: Folder,
        backend: Annotated[
            str, typer.Option(help="where to run: local, container or slurm", autocompletion=one_of(BACKENDS))
        ] = "local",
        first: First = STAGES[0],
        last: Last = STAGES[-1],
        override: Set = None,
        engine: Engine = None,
        images: Images = None,
        network: Network = None,
        as_json: Json = False,
        debug: Debug = False,
    ) -> None:
        """Check all stages, then run them in order; finished ones are skipped, an interrupted one is resumed."""
        with exit_codes(debug, as_json):
            experiment = load_experiment(folder, override or [])
            if backend == "local":
                require_known_keys(experiment)
            _require_alone(experiment, backend)
            stages_of(experiment, first, last)  # refuses unknown stages, and the wrong order
            first = first_stage(experiment, first)
            stages = stages_of(experiment, first, last)
            containers = ContainerOptions(engine, images, network)
            with stdout_for_json(as_json):
                ended = _first_problem(experiment, stages, backend)
                if ended.error is not None:
                    code = int(ended.error["exit_code"])
                else:
                    failed, code = run_on(backend, experiment, first, last, containers)
                    ended = ending_of(experiment, stages, code, failed)
            scored = code == 0 and LAST in stages
            steps = next_steps(experiment, code, RunOptions(backend, first, last, containers))
            if as_json:
                why = {"stage": ended.stage or None, "error": ended.error, "next": steps}
                typer.echo(json.dumps({**result_facts(experiment, code, scored=scored), **why}))
                raise typer.Exit(code)
            print_scores(experiment.layout, scored=scored)
            print_answer({}, next_line("\n      ".join(steps)), as_json=False)
        raise typer.Exit(code)


def _require_alone(experiment: Experiment, backend: str) -> None:
    """Raise OutputConflict (73) if other commands or jobs work on the experiment; jobs of `slurm` may be followed."""
    if backend == "slurm":
        require_no_chain(experiment.layout)
        return
    require_idle(experiment.layout)
    refuse_if_known_to_be_queued(experiment)


def _first_problem(experiment: Experiment, stages: Sequence[str], backend: str) -> Ending:
    """Check all `stages` before the first one runs, and print every problem; return the first with its stage."""
    ask = choose_ask(experiment) if backend == "slurm" else ask_stage
    scope = Scope(tuple(stages), in_images=backend == "slurm" and ask is ask_stage, on_cluster=backend == "slurm")
    all_found = problems_of(experiment, ask, scope) if backend in ("local", "slurm") else {}
    found = {stage: problems for stage, problems in all_found.items() if stage in (*stages, EXPERIMENT)}
    print_problems(found)
    return next((Ending(stage, problems[0]) for stage, problems in found.items() if problems), Ending())
