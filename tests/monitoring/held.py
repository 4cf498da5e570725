"""For test_left_behind.py, which names this file to a pytest of its own: a test that lasts until it is aborted."""

from __future__ import annotations

import time

from .conftest import Watched


def test_that_holds_everything_at_work(watched: Watched) -> None:
    (watched.experiment.layout.root / "held").touch()
    time.sleep(600)
