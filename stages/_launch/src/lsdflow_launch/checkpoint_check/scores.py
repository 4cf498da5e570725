"""checks.csv, with one row per checked checkpoint; and best.json, the checkpoint with the lowest VOI."""

from __future__ import annotations

import csv
import io
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from lsdflow_contract.checkpoint import (
    WEIGHTS,
    BestCheckpoint,
    Bundle,
    bundle_folder,
    read_bundle,
    write_best,
)
from lsdflow_contract.errors import BadData, MissingInput, StageError
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.files import write_atomically
from lsdflow_contract.hashing import hash_of_file
from lsdflow_contract.sealing import read_sealed
from lsdflow_launch.checkpoint_check.experiment import STAGE

LOG = logging.getLogger("lsdflow.check")


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
