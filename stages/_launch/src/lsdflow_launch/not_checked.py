"""The checks that `lsdflow validate` cannot do yet, by the stage that must finish first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lsdflow_contract.experiment import Experiment
from lsdflow_launch.chain import stages_of

NOT_CHECKED = "not_checked"


def not_checked(experiment: Experiment, found: Mapping[str, Sequence[Any]]) -> dict[str, list[str]]:
    """Return the remaining checks for each unfinished stage of the chain. `found`: the problems, by stage."""
    open_stages = [s for s in stages_of(experiment) if not experiment.layout.manifest(s).exists()]
    left: dict[str, list[str]] = {}
    for stage, text in _later_checks(experiment, found):
        if stage in open_stages:
            left.setdefault(stage, []).append(text)
    return left


def _later_checks(experiment: Experiment, found: Mapping[str, Sequence[Any]]) -> Iterator[tuple[str, str]]:
    """Yield pairs: the stage that must finish first, and the check."""
    if found.get("prepare"):
        yield "prepare", "settings against the shapes and voxel sizes of volumes that cannot be opened"
    yield "prepare", "grey values, ids and masks of all voxels (of large volumes, samples were read)"
    predict, evaluate = _table(experiment, "predict"), _table(experiment, "evaluate")
    if predict.get("mask"):
        yield "prepare", "predict.mask"
    regions = evaluate.get("regions")
    for name, region in regions.items() if isinstance(regions, dict) else ():
        if isinstance(region, dict) and region.get("mask"):
            yield "prepare", f"evaluate.regions.{name}.mask"
    if experiment.common.mode == "acrlsd" and isinstance(_table(experiment, "train-acrlsd").get("lsd_checkpoint"), int):
        yield "train-lsd", "train-acrlsd.lsd_checkpoint"
    yield "train-lsd", "memory of a training step"
    yield "train-acrlsd", "memory of a training step"
    if str(predict.get("checkpoint", "best")).isdigit():
        yield "train-acrlsd", "predict.checkpoint"
    yield "agglomerate", "memory of segment (number of fragments and edges)"


def _table(experiment: Experiment, stage: str) -> dict[str, Any]:
    table: dict[str, Any] = experiment.tables.get(stage, {})
    return table
