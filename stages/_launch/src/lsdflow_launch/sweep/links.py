"""Links to the results of finished stages from one experiment folder of a sweep to the next; no volume is copied."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from lsdflow_contract.errors import OutputConflict
from lsdflow_contract.files import storage_errors
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.lut import luts_of
from lsdflow_contract.manifest import read_manifest
from lsdflow_contract.trainings import TRAININGS, current_training, move_to_results

WITH_ARRAYS = ("prepare", "predict", "watershed", "segment")


def made_by(stage: str, layout: ExperimentLayout) -> Iterator[Path]:
    """Yield the existing files and folders of a finished stage that later stages read; its manifest last."""
    arrays: dict[str, list[Path]] = {
        "watershed": [layout.store / "nodes"],
        "agglomerate": sorted(layout.store.glob("edges_*")),
    }
    if stage == "segment" and layout.manifest(stage).exists():
        arrays[stage] = [luts_of(layout, read_manifest(layout, stage))]
    for path in (
        *arrays.get(stage, []),
        *_containers(stage, layout),
        layout.store / "blocks" / stage,
        layout.manifest(stage),
    ):
        if path.exists():
            yield path


def _link_training(stage: str, layout: ExperimentLayout, target: ExperimentLayout) -> None:
    """Link the result of a training, and make it the current one of the target."""
    move_to_results(layout, stage)
    if not current_training(layout, stage):
        return
    folder = layout.results / stage / current_training(layout, stage)
    _link(folder, target.results / stage / folder.name)
    _link(target.results / stage / folder.name, target.train_dir(stage))


def _containers(stage: str, layout: ExperimentLayout) -> list[Path]:
    """Return the containers of the arrays that a stage wrote."""
    if stage not in WITH_ARRAYS or not layout.manifest(stage).exists():
        return []
    manifest = read_manifest(layout, stage)
    return sorted({manifest.output_array(layout, name)[0] for name in manifest.outputs})


def link_stages(stages: Iterable[str], source: Path, target: Path) -> None:
    """Link the results of finished stages of the experiment folder `source` into `target`; correct links are kept.

    Raises OutputConflict (73) if another file or folder is in the place of a link.
    """
    layout = ExperimentLayout(source)
    for stage in stages:
        if layout.manifest(stage).exists():
            if stage in TRAININGS:
                _link_training(stage, layout, ExperimentLayout(target))
            for path in made_by(stage, layout):
                _link(path, target / path.relative_to(source))


def _link(path: Path, link: Path) -> None:
    with storage_errors(link):
        link.parent.mkdir(parents=True, exist_ok=True)
        leads_to = os.path.relpath(path, link.parent.resolve())
        try:
            link.symlink_to(leads_to)
        except FileExistsError as error:
            if link.exists() and link.samefile(path):
                return
            fix = "a run of a sweep is no place for other results: move it away"
            raise OutputConflict("something else stands where a shared result belongs", where=link, fix=fix) from error
