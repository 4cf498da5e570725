"""Finds an array in a container that is a folder tree, and lists the existing arrays if it is missing."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from lsdflow_contract.errors import BadData, ConfigError, MissingInput
from lsdflow_contract.files import read_json
from lsdflow_runtime.formats.attributes import named_axes

SEARCH_DEPTH = 6
MOST_LISTED = 12


def folder_of(container: Path, dataset: str) -> Path:
    """The folder of a dataset below its container.

    Raises:
        ConfigError: the dataset is outside the container.
    """
    parts = [part for part in dataset.strip("/").split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ConfigError("a dataset name may not leave its container", where=container, found=repr(dataset))
    return container.joinpath(*parts)


def arrays_below(container: Path, is_array: Callable[[Path], bool]) -> list[str]:
    """Names of the arrays in a folder tree; array folders are not entered."""
    found: list[str] = []
    for folder, names, _ in os.walk(container):
        here = Path(folder)
        depth = len(here.relative_to(container).parts)
        if is_array(here):
            found.append(here.relative_to(container).as_posix())
            names.clear()
        if depth >= SEARCH_DEPTH:
            names.clear()
        names.sort()
    return found


def first_folders(container: Path, most: int) -> list[Path]:
    """The first folders of a tree, at most `most`."""
    return [Path(folder) for folder, _, _ in islice(os.walk(container), most)]


def no_such_dataset(container: Path, dataset: str, existing: Iterable[str]) -> MissingInput:
    """The error for a missing dataset, with the list of existing ones."""
    known = list(existing)
    near = difflib.get_close_matches(dataset, known, n=1, cutoff=0.5)
    return MissingInput(
        f"no dataset {dataset!r} in the container",
        where=container,
        wanted=dataset or "an array",
        found=", ".join(known[:MOST_LISTED]) + (" ..." if len(known) > MOST_LISTED else "") or "no arrays",
        fix=f"did you mean {near[0]!r}?" if near else "name one of the datasets found" * bool(known),
    )


def json_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file; {} if the file does not exist."""
    if not path.is_file():
        return {}
    value = read_json(path)
    if not isinstance(value, dict):
        raise BadData("metadata is not a JSON object", where=path, found=type(value).__name__)
    return value


def webknossos_axes(folder: Path) -> list[list[object]]:
    """The axes of the layer that contains the array in `folder`, if webKnossos describes it (DATASET/LAYER/MAG)."""
    layers = json_object(folder.parent.parent / "datasource-properties.json").get("dataLayers", [])
    mags = [mag for layer in layers if layer["name"] == folder.parent.name for mag in layer.get("mags", [])]
    return [names for mag in mags for names in named_axes({"axisOrder": mag.get("axisOrder")}).values()]
