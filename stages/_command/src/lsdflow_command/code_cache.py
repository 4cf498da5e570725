"""Where compiled code is kept between processes: in a folder that the user names, or in one of this user alone.

Compiling takes a stage some ten seconds; the code of an earlier process takes a fraction of one. It is loaded as it
is there, so the folder must be one that nobody else can write to. Nothing is written beside an installed package.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

VARIABLE = "NUMBA_CACHE_DIR"


def use_own_code_cache() -> None:
    """Where the user names no folder, take <$XDG_CACHE_HOME or ~/.cache>/lsdflow, if it is private or can be made so.

    Before numba is imported: it reads the variable once.
    """
    if VARIABLE in os.environ:
        return
    home = os.environ.get("HOME", "")
    caches = Path(os.environ.get("XDG_CACHE_HOME") or f"{home}/.cache")
    if caches.is_absolute() and (home or "XDG_CACHE_HOME" in os.environ) and _is_private(caches / "lsdflow"):
        os.environ[VARIABLE] = str(caches / "lsdflow" / "numba")


def _is_private(folder: Path) -> bool:
    """Make the folder, or find it ours: a directory (no link) of this user that nobody else may enter."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def has_code_cache() -> bool:
    """True if $NUMBA_CACHE_DIR names a folder that can be written to; makes it."""
    folder = os.environ.get(VARIABLE, "")
    if not folder:
        return False
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False
