"""The report of an experiment, written by `evaluate report` in a separate process that computes no scores.

Within `refreshed_report` the report is written repeatedly at low priority, and browsers reload it. The run does not
depend on it: a report that cannot be written is logged once, and the run continues.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import threading
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from lsdflow_command.app import exit_codes
from lsdflow_command.processes import LAUNCHER_VARIABLE, tied_to_this_process
from lsdflow_contract.citations import REFERENCES, SOFTWARE, bibtex
from lsdflow_contract.errors import StageError
from lsdflow_contract.experiment import STAGES, Experiment, load_experiment
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import Manifest, read_manifest
from lsdflow_launch.chain import report_arguments
from lsdflow_launch.commands import run_stage, stage_command
from lsdflow_launch.options import Debug, Folder, Json, Set
from lsdflow_launch.output import print_answer, print_scores, result_facts, stdout_for_json

LOG = logging.getLogger("lsdflow.run")
WRITER = STAGES[-1]
# The manifest of predict names the identity of the checkpoint it used, not of the training.
SCORED = STAGES[STAGES.index("predict") :]
EVERY_S = 60.0
# A report that takes longer is stopped.
LIMIT_S = 600.0
NICENESS = 10


def scores_are_current(layout: ExperimentLayout) -> bool:
    """Return False if a result from the prediction on was made after its scores, according to the manifests' inputs."""
    manifests = {stage: manifest for stage in SCORED if (manifest := _manifest(layout, stage)) is not None}
    named = (
        (manifests.get(stage), identity)
        for manifest in manifests.values()
        for stage, identity in manifest.inputs.items()
    )
    return SCORED[-1] in manifests and all(source is None or source.identity == identity for source, identity in named)


def _manifest(layout: ExperimentLayout, stage: str) -> Manifest | None:
    try:
        return read_manifest(layout, stage)
    except StageError:
        return None


@contextlib.contextmanager
def refreshed_report(experiment: Experiment, every_s: float = EVERY_S) -> Iterator[None]:
    """Write the report every `every_s` seconds during a run; and once after it, if the last report was written."""
    refresher = _Refresher(experiment, every_s)
    refresher.thread.start()
    try:
        yield
    finally:
        refresher.stop.set()
        refresher.thread.join()
        if refresher.written:
            refresher.write(report_arguments(experiment))


class _Refresher:
    def __init__(self, experiment: Experiment, every_s: float) -> None:
        self.experiment, self.every_s = experiment, every_s
        self.stop, self.written = threading.Event(), False
        self.thread = threading.Thread(target=self._keep, name="report", daemon=True)

    def _keep(self) -> None:
        while not self.stop.wait(self.every_s):
            self.written = self.write(report_arguments(self.experiment, self.every_s))
            if not self.written:
                return

    def write(self, arguments: Sequence[str]) -> bool:
        """Write the report in a subprocess; False, with a log message, if it cannot be written."""
        try:
            command = [str(stage_command(WRITER)), *arguments]
            environment, nowhere = os.environ | {LAUNCHER_VARIABLE: "1"}, subprocess.DEVNULL
            with (
                tied_to_this_process() as stdin,
                subprocess.Popen(command, stdin=stdin, stdout=nowhere, stderr=nowhere, env=environment) as child,
            ):
                with contextlib.suppress(OSError):
                    os.setpriority(os.PRIO_PROCESS, child.pid, NICENESS)
                try:
                    child.wait(LIMIT_S)
                except subprocess.TimeoutExpired:
                    child.kill()
                    raise
        except (StageError, OSError, subprocess.TimeoutExpired) as error:
            LOG.info("the report could not be refreshed during the run: %s", error)
            return False
        return True


def add_report_verbs(app: typer.Typer) -> None:
    """Register `report` and `cite`."""

    @app.command()
    def report(
        folder: Folder,
        override: Set = None,
        as_json: Json = False,
        debug: Debug = False,
    ) -> None:
        """Write the report from the present results, at any time; computes no new scores."""
        with exit_codes(debug, as_json):
            experiment = load_experiment(folder, override or [])
            with stdout_for_json(as_json):
                code = run_stage(WRITER, report_arguments(experiment))
            scored = scores_are_current(experiment.layout)
            if as_json:
                print_answer(result_facts(experiment, code, scored=scored), "", as_json)
            else:
                print_scores(experiment.layout, scored=scored)
        raise typer.Exit(code)

    @app.command()
    def cite(as_bibtex: Annotated[bool, typer.Option("--bibtex", help="print BibTeX")] = False) -> None:
        """Print what to cite in a paper that uses lsdflow."""
        for found in (SOFTWARE, *REFERENCES):
            typer.echo(bibtex(found) if as_bibtex else f"{found.text()}\n")
