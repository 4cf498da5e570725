"""`lsdflow check-checkpoints`: VOI of a small segmentation with each checkpoint, computed by the ordinary stages.

1. the region: the held-out part of a training volume (experiment.py)
2. for each checkpoint without a row of these settings in checks.csv: a separate experiment under
   train/train-acrlsd/checks/<iteration>/ (experiment.py), its stages, its row
3. best.json: the checkpoint with the lowest VOI

An interrupted check resumes where its stages stopped. With --follow, all steps are repeated until the training ends.
"""

from __future__ import annotations

import contextlib
import csv
import io
import logging
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from lsdflow_command.app import exit_codes
from lsdflow_command.processes import one_at_a_time
from lsdflow_contract.checkpoint import (
    WEIGHTS,
    BestCheckpoint,
    Bundle,
    bundle_folder,
    bundle_iterations,
    read_best,
    read_bundle,
    write_best,
)
from lsdflow_contract.errors import BadData, MissingInput, OutputConflict, StageError
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_contract.files import storage_errors, write_atomically, write_if_changed
from lsdflow_contract.hashing import hash_of_file
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import read_manifest
from lsdflow_contract.sealing import read_sealed
from lsdflow_launch.checkpoint_check.experiment import (
    STAGE,
    CheckedRegion,
    check_folder,
    check_text,
    find_region,
    settings_of,
)
from lsdflow_launch.commands import Call, ask_stage, run_stage
from lsdflow_launch.options import Debug, Folder, Json, Set
from lsdflow_launch.output import print_answer, stdout_for_json

LOG = logging.getLogger("lsdflow.check")
STAGES_OF_A_CHECK = ("prepare", "predict", "watershed", "agglomerate", "segment", "evaluate")
POLL_S = 15.0


def add_check_verb(app: typer.Typer) -> None:
    """Register `check-checkpoints`."""

    @app.command(name="check-checkpoints")
    def check_checkpoints(
        folder: Folder,
        every: Annotated[int, typer.Option(min=1, help="check only iterations that are multiples of this")] = 1,
        follow: Annotated[
            bool, typer.Option("--follow", help="wait for new checkpoints until the training has finished")
        ] = False,
        volume: Annotated[str | None, typer.Option(help="training volume to check on (default: the first)")] = None,
        keep: Annotated[bool, typer.Option("--keep", help="keep the small segmentations")] = False,
        override: Set = None,
        as_json: Json = False,
        debug: Debug = False,
    ) -> None:
        """Segment a small labelled region with each checkpoint; `predict` then uses the one with the lowest VOI."""
        with exit_codes(debug, as_json):
            experiment = load_experiment(folder, override or [])
            region = find_region(experiment, volume, ask_stage)
            checks = Checks(experiment, region, every, keep)
            with stdout_for_json(as_json):
                code = checks.follow() if follow else checks.update()
            facts: dict[str, Any] = {"exit_code": code, "table": str(checks.path), "region": region.words}
            text = ""
            if code == 0 and (rows := checks.compared()):
                best = read_best(experiment.layout.best_checkpoint(STAGE))
                facts |= {"checkpoints": len(rows), "best": best.model_dump()}
                text = f"{checks.path}: {len(rows)} checkpoints on {region.words}\n"
                text += f"best: iteration {best.iteration}, VOI {best.voi:.3f} bits"
            print_answer(facts, text, as_json)
        raise typer.Exit(code)


