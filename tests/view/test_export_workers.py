"""Several processes write an export: the same bytes, whatever happens to them; a block is read back before its mark."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import faulty_workers
import numpy as np
import pytest
from killed_export import killed_after
from typer.testing import CliRunner

from lsdflow_contract.errors import StageError, StorageFailure
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_view.cli import app
from lsdflow_view.export import precomputed_volume
from lsdflow_view.export.ngff import export_ome
from lsdflow_view.export.precomputed import VolumeOptions, export_precomputed
from lsdflow_view.export.precomputed_volume import PrecomputedLayer
from lsdflow_view.export.shapes import ShapeOptions

Export = Callable[[Experiment, Path, int], object]
LAYERS = ("raw", "segmentation")


def _ome(experiment: Experiment, out: Path, workers: int = 1) -> int:
    return export_ome(experiment, out, LAYERS, None, workers)


def _precomputed(experiment: Experiment, out: Path, workers: int = 1) -> int:
    return export_precomputed(experiment, out, LAYERS, VolumeOptions(), ShapeOptions(), workers)["blocks"]


@pytest.mark.parametrize("export", [_ome, _precomputed], ids=["ome", "precomputed"])
def test_one_worker_that_is_killed_and_many_leave_the_bytes_of_a_single_process(
    tiny: Any, tmp_path: Path, export: Export, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    alone, many, flags = tmp_path / "alone", tmp_path / "many", tmp_path / "flags"
    flags.mkdir()
    monkeypatch.setattr(precomputed_volume, "BLOCK_VOX", 64)
    blocks = export(tiny.experiment, alone, 1)
    faulty_workers.kill_one_worker_of_each_pass(monkeypatch, flags)
    assert export(tiny.experiment, many, 3) == blocks
    assert len(list(flags.iterdir())) == caplog.text.count("a worker process ended early (SIGKILL)") > 0
    assert _tree(many) == _tree(alone)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_coordinator_is_resumed_by_other_workers(tiny: Any, tmp_path: Path, workers: int) -> None:
    alone, killed = tmp_path / "alone", tmp_path / "killed"
    blocks = _ome(tiny.experiment, alone)
    assert killed_after(5, lambda: _ome(tiny.experiment, killed))
    left = killed / "0" / "c" / "0" / "0" / f".0.{'a' * 32}.partial"
    left.write_bytes(b"half of a chunk")
    assert _ome(tiny.experiment, killed, workers) == blocks - 5
    assert _tree(killed) == _tree(alone)


def test_a_coordinator_that_is_killed_ends_its_workers_and_one_process_continues(tiny: Any, tmp_path: Path) -> None:
    alone, killed = tmp_path / "alone", tmp_path / "killed"
    blocks = _ome(tiny.experiment, alone)
    command = [Path(sys.executable).parent / "lsdflow-view", "export", "ome", tiny.root, killed, "--workers", "2"]
    coordinator = subprocess.Popen([*command, *(word for layer in LAYERS for word in ("--layer", layer))])
    _until(lambda: bool(list(killed.glob(".export/store/blocks/*/*/done/*.json"))))
    coordinator.kill()
    coordinator.wait()
    # <time>-<process>-<host>.tsv
    workers = {int(path.name.split("-")[1]) for path in killed.glob(".export/runs/*/attempts/*.tsv")}
    assert workers - {coordinator.pid}
    _until(lambda: not any(_is_alive(worker) for worker in workers))
    assert 0 < _ome(tiny.experiment, killed) < blocks
    assert _tree(killed) == _tree(alone)


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


@pytest.mark.parametrize(
    ("fault", "code", "text"),
    [(faulty_workers.full, 74, "No space left on device"), (faulty_workers.odd, 79, "OddError: odd 3")],
)
@pytest.mark.parametrize("workers", ["1", "2"])
def test_an_error_in_a_worker_is_a_message_and_its_exit_code(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Any, code: int, text: str, workers: str
) -> None:
    faulty_workers.change_passes(monkeypatch, lambda pass_: replace(pass_, open=partial(fault, pass_.open)))
    found = CliRunner().invoke(app, ["export", "ome", str(tiny.root), str(tmp_path / "o"), "--workers", workers])
    assert (found.exit_code, text in found.output) == (code, True)
    assert "Traceback" not in found.output


def test_a_damaged_chunk_of_the_source_is_reported_by_the_command(tiny: Any, tmp_path: Path) -> None:
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

    def put(layer: PrecomputedLayer, target: Any, level: Any, box: Any, values: np.ndarray) -> None:
        changed = values.copy()
        changed[-1, -1, -1] += 1
        plain(layer, target, level, box, changed if level.number else values)

    monkeypatch.setattr(PrecomputedLayer, "_put", put)
    with pytest.raises(StageError, match="what was read back is not what was written") as caught:
        export_precomputed(tiny.experiment, tmp_path / "o", ("raw",), VolumeOptions(2, sharded), ShapeOptions())
    assert caught.value.exit_code == 74
    folders = (tmp_path / "o" / ".export" / "store" / "blocks").iterdir()
    assert {folder.name for folder in folders if list(folder.glob("*/packed/*"))} == {"raw-0"}
    assert not list((tmp_path / "o" / ".export").rglob("done/*.json"))


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
