"""Several processes write an export: the same bytes, whatever happens to them; a block is read back before its mark."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import faulty_workers
import numpy as np
import pytest
from killed_export import killed_after
from typer.testing import CliRunner

from lsdflow_contract.errors import Interrupted, StageError, StorageFailure
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_view.cli import app
from lsdflow_view.export import ngff, precomputed
from lsdflow_view.export.ngff import export_ome
from lsdflow_view.export.passes import Crew
from lsdflow_view.export.precomputed import VolumeOptions, export_precomputed
from lsdflow_view.export.precomputed_volume import PrecomputedLayer
from lsdflow_view.export.shapes import ShapeOptions

Export = Callable[[Experiment, Path, int], object]
LAYERS = ("raw", "segmentation")


def _ome(experiment: Experiment, out: Path, workers: int = 1) -> int:
    return export_ome(experiment, out, LAYERS, None, workers)


def _precomputed(experiment: Experiment, out: Path, workers: int = 1) -> int:
    return export_precomputed(experiment, out, LAYERS, VolumeOptions(), ShapeOptions(), workers)["blocks"]


def _sharded(experiment: Experiment, out: Path, workers: int = 1) -> int:
    return export_precomputed(experiment, out, LAYERS, VolumeOptions(sharded=True), ShapeOptions(), workers)["blocks"]


EXPORTS: tuple[Export, ...] = (_ome, _precomputed, _sharded)


@pytest.fixture(params=EXPORTS, ids=["ome", "precomputed", "sharded"])
def export(request: pytest.FixtureRequest) -> Export:
    """Each way to export."""
    return request.param  # type: ignore[no-any-return]


def test_one_worker_that_is_killed_and_many_leave_the_bytes_of_a_single_process(
    tiny: Any, tmp_path: Path, export: Export, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    alone, many, flag = tmp_path / "alone", tmp_path / "many", tmp_path / "killed"
    blocks = export(tiny.experiment, alone, 1)
    for module in (ngff, precomputed):
        monkeypatch.setattr(module, "run_works", faulty_workers.killed_once(flag))
    assert export(tiny.experiment, many, 3) == blocks
    assert flag.exists()
    assert "a worker process was lost" in caplog.text
    assert _tree(many) == _tree(alone)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_coordinator_is_gone_on_with_by_other_workers(tiny: Any, tmp_path: Path, workers: int) -> None:
    alone, killed = tmp_path / "alone", tmp_path / "killed"
    blocks = _ome(tiny.experiment, alone)
    assert killed_after(5, lambda: _ome(tiny.experiment, killed, 3 - workers))
    left = killed / "0" / "c" / "0" / "0" / f".0.{'a' * 32}.partial"
    left.write_bytes(b"half of a chunk")
    assert _ome(tiny.experiment, killed, workers) == blocks - 5
    assert _tree(killed) == _tree(alone)


def test_workers_end_with_their_coordinator(tmp_path: Path) -> None:
    coordinator = multiprocessing.get_context("fork").Process(target=_write_pieces, args=(tmp_path,))
    coordinator.start()
    _until(lambda: len(list(tmp_path.iterdir())) == 2 and all(file.read_text() for file in tmp_path.iterdir()))
    workers = {int(file.read_text()) for file in tmp_path.iterdir()}
    assert len(workers) == 2
    assert coordinator.pid not in workers
    os.kill(coordinator.pid or 0, signal.SIGKILL)
    coordinator.join()
    _until(lambda: not any(_is_alive(worker) for worker in workers))


def test_workers_that_begin_when_their_coordinator_is_gone_end_at_once(tmp_path: Path) -> None:
    coordinator = multiprocessing.get_context("fork").Process(target=_write_late, args=(tmp_path,))
    coordinator.start()
    _until(lambda: len(list(tmp_path.iterdir())) == 2)
    workers = {int(file.name) for file in tmp_path.iterdir()}
    os.kill(coordinator.pid or 0, signal.SIGKILL)
    coordinator.join()
    _until(lambda: not any(_is_alive(worker) for worker in workers), seconds=60)


def test_keys_at_the_terminal_are_for_the_coordinator(tmp_path: Path) -> None:
    with _crew(faulty_workers.note_in_spite_of_a_key, tmp_path) as crew:
        assert sorted(crew.written(0, range(3))) == [0, 1, 2]
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize(("lost", "export"), [("0", _ome), ("raw/9.3_9.3_40", _precomputed)])
def test_what_was_done_in_an_array_that_is_lost_is_done_again(
    tiny: Any, tmp_path: Path, lost: str, export: Export
) -> None:
    alone, out = tmp_path / "alone", tmp_path / "out"
    export(tiny.experiment, alone, 1)
    assert killed_after(1, lambda: export(tiny.experiment, out, 1))
    shutil.rmtree(out / lost)
    export(tiny.experiment, out, 1)
    assert _tree(out) == _tree(alone)


def test_an_interrupted_coordinator_waits_for_no_piece(tmp_path: Path) -> None:
    began, before = time.monotonic(), signal.signal(signal.SIGALRM, _stop)
    signal.setitimer(signal.ITIMER_REAL, 5.0)
    try:
        with pytest.raises(Interrupted), _crew(faulty_workers.note_and_stay, tmp_path) as crew:
            next(crew.written(0, range(6)))
    finally:
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - began < 60
    assert not multiprocessing.active_children()


def test_a_piece_that_kills_every_worker_ends_the_export(tmp_path: Path) -> None:
    written: list[int] = []
    with pytest.raises(Interrupted, match="fewer --workers"), _crew(faulty_workers.die_at, tmp_path, 4) as crew:
        written.extend(crew.written(0, range(8)))
    assert set(written) >= {0, 1, 2, 3}
    assert not (tmp_path / "4").exists()


@pytest.mark.parametrize(
    ("write", "code", "told"),
    [(faulty_workers.full, 74, "No space left on device"), (faulty_workers.odd, 70, "internal: OddError: odd 3")],
)
@pytest.mark.parametrize("workers", ["1", "2"])
def test_an_error_in_a_worker_is_one_message_and_its_exit_code(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Any, code: int, told: str, workers: str
) -> None:
    monkeypatch.setattr(ngff, "run_works", faulty_workers.with_writes(lambda _: write))
    found = CliRunner().invoke(app, ["export", "ome", str(tiny.root), str(tmp_path / "o"), "--workers", workers])
    assert (found.exit_code, found.output.count(told)) == (code, 1)
    assert "Traceback" not in found.output


def test_a_damaged_chunk_of_the_source_is_told_by_the_command(tiny: Any, tmp_path: Path) -> None:
    root = tmp_path / "exp"
    shutil.copytree(tiny.root, root)
    chunk = root / "data/target.zarr/volumes/raw/0.1.1"
    if not chunk.exists():
        chunk = root / "data/target.zarr/volumes/raw/0/1/1"
    chunk.write_bytes(chunk.read_bytes()[:-9])
    for format_ in ("ome", "precomputed"):
        found = CliRunner().invoke(app, ["export", format_, str(root), str(tmp_path / format_), "--workers", "2"])
        assert (found.exit_code, "a chunk cannot be read" in found.output) == (65, True), found.output


@pytest.mark.parametrize(("fraction", "damaged", "is_seen"), [(1.0, 1, True), (0.5, 1, False), (0.5, 2, True)])
def test_blocks_that_are_not_what_was_written_get_no_mark(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fraction: float, damaged: int, is_seen: bool
) -> None:
    from lsdflow_runtime.io.volumes import Volume

    experiment = load_experiment(tiny.root, [f"compute.verify_fraction={fraction}"])
    plain, seen = Volume.write, []

    def write(volume: Volume, box: Any, values: np.ndarray) -> None:
        seen.append(box)
        plain(volume, box, values + np.uint8(len(seen) == damaged + 1))

    monkeypatch.setattr(Volume, "write", write)
    if is_seen:
        with pytest.raises(StorageFailure, match="what was read back is not what was written"):
            export_ome(experiment, tmp_path / "o", ("raw",), 1)
        assert len(list((tmp_path / "o" / ".export").rglob("done/*.json"))) == damaged
    else:
        export_ome(experiment, tmp_path / "o", ("raw",), 1)


@pytest.mark.parametrize("sharded", [False, True])
def test_blocks_of_precomputed_are_read_back_too(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sharded: bool
) -> None:
    plain = PrecomputedLayer._put

    def put(layer: PrecomputedLayer, level: Any, box: Any, values: np.ndarray) -> None:
        changed = values.copy()
        changed[-1, -1, -1] += 1
        plain(layer, level, box, changed if level.number else values)

    monkeypatch.setattr(PrecomputedLayer, "_put", put)
    with pytest.raises(StageError, match="what was read back is not what was written") as told:
        export_precomputed(tiny.experiment, tmp_path / "o", ("raw",), VolumeOptions(2, sharded), ShapeOptions())
    assert told.value.exit_code == 74
    done = [mark.parent.parent.parent.name for mark in (tmp_path / "o" / ".export").rglob("done/*.json")]
    assert set(done) == {"raw-0"}


def _write_pieces(folder: Path) -> None:
    with _crew(faulty_workers.note_and_stay, folder) as crew:
        list(crew.written(0, range(2)))


def _write_late(folder: Path) -> None:
    with Crew(2, [faulty_workers.LateNote(folder)]) as crew:
        list(crew.written(0, range(2)))


def _crew(write: Callable[..., None], folder: Path, *more: int) -> Crew:
    """Two workers, no lock."""
    return Crew(2, [partial(write, folder, *more)])


def _stop(*_: object) -> None:
    raise Interrupted("stopped")


def _is_alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def _until(is_so: Callable[[], bool], seconds: float = 600) -> None:
    ends = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < ends, "in vain"
        time.sleep(0.1)


def _tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
