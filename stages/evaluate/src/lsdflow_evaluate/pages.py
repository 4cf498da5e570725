"""The files of the report: a page of the whole experiment, one of every stage, the viewer's state. Each by rename.

report/index.html  report/<stage>.html  report/neuroglancer.json
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

from lsdflow_contract.errors import StageError
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.files import write_atomically, write_json
from lsdflow_evaluate.artefacts import Segmented, open_segmented
from lsdflow_evaluate.config import EvaluateConfig
from lsdflow_evaluate.report import ReportData, render_pages
from lsdflow_evaluate.scores.scores_file import NO_TRUTH, present_result, scores_without
from lsdflow_evaluate.shown import history
from lsdflow_evaluate.shown.gather import Gathered, report_data
from lsdflow_runtime.io.target import open_truth, target_grid

LOG = logging.getLogger("lsdflow.evaluate")
NOT_YET = "no scores of this segmentation yet: evaluate run makes them"


def write_pages(experiment: Experiment, data: ReportData) -> None:
    """Write all of them."""
    folder = experiment.layout.report
    write_json(folder / "neuroglancer.json", data.neuroglancer_state or {})
    for name, page in render_pages(data):
        _write(folder / f"{name}.html", page.encode())
    LOG.info("report: %s", folder / "index.html")


def _write(path: Path, content: bytes) -> None:
    write_atomically(path, lambda file: file.write(content))


def write_report(experiment: Experiment, refresh_s: int | None = None) -> list[StageError]:
    """The report of what is there now; nothing is counted. Returns what could not be read: the pages show it, too.

    What a stage has still to make is no error. `refresh_s`: browsers load the pages again after so long.
    """
    config = experiment.table("evaluate", EvaluateConfig)
    collector = history.Collector()
    collector.problems.extend(collector.collect("evaluate", lambda: history.run_problems(experiment), []))
    gathered, scores = _gathered(experiment, config, collector)
    data = report_data(experiment, config, gathered, scores, collector)
    write_pages(experiment, replace(data, refresh_s=refresh_s))
    return collector.errors


def _gathered(
    experiment: Experiment, config: EvaluateConfig, collector: history.Collector
) -> tuple[Gathered, dict[str, Any]]:
    layout = experiment.layout
    if not layout.manifest("prepare").exists() and not layout.target_volume.exists():
        return Gathered(None, None, None), scores_without(False, "prepare has not finished", config.voi_limit)
    grid = collector.collect("prepare", lambda: target_grid(experiment), None)
    if grid is None:
        return Gathered(None, None, None), scores_without(False, "the target volume is missing", config.voi_limit)
    truth = collector.collect("prepare", lambda: open_truth(experiment, config.truth_dataset, grid), None)
    segmented: Segmented | None = None
    if layout.manifest("segment").exists() and layout.manifest("watershed").exists():
        segmented = collector.collect("segment", lambda: open_segmented(experiment, grid), None)
    result, scores = present_result(experiment, config)
    if not scores:
        reason = NO_TRUTH if truth is None else NOT_YET if segmented else "nothing is segmented yet"
        scores = scores_without(truth is not None, reason, config.voi_limit)
    return Gathered(grid, segmented, truth, result=result), scores
