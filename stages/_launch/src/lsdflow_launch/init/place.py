"""The folder of a new experiment: never inside a volume, and removed if `init` fails or is interrupted."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import typer

from lsdflow_contract.errors import UsageError
from lsdflow_contract.layout import ExperimentLayout

# Files that mark a folder as part of a zarr or N5 container, or of a precomputed volume.
ZARR = (".zarray", ".zgroup", "zarr.json")
KEYS = {"attributes.json": ("n5", "dimensions"), "info": ("scales",)}


def refuse_place_in_volume(root: Path, sources: Sequence[Path]) -> None:
    """Raise UsageError (2) if the folder is a volume, is inside one, or is one of the sources."""
    place = root.resolve()
    used = {path.resolve() for path in sources}
    found = next((path for path in (place, *place.parents) if path in used or _is_volume(path)), None)
    if found is not None:
        raise UsageError(
            "an experiment cannot lie in a volume",
            where=root,
            found=f"{found} is a volume",
            fix="name a folder of its own: lsdflow init DIR --volume VOLUME",
        )


@contextlib.contextmanager
def removed_on_failure(layout: ExperimentLayout) -> Iterator[None]:
    """Remove the files of a new experiment if anything is raised, including Ctrl-C.

    typer.Exit is not a failure: the experiment is complete, and the user corrects its settings in its file.
    """
    new = [path for path in (layout.root, *layout.root.parents) if not path.exists()]
    try:
        yield
    except typer.Exit:
        raise
    except BaseException:
        if layout.root in new:
            shutil.rmtree(layout.root, ignore_errors=True)
        for path in (layout.experiment_toml, layout.schema_json, layout.images_env):
            path.unlink(missing_ok=True)
        for folder in new[1:]:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


def _is_volume(folder: Path) -> bool:
    if any((folder / name).is_file() for name in ZARR):
        return True
    return any(key in _json_of(folder / name) for name, keys in KEYS.items() for key in keys)


def _json_of(path: Path) -> dict[str, object]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
