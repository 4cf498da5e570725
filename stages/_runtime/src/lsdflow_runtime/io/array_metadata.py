"""Metadata of the arrays of lsdflow: written atomically with a seal, and written again if they are damaged.

Every folder above an array is a zarr group, so that a container can be opened from its root by any zarr library.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from lsdflow_contract.errors import BadData
from lsdflow_contract.files import TEMPORARY_SUFFIX, fsync_folder, storage_errors, write_json
from lsdflow_contract.sealing import seal_array
from lsdflow_runtime.formats.folders import json_object

ZarrFormat = Literal[2, 3]
_GROUP_FILES: dict[ZarrFormat, str] = {2: ".zgroup", 3: "zarr.json"}
_GROUPS: dict[ZarrFormat, dict[str, Any]] = {
    2: {"zarr_format": 2},
    3: {"zarr_format": 3, "node_type": "group", "attributes": {}},
}
_ARRAY_FILES: dict[ZarrFormat, tuple[str, ...]] = {2: (".zarray", ".zattrs"), 3: ("zarr.json",)}


def write_groups(container: Path, dataset: str, zarr_format: ZarrFormat) -> None:
    """Make zarr groups of the container and of the folders between it and a dataset, if they are not groups yet.

    Metadata of groups of the other format are removed, because a folder with both is read in one format only.
    """
    with storage_errors(container):
        for folder in reversed([container / parent for parent in Path(dataset).parents]):
            if not _is_group(folder, zarr_format):
                write_json(folder / _GROUP_FILES[zarr_format], _GROUPS[zarr_format])
            other: ZarrFormat = 2 if zarr_format == 3 else 3
            if _is_group(folder, other):
                (folder / _GROUP_FILES[other]).unlink()


def make_array(folder: Path, create: Callable[[Path], object]) -> None:
    """Call `create` for an array in a hidden folder, seal its metadata, and rename it to `folder`.

    Hidden folders of killed processes are removed, which is safe because the stage lock excludes other processes.
    """
    with storage_errors(folder):
        for leftover in folder.parent.glob(f".{folder.name}.*{TEMPORARY_SUFFIX}"):
            shutil.rmtree(leftover, ignore_errors=True)
    with storage_errors(folder), _hidden(folder, create) as made:
        made.rename(folder)
        fsync_folder(folder.parent)


def write_metadata_again(folder: Path, zarr_format: ZarrFormat, create: Callable[[Path], object]) -> None:
    """Write the metadata of an array again, as `create` makes them; its chunks are not changed."""
    with storage_errors(folder), _hidden(folder, create) as made:
        for name in _ARRAY_FILES[zarr_format]:
            (made / name).replace(folder / name)
        fsync_folder(folder)


@contextmanager
def _hidden(folder: Path, create: Callable[[Path], object]) -> Iterator[Path]:
    made = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}{TEMPORARY_SUFFIX}")
    try:
        create(made)
        seal_array(made)
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _is_group(folder: Path, zarr_format: ZarrFormat) -> bool:
    try:
        found = json_object(folder / _GROUP_FILES[zarr_format])
    except BadData:
        return False
    kind = found.get("node_type") if zarr_format == 3 else "group"
    return found.get("zarr_format") == zarr_format and kind == "group"
