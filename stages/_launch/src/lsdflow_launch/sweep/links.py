"""What finished stages made in one experiment folder of a sweep, linked into the next: no volume is copied."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from lsdflow_contract.errors import NotOurs
from lsdflow_contract.files import storage_errors
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import read_manifest

WITH_ARRAYS = ("prepare", "predict", "watershed", "segment")


def made_by(stage: str, layout: ExperimentLayout) -> Iterator[Path]:
    """Files and folders that a finished stage leaves for later ones, as far as they are there; its manifest last."""
    arrays: dict[str, list[Path]] = {
        "train-lsd": [layout.train_dir("train-lsd")],
        "train-acrlsd": [layout.train_dir("train-acrlsd")],
        "watershed": [layout.store / "nodes"],
        "agglomerate": sorted(layout.store.glob("edges_*")),
        "segment": [layout.luts],
    }
    for path in (
        *arrays.get(stage, []),
        *_containers(stage, layout),
        layout.store / "blocks" / stage,
        layout.manifest(stage),
    ):
        if path.exists():
            yield path


def _containers(stage: str, layout: ExperimentLayout) -> list[Path]:
    """The containers of the arrays that a stage left."""
    if stage not in WITH_ARRAYS or not layout.manifest(stage).exists():
        return []
    manifest = read_manifest(layout, stage)
    return sorted({manifest.output_array(layout, name)[0] for name in manifest.outputs})


def link_stages(stages: Iterable[str], source: Path, target: Path) -> None:
    """Link what finished stages of the experiment folder `source` made into `target`; links that stand there stay.

    Raises NotOurs (73) if something else stands at the place of a link.
    """
    layout = ExperimentLayout(source)
    for stage in stages:
        if layout.manifest(stage).exists():
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
            hint = "a run of a sweep is no place for other results: move it away"
            raise NotOurs("something else stands where a shared result belongs", where=link, hint=hint) from error
