"""A folder without experiment: it may be an export, a volume, contain an experiment, or have a similar name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from pathlib import Path

from lsdflow_contract.errors import MissingInput
from lsdflow_contract.layout import ExperimentLayout

# Zarr 2 and 3, N5, precomputed; other formats are single files.
_VOLUME_MARKS = (".zarray", ".zgroup", "zarr.json", "attributes.json", "info")

# In the folder of a finished export: `export precomputed`, `export ome`; in that of an unfinished one.
EXPORT_RECORD, OME_RECORD, UNFINISHED = "lsdflow_export.json", "zarr.json", ".export"


def is_snapshot(path: Path) -> bool:
    """True for a snapshot of a training, by its name."""
    return re.fullmatch(r"batch_\d+\.hdf", path.name) is not None and path.is_file()


def require_viewable(folder: Path) -> None:
    """MissingInput (66) if this is no training snapshot, and no folder with the files of an experiment or an export."""
    marks = ("experiment.toml", EXPORT_RECORD, OME_RECORD)
    if folder.suffix == ".toml" or is_snapshot(folder) or any((folder / name).is_file() for name in marks):
        return
    what, fix = "no experiment file and no export", first_step(folder)
    if (folder / UNFINISHED).is_dir():
        what, fix = "the export is not finished", "run the same lsdflow export command again: it resumes"
    elif (folder.parent / EXPORT_RECORD).is_file():
        fix = f"lsdflow view {folder.parent}"
    wanted = "experiment.toml, what lsdflow export wrote, or a snapshot batch_<iteration>.hdf"
    raise MissingInput(what, where=folder, wanted=wanted, fix=fix)


def first_step(folder: Path) -> str:
    """The fix if `folder` was named as an experiment but is none."""
    if folder.is_file() or any((folder / mark).is_file() for mark in _VOLUME_MARKS):
        return f"this looks like a volume; make an experiment with it: lsdflow init exp --volume {folder}"
    below = list(_experiments(folder))
    if below:
        return f"there is an experiment in it: {', '.join(map(str, below[:3]))}"
    beside = {path.name: path for path in _experiments(folder.absolute().parent)}
    near = difflib.get_close_matches(folder.name, beside, n=1)
    if near:
        return f"did you mean {beside[near[0]]}?"
    return f"make one: lsdflow init {folder} --volume RAW.zarr --train LABELLED.zarr; or a trial: lsdflow demo {folder}"


def _experiments(folder: Path) -> Iterator[Path]:
    try:
        found = sorted(folder.iterdir())
    except OSError:
        return
    yield from (path for path in found if ExperimentLayout(path).experiment_toml.is_file())