@dataclass(frozen=True)
class Checks:
    """The checks of one experiment on one region: every N iterations; keep: also keep the arrays of a check."""

    experiment: Experiment
    region: CheckedRegion
    every: int = 1
    keep: bool = False
    caller: Call = run_stage

    @property
    def path(self) -> Path:
        """The path of checks.csv."""
        return self.experiment.layout.train_dir(STAGE) / "checks.csv"

    @property
    def training_finished(self) -> bool:
        """True if the training has written its manifest."""
        return self.experiment.layout.manifest(STAGE).exists()

    def follow(self, sleep: Callable[[float], object] = time.sleep) -> int:
        """Repeat `update` until the training has finished, then once more. Returns and raises as `update`."""
        with self._lock():
            while True:
                # Read this first: the last checkpoint is written before the manifest.
                finished = self.training_finished
                if finished:
                    return self._update(last=True)
                if self._iterations() and (code := self._update(last=False)):
                    return code
                sleep(POLL_S)

    def update(self) -> int:
        """Check the unchecked checkpoints, and choose one. Returns the exit code of the first failed stage, else 0.

        Raises MissingInput (66) without checkpoints; OutputConflict (73) if another check-checkpoints is running.
        """
        self._require_checkpoints()
        with self._lock():
            return self._update(last=True)

    def compared(self) -> list[CheckRow]:
        """Return the rows that were computed with the current settings."""
        return [row for row in read_rows(self.path) if row.settings == self._settings()]

    def choose(self) -> BestCheckpoint:
        """Write best.json; see choose_by_voi."""
        return choose_by_voi(self.experiment, self.compared())

    def _lock(self) -> contextlib.AbstractContextManager[None]:
        return one_at_a_time(self.path.with_name(".checks.lock"), "check-checkpoints")

    def _update(self, last: bool) -> int:
        self._require_checkpoints()
        done = {(row.iteration, row.weights_sha256) for row in self.compared()}
        for iteration in self._due():
            bundle = valid_bundle(bundle_folder(self.experiment.layout.checkpoints(STAGE), iteration))
            if bundle is not None and (iteration, bundle.weights_sha256) not in done:
                code = self._check(bundle)
                if code:
                    return code
        try:
            if self.compared():
                self.choose()
        except OutputConflict as error:
            if last:
                raise
            LOG.warning("%s", error.what)
        return 0

    def _require_checkpoints(self) -> None:
        if not self._iterations():
            raise MissingInput("no checkpoints", where=self.experiment.layout.checkpoints(STAGE), fix="train first")

    def _due(self) -> list[int]:
        """Return the checkpoints to check: every N iterations, and the last one of a finished training."""
        there = self._iterations()
        last = {there[-1]} if self.training_finished else set()
        return [iteration for iteration in there if iteration % self.every == 0 or iteration in last]

    def _check(self, bundle: Bundle) -> int:
        """Run the stages of one check; write its row if they succeed. Returns the exit code."""
        started, folder = time.monotonic(), check_folder(self.experiment, bundle.iteration)
        LOG.info("checking iteration %d (%s)", bundle.iteration, self.region.words)
        self._begin(folder, bundle)
        for stage in STAGES_OF_A_CHECK:
            code = self.caller(stage, ["run", "--experiment", str(folder / "experiment.toml")])
            if code:
                return self._failed(stage, code, bundle)
        row = best_row(bundle, read_scores(folder), time.monotonic() - started, self.region.words, self._settings())
        write_rows(self.path, [*_others(read_rows(self.path), row), row])
        LOG.info(
            "iteration %d: VOI %.3f bits (split %.3f + merge %.3f), adapted Rand error %.3f, threshold %g",
            *(row.iteration, row.voi, row.voi_split, row.voi_merge, row.adapted_rand_error, row.threshold),
        )
        if not self.keep:
            _remove_arrays(ExperimentLayout(folder))
        return 0

    def _begin(self, folder: Path, bundle: Bundle) -> None:
        """Write the experiment file of the check; delete an earlier check of this iteration with another file."""
        text = check_text(self.experiment, self.region, bundle, self._prepared()).encode()
        file = folder / "experiment.toml"
        if folder.exists() and not (file.is_file() and file.read_bytes() == text):
            with storage_errors(folder):
                shutil.rmtree(folder)
        write_if_changed(file, text)

    def _failed(self, stage: str, code: int, bundle: Bundle) -> int:
        if not bundle_folder(self.experiment.layout.checkpoints(STAGE), bundle.iteration).exists():
            LOG.warning("iteration %d is left out: the training has deleted it meanwhile", bundle.iteration)
            return 0
        LOG.error("%s of the check of iteration %d ended with exit code %d", stage, bundle.iteration, code)
        return code

    def _iterations(self) -> list[int]:
        return bundle_iterations(self.experiment.layout.checkpoints(STAGE))

    def _prepared(self) -> str:
        return read_manifest(self.experiment.layout, "prepare").identity

    def _settings(self) -> str:
        return settings_of(self.experiment, self.region, self._prepared())


def _others(rows: Sequence[CheckRow], row: CheckRow) -> list[CheckRow]:
    return [other for other in rows if (other.iteration, other.settings) != (row.iteration, row.settings)]


def _remove_arrays(layout: ExperimentLayout) -> None:
    """Remove the arrays and the store, which need most space; report, manifests and logs are kept."""
    for path in (layout.data, layout.results, layout.luts, layout.store):
        shutil.rmtree(path, ignore_errors=True)


