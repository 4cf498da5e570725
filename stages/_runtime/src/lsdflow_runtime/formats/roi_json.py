"""A JSON file {container, offset, size} that names a region of another container (offset and size z,y,x in nm)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from lsdflow_contract.errors import BadData
from lsdflow_contract.files import read_json
from lsdflow_runtime.formats.claims import to_nm3
from lsdflow_runtime.formats.source import SourceVolume

KEYS = ("container", "offset", "size")


def is_roi_json(path: Path) -> bool:
    """Whether a file is a JSON ROI container."""
    if not path.is_file() or path.suffix.lower() != ".json":
        return False
    content = read_json(path)
    return isinstance(content, dict) and all(key in content for key in KEYS)


def open_roi_json(
    path: Path, dataset: str | None, open_container: Callable[[Path, str | None], SourceVolume]
) -> SourceVolume:
    """Open the container that the file names; the region is in `roi_nm`.

    A relative container path is relative to the JSON file.

    Raises:
        BadData: the container is a JSON ROI file itself, or offset and size are not three numbers.
    """
    content = read_json(path)
    container = (path.parent / str(content["container"])).resolve()
    if is_roi_json(container):
        raise BadData("the container of a JSON ROI file is another JSON ROI file", where=path, found=str(container))
    offset = to_nm3(content["offset"], str(path), "offset")
    size = to_nm3(content["size"], str(path), "size")
    if min(size) <= 0:
        raise BadData("the region of the JSON ROI file is empty", where=path, wanted="a positive size", found=str(size))
    volume = open_container(container, dataset)
    return replace(volume, roi_nm=(offset, size), where=f"{volume.where} (region of {path})")
