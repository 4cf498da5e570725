"""Whether compiled code may be kept between processes: only in a folder that the user names.

Images have a read-only root, and nothing is written beside an installed package; so NUMBA_CACHE_DIR has to name a
folder that can be written to.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def has_code_cache() -> bool:
    """True if $NUMBA_CACHE_DIR names a folder that can be written to; makes it."""
    folder = os.environ.get("NUMBA_CACHE_DIR", "")
    if not folder:
        return False
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False
