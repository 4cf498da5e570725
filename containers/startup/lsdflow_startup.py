"""Runs at the start of every Python of an image: caches of libraries go to a folder that belongs to this user alone.

An image knows neither the user it runs as nor which folder that user may write to. A fixed folder under /tmp would
belong to whoever comes first, who could place there what others load (numba and torch keep code in their caches).
Hence <temporary folder>/lsdflow-<uid>, mode 0700, used only if it belongs to this user. Variables that are set already
stay.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

_CACHES = {
    "NUMBA_CACHE_DIR": "numba",
    "MPLCONFIGDIR": "matplotlib",
    "TORCHINDUCTOR_CACHE_DIR": "torchinductor",
    "TRITON_CACHE_DIR": "triton",
    "CUDA_CACHE_PATH": "cuda",
    "XDG_CACHE_HOME": "cache",
    "XDG_CONFIG_HOME": "config",
}
# With a read-only root and no tmpfs on /tmp, shared memory is the one place left that can be written.
_LAST_RESORT = "/dev/shm"  # noqa: S108


def _temporary_folder() -> Path | None:
    """$TMPDIR, /tmp, ... as tempfile chooses, else shared memory; never the working directory."""
    for folder in (os.environ.get("TMPDIR"), "/tmp", "/var/tmp", _LAST_RESORT):  # noqa: S108
        if folder and os.access(folder, os.W_OK | os.X_OK):
            return Path(folder)
    return None


def _private(folder: Path) -> bool:
    """Make the folder; false unless it is a directory (no link) of this user that nobody else may enter."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def _prepare() -> None:
    temporary = _temporary_folder()
    if temporary is None:
        return
    os.environ["TMPDIR"] = tempfile.tempdir = str(temporary)
    caches = temporary / f"lsdflow-{os.getuid()}"
    if _private(caches):
        for variable, name in _CACHES.items():
            os.environ.setdefault(variable, str(caches / name))


_prepare()
