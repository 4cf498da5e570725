"""The file for the path of a request. Dots, links or encoded characters cannot lead out of the served folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote

FORBIDDEN_PARTS = {"", ".", ".."}


def parts_of(target: str) -> tuple[str, ...] | None:
    """The decoded parts of the path of a request, without its query; None if one of them is not a plain name.

    Each part is decoded once, after the path is split, so an encoded slash stays within a part and is refused.
    """
    path = target.partition("?")[0].partition("#")[0]
    if not path.startswith("/"):
        return None
    *folders, last = (unquote(part) for part in path[1:].split("/"))
    parts = (*folders, *([last] if last else []))
    plain = all(p not in FORBIDDEN_PARTS and not set(p) & {"/", "\\", "\0"} for p in parts)
    return parts if plain else None


def file_in(folder: Path, parts: Sequence[str]) -> Path | None:
    """The file below `folder` with this name; None if it does not exist or if a link leads out of the folder."""
    try:
        root = folder.resolve(strict=True)
        found = root.joinpath(*parts).resolve(strict=True)
    except (OSError, ValueError, RuntimeError):
        return None
    return found if found.is_relative_to(root) and found.is_file() else None
