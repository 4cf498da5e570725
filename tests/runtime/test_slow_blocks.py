"""How a worker without a block waits for the last blocks of the others (the real thing: test_blockwise.py)."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from lsdflow_runtime.engine import slow_blocks
from lsdflow_runtime.store.done_marks import DoneMarks


def test_a_worker_without_a_block_waits_briefly_first_and_never_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(slow_blocks, "time", SimpleNamespace(sleep=waited.append))
    monkeypatch.setattr(slow_blocks, "_in_progress_elsewhere", lambda *_: {3: [1.0]} if len(waited) < 7 else {})
    marks = DoneMarks(tmp_path / "blocks")
    assert list(slow_blocks.slow_blocks(marks, tmp_path, tmp_path / "own", "key")) == []
    assert waited == [0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0]
