"""The folder of these tests on the import path: they share what finds the commands of pages."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
