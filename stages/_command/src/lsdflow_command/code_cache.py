"""The cache of compiled code: a folder named by the user, or a private folder of this user.

Compiling the code of a stage takes about ten seconds, loading it a fraction of one. Cached code is loaded without a
check, so nobody else may have write access to the folder. Nothing is written next to an installed package.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

VARIABLE = "NUMBA_CACHE_DIR"


def use_own_code_cache() -> None:
    """Use <$XDG_CACHE_HOME or ~/.cache>/lsdflow if the user names no folder, and it is private or can be created.

    Must be called before numba is imported, because numba reads the variable once.
    """
    if VARIABLE in os.environ:
        return
    home = os.environ.get("HOME", "")
    caches = Path(os.environ.get("XDG_CACHE_HOME") or f"{home}/.cache")
    if caches.is_absolute() and (home or "XDG_CACHE_HOME" in os.environ) and _is_private(caches / "lsdflow"):
        os.environ[VARIABLE] = str(caches / "lsdflow" / "numba")


def _is_private(folder: Path) -> bool:
    """Create the folder; True if it is a directory (not a link) of this user with access for nobody else."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def has_code_cache() -> bool:
    """True if $NUMBA_CACHE_DIR names a folder with write access; creates it."""
    folder = os.environ.get(VARIABLE, "")
    if not folder:
        return False
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False
