"""`lsdflow verify` and `lsdflow repair`: re-read the results of all finished stages, and recompute what is damaged.

Each stage re-reads its own results and compares them with the checksums in its done marks and manifest. A stage shows
its progress on stderr; its answer on stdout is JSON, from which the table is made.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from lsdflow_command.app import exit_codes
from lsdflow_command.experiment_lock import experiment_lock
from lsdflow_contract.errors import BadData, BlocksFailed, MissingInput, StoreUnreachable
from lsdflow_contract.experiment import BLOCK_STAGES, STAGES, Experiment, load_experiment
from lsdflow_contract.failed_blocks import FAILED_BLOCKS
from lsdflow_launch.chain import FIRST, STOPPED, stage_arguments
from lsdflow_launch.commands import error_of, run_stage_for_answer
from lsdflow_launch.options import Debug, Folder, Json, Set
from lsdflow_launch.output import next_line, print_answer
from lsdflow_launch.slurm.jobs import refuse_if_known_to_be_queued

REPAIRABLE = (FIRST, *BLOCK_STAGES)


@dataclass(frozen=True)
class Checked:
    """What a stage found in its results: its exit code, and its facts or its error as JSON."""

    stage: str
    exit_code: int
    answer: Mapping[str, Any]

    def line(self) -> str:
        """Return the row of the table."""
        if self.exit_code:
            return f"{self.stage:<12} {'':>9} {'':>8}  {error_of(self.answer).what}"
        blocks, damaged = _sum(self.answer, "blocks_read_back", "blocks"), _sum(self.answer, "broken")
        state = "repaired" if damaged else "correct"
        if failed := self.answer.get(FAILED_BLOCKS):
            state += f", without {len(failed)} failed blocks that were accepted"
        return f"{self.stage:<12} {blocks or '':>9} {damaged or '':>8}  {state}"


def _sum(facts: Mapping[str, Any], *names: str) -> int:
    """Return the sum over the passes of a stage (NAME, PASS_NAME) of the first of `names` that it reports.

    The count of a pass is a number, or that of prepare a number for each volume.
    """
    for name in names:
        found = [value for key, value in facts.items() if key == name or key.endswith(f"_{name}")]
        found = [value for value in found if isinstance(value, int | dict)]
        if found:
            return sum(sum(value.values()) if isinstance(value, dict) else int(value) for value in found)
    return 0


def check_stages(experiment: Experiment, verb: str) -> Iterator[Checked]:
    """Verify or repair the finished stages, in order; a generator of what each of them found.

    `verify` checks all of them. `repair` ends at a stage that cannot be repaired, because the next ones read its
    results; but not at prepare, whose sources may be gone and are not read by later stages. Both end when they are
    interrupted, or when the store does not answer. Raises MissingInput (66) if no stage has finished.
    """
    stages = [s for s in experiment.stages if experiment.layout.manifest(s).exists()]
    if verb == "repair":
        stages = [stage for stage in stages if stage in REPAIRABLE]
    if not stages:
        raise MissingInput(
            "no stage has finished" if verb == "verify" else "no finished stage can be repaired",
            where=experiment.layout.root,
            wanted=", ".join(STAGES if verb == "verify" else REPAIRABLE),
            fix="lsdflow run resumes the stages that are not finished",
        )
    for stage in stages:
        code, answer = run_stage_for_answer(stage, stage_arguments(verb, experiment))
        yield Checked(stage, code, answer)
        if code in (*STOPPED, StoreUnreachable.exit_code) or (code and verb == "repair" and stage != FIRST):
            return


def add_integrity_verbs(app: typer.Typer) -> None:
    """Register `verify` and `repair`."""

    @app.command()
    def verify(folder: Folder, override: Set = None, as_json: Json = False, debug: Debug = False) -> None:
        """Re-read the results of all finished stages and report what is missing or damaged; changes nothing."""
        raise typer.Exit(_report("verify", folder, override, as_json=as_json, debug=debug))

    @app.command()
    def repair(folder: Folder, override: Set = None, as_json: Json = False, debug: Debug = False) -> None:
        """Re-read all volumes and blocks, and recompute only those that are missing or damaged."""
        raise typer.Exit(_report("repair", folder, override, as_json=as_json, debug=debug))


def _report(verb: str, folder: Path, override: list[str] | None, *, as_json: bool, debug: bool) -> int:
    """Print the table (or JSON) and return the first exit code that is not 0."""
    with exit_codes(debug, as_json):
        checked = []
        experiment = load_experiment(folder, override or [])
        if verb == "repair":
            refuse_if_known_to_be_queued(experiment)
        with experiment_lock(experiment.layout) if verb == "repair" else nullcontext():
            for found in check_stages(experiment, verb):
                checked.append(found)
                if found.exit_code and not as_json:
                    typer.echo(error_of(found.answer).message(), err=True)
    code = next((found.exit_code for found in checked if found.exit_code), 0)
    if as_json:
        answers = {found.stage: found.answer for found in checked}
        typer.echo(json.dumps({"exit_code": code, "stages": list(answers), "answers": answers}))
        return code
    typer.echo("\n".join([f"{'stage':<12} {'blocks':>9} {'damaged':>8}", *(found.line() for found in checked)]))
    damaged = (BadData.exit_code, BlocksFailed.exit_code)
    if verb == "verify" and any(found.exit_code in damaged and found.stage in REPAIRABLE for found in checked):
        step = f"lsdflow repair {shlex.quote(str(folder))}    # recomputes what is damaged"
        print_answer({}, next_line(step), as_json=False)
    return code
