"""The map of lsd_error, made by the workers if its parts are there, and the segments that are most likely wrong.

scores.json: `lsd_error`; report/lsd_error.csv: segments by mean error, the most likely wrong first. Segments of very
few voxels are left out: their shape is that of noise.
"""

from __future__ import annotations

import csv
import io
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lsdflow_contract.errors import StageError
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.files import write_if_changed
from lsdflow_contract.graph import Overlaps
from lsdflow_evaluate.config import EvaluateConfig
from lsdflow_evaluate.scores.later_works import leave_work
from lsdflow_evaluate.without_truth.lsd_error import PART, lsd_error_task, mean_errors
from lsdflow_runtime.engine.block_task import outputs_of
from lsdflow_runtime.engine.blockwise import run_blocks

LOG = logging.getLogger("lsdflow.evaluate")
# Segments with fewer voxels taken are not listed; the CSV lists at most so many, scores.json the first of them.
FEWEST_TAKEN, MOST_IN_CSV, MOST_IN_SCORES = 64, 10_000, 20


@dataclass(frozen=True)
class Disagreement:
    """What scores.json tells, the rows of the CSV (segment, mean error in [0, 1], voxels taken), the works' keys, and
    the output for the manifest.
    """

    told: dict[str, Any]
    rows: list[tuple[int, float, int]] = field(default_factory=list)
    works: tuple[str, ...] = ()
    outputs: dict[str, str] = field(default_factory=dict)


def disagreement(experiment: Experiment, config: EvaluateConfig) -> Disagreement:
    """Make the map. With "auto", what keeps it from being made is told and no error."""
    if config.lsd_error == "off":
        return _not_made('evaluate.lsd_error = "off"')
    try:
        task = lsd_error_task(experiment)
    except StageError as error:
        if config.lsd_error == "on":
            raise
        return _not_made(f"{error.what}: {error.fix}" if error.fix else error.what)
    leave_work(experiment, task.key, task.config, {})
    run_blocks(task)
    found = mean_errors(task)
    rows = most_likely_wrong(found)
    output = task.outputs[PART]
    # Not the whole path: it names the key, and scores do not depend on the blocks.
    where = f"{output.path.name}/{output.spec.dataset}"
    total = int(found.truth.sum()) / max(int(found.size_vox.sum()), 1) / 255
    listed = [{"segment": s, "mean": mean, "voxels_taken": voxels} for s, mean, voxels in rows[:MOST_IN_SCORES]]
    facts = {name: task.config[name] for name in ("sigma_nm", "step")}
    told = {"made": True, "volume": where, "mean": total, "segments": len(found), **facts, "worst": listed}
    made = outputs_of([task])
    LOG.info("LSDs of the segmentation differ by %.3f from those predicted; map in %s", total, made[PART])
    return Disagreement(told, rows, (task.key,), made)


def most_likely_wrong(found: Overlaps) -> list[tuple[int, float, int]]:
    """Segments by falling mean error: id, mean in [0, 1], voxels taken."""
    mean = found.truth / np.maximum(found.size_vox, 1) / 255.0
    order = np.lexsort((found.fragment, -mean))
    listed = order[found.size_vox[order] >= FEWEST_TAKEN][:MOST_IN_CSV]
    return [(int(found.fragment[i]), float(mean[i]), int(found.size_vox[i])) for i in listed.tolist()]


def write_lsd_error(path: Path, found: Disagreement) -> None:
    """The list as a CSV; no file without a map."""
    if not found.works:
        path.unlink(missing_ok=True)
        return
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["rank", "segment", "mean_error", "voxels_taken"])
    table.writerows([rank, *row] for rank, row in enumerate(found.rows, start=1))
    write_if_changed(path, text.getvalue().encode())


def _not_made(reason: str) -> Disagreement:
    LOG.info("no map of LSD errors: %s", reason)
    return Disagreement({"made": False, "reason": reason})