@dataclass(frozen=True)
class CheckRow:
    """Scores of a small segmentation with one checkpoint, at its best threshold; VOI in bits.

    `settings`: hash of region and post-processing; only rows with the same hash are compared.
    """

    iteration: int
    voi_split: float
    voi_merge: float
    voi: float
    adapted_rand_error: float
    threshold: float
    seconds: float
    region: str
    weights_sha256: str
    settings: str


def best_row(bundle: Bundle, scores: Any, seconds: float, region: str, settings: str) -> CheckRow:
    """Return the row of the threshold with the lowest VOI in report/scores.json. BadData (65) without scores."""
    merge_function = scores.get("merge_function")
    rows = [
        r for r in scores.get("thresholds", []) if r.get("voi") is not None and r["merge_function"] == merge_function
    ]
    if not rows:
        raise BadData(
            "the check has no scores",
            where=region,
            found=scores.get("reason", "no labels in the region"),
            fix="check on another training volume: --volume NAME",
        )
    best = min(rows, key=lambda row: (row["voi"], row["threshold"]))
    names = ("voi_split", "voi_merge", "voi", "adapted_rand_error", "threshold")
    values = {name: float(best[name]) for name in names}
    return CheckRow(
        iteration=bundle.iteration,
        **values,
        seconds=round(seconds, 1),
        region=region,
        weights_sha256=bundle.weights_sha256,
        settings=settings,
    )


def read_rows(path: Path) -> list[CheckRow]:
    """Return all rows of checks.csv; empty if there is no such file. BadData (65) if it cannot be parsed."""
    if not path.exists():
        return []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return [_row(values) for values in csv.DictReader(file)]
    except (KeyError, ValueError, TypeError) as error:
        raise BadData("damaged file", where=path, found=error, fix="delete it: the checks are made again") from error


def write_rows(path: Path, rows: Sequence[CheckRow]) -> None:
    """Write checks.csv atomically, ascending by iteration."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(CheckRow)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in sorted(rows, key=lambda row: (row.iteration, row.settings)))
    write_atomically(path, lambda file: file.write(text.getvalue().encode()))


def choose_by_voi(experiment: Experiment, rows: Sequence[CheckRow]) -> BestCheckpoint:
    """Write best.json: the undamaged checkpoint with the lowest VOI among `rows`, the newest if equal.

    Raises MissingInput (66) if none of the checked checkpoints exists any more.
    """
    checkpoints = experiment.layout.checkpoints(STAGE)
    ranked = sorted(rows, key=lambda row: (row.voi, -row.iteration))
    found = next(((row, b) for row in ranked if (b := _of_row(checkpoints, row)) is not None), None)
    if found is None:
        raise MissingInput("no checked checkpoint is there", where=checkpoints, fix="train longer, or keep more")
    row, bundle = found
    best = BestCheckpoint(
        iteration=row.iteration,
        weights_sha256=row.weights_sha256,
        validation_loss=bundle.validation_loss,
        chosen_by="voi",
        voi=row.voi,
    )
    write_best(experiment.layout.best_checkpoint(STAGE), best)
    return best


def valid_bundle(folder: Path) -> Bundle | None:
    """Return the bundle in a folder, with verified weights; None, with a warning, if it is missing or damaged."""
    try:
        bundle = read_bundle(folder)
        weights = hash_of_file(folder / WEIGHTS)
    except (StageError, FileNotFoundError) as error:
        LOG.warning("checkpoint %s is left out: %s", folder, error)
        return None
    if weights != bundle.weights_sha256:
        LOG.warning("checkpoint %s is left out: its weights are damaged", folder)
        return None
    return bundle


def _of_row(checkpoints: Path, row: CheckRow) -> Bundle | None:
    bundle = valid_bundle(bundle_folder(checkpoints, row.iteration))
    return bundle if bundle is not None and bundle.weights_sha256 == row.weights_sha256 else None


def _row(values: dict[str, str]) -> CheckRow:
    kinds = {"iteration": int, "region": str, "weights_sha256": str, "settings": str}
    return CheckRow(**{field.name: kinds.get(field.name, float)(values[field.name]) for field in fields(CheckRow)})


def read_scores(folder: Path) -> Any:
    """Return report/scores.json of a finished check."""
    return read_sealed(folder / "report" / "scores.json", "remove it and check again")
