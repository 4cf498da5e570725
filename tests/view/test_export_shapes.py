"""Segments are found, and meshes and skeletons are made, by many processes in bounded memory: always the same bytes."""

from __future__ import annotations

import json
import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import faulty_workers
import numpy as np
import pytest
from killed_export import killed_after
from typer.testing import CliRunner

from lsdflow_contract.arrays import SEGMENTATION
from lsdflow_contract.errors import BadData
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.geometry import Box, Geometry
from lsdflow_runtime.io.volumes import OutputArray
from lsdflow_view.cli import app
from lsdflow_view.export import shapes
from lsdflow_view.export.levels import Layer, open_layer, pyramid, whole_chunks
from lsdflow_view.export.passes import ExportPass, PassRunner, ReadBack
from lsdflow_view.export.precomputed import VolumeOptions, export_precomputed
from lsdflow_view.export.precomputed_volume import PrecomputedLayer
from lsdflow_view.export.segments import (
    LargestSegments,
    SegmentTable,
    largest_of,
    merged,
    no_segments,
    read_table,
    table_of_block,
    table_of_blocks,
    write_table,
)
from lsdflow_view.export.shapes import MESH_BYTES_PER_VOXEL, PROCESS_BYTES, ShapeOptions, fitting_workers

THREE = ShapeOptions(meshes=3, skeletons=3)
STEPS = ("segmentation-segments", "segmentation-mesh", "segmentation-skeletons")
MIB = 2**20


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny segmentation is three pieces, so that several workers look through it."""
    monkeypatch.setattr(shapes, "SEARCH_BLOCK_VOX", 1)


def _export(experiment: Experiment, out: Path, workers: int = 1, options: ShapeOptions = THREE) -> dict[str, int]:
    return export_precomputed(experiment, out, ("segmentation",), VolumeOptions(), options, workers)


@pytest.fixture(scope="module")
def alone(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Read only: what a single process leaves."""
    out = tmp_path_factory.mktemp("shapes") / "alone"
    assert _export(tiny.experiment, out)["meshes"] == 3
    return out


def test_many_workers_of_which_one_is_killed_in_each_step_leave_the_bytes_of_a_single_process(
    tiny: Any, alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    faulty_workers.kill_one_worker_of_each_pass(monkeypatch, tmp_path)
    written = _export(tiny.experiment, tmp_path / "many", 2)
    assert (written["meshes"], written["skeletons"]) == (3, 3)
    assert all((tmp_path / step).exists() for step in STEPS)
    assert caplog.text.count("a worker process ended early (SIGKILL)") == len(STEPS)
    assert _tree(tmp_path / "many") == _tree(alone)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_coordinator_that_is_killed_in_each_step_is_resumed_to_the_same_bytes(
    tiny: Any, alone: Path, tmp_path: Path, workers: int
) -> None:
    out, blocks = tmp_path / "out", _blocks(alone)
    assert killed_after(1, lambda: _export(tiny.experiment, out)), "in the table of segments"
    assert not (out / "segmentation").exists()
    assert killed_after(2 + blocks + 1, lambda: _export(tiny.experiment, out)), "in a mesh"
    for file in _not_done(out, "mesh"):
        file.write_bytes(b"")
    assert killed_after(2 + 1, lambda: _export(tiny.experiment, out)), "in a skeleton"
    assert _export(tiny.experiment, out, workers) == {"blocks": 0, "meshes": 0, "skeletons": 2}
    assert _tree(out) == _tree(alone)


def test_the_largest_segments_of_a_volume_in_blocks_are_those_of_the_whole(tiny: Any, tmp_path: Path) -> None:
    layer, labels = _layer_of_noise(tmp_path)
    begin = layer.levels[0].box.begin_vox
    whole = table_of_blocks([(labels, begin)])
    for count, workers in ((3, 1), (50, 2), (10**9, 1)):
        folder = tmp_path / f"unfinished_{count}"
        segments = LargestSegments(layer, folder, count, block_vox=40_000)
        segments.make(PassRunner(tiny.experiment, folder, workers))
        assert len(list(segments._folder.glob("*.npy"))) == 24 + 1
        _require_equal(segments.table(), whole.take(whole.largest(count)))


def test_blocks_are_whole_chunks_and_have_at_most_so_many_voxels() -> None:
    box = Box((0, 0, 0), (40, 100, 5000))
    assert whole_chunks(box, (16, 32, 32), 1) == (16, 32, 32)
    assert whole_chunks(box, (16, 32, 32), 40_000) == (32, 32, 32)
    assert whole_chunks(box, (16, 32, 32), 10**6) == (64, 128, 64)
    assert whole_chunks(Box((0, 0, 0), (8, 8, 8)), (16, 32, 32), 10**9) == (16, 32, 32)


@pytest.mark.parametrize(("count", "rows_at_once"), [(7, 64), (7, 10**6), (1000, 256), (10**9, 300)])
def test_tables_that_are_merged_range_by_range_are_those_that_are_merged_at_once(
    tmp_path: Path, count: int, rows_at_once: int
) -> None:
    rng = np.random.default_rng(count)
    tables = [no_segments(), *(_random_table(rng, 700, 3000) for _ in range(9))]
    found = largest_of(_written(tmp_path, tables), count, rows_at_once)
    whole = merged(tables)
    rows = sorted(range(len(whole)), key=lambda row: (-int(whole.sizes_vox[row]), int(whole.ids[row])))
    _require_equal(found, whole.take(np.array(rows[:count])))


def test_merging_tables_takes_memory_for_a_range_of_ids_not_for_all(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    files = [tmp_path / f"{number}.npy" for number in range(20)]
    for file in files:
        write_table(file, _random_table(rng, 50_000, 2**62))
    tracemalloc.start()
    largest_of(files, 10_000, rows_at_once=20_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 * MIB < sum(file.stat().st_size for file in files) / 3


def test_ids_beyond_the_whole_numbers_of_a_float_stay_distinct(tmp_path: Path) -> None:
    ids = np.arange(2**63 + 1, 2**63 + 301, dtype=np.uint64)
    tables = [table_of_block(ids.reshape(3, 10, 10), (0, 0, 0))] * 2
    found = largest_of(_written(tmp_path, tables), 10**9, rows_at_once=64)
    assert found.ids.tolist() == ids.tolist()
    assert set(found.sizes_vox.tolist()) == {2}


@pytest.mark.parametrize("left", [b"", b"\x93NUMPY", None])
def test_a_damaged_table_is_reported_with_the_folder_to_remove(
    tiny: Any, alone: Path, tmp_path: Path, left: bytes | None
) -> None:
    assert killed_after(3, lambda: _export(tiny.experiment, tmp_path / "o"))
    (file,) = (tmp_path / "o" / ".export").glob("segments-*/0.npy")
    file.write_bytes(file.read_bytes()[:-8] if left is None else left)
    with pytest.raises(BadData, match="damaged table of segments") as caught:
        _export(tiny.experiment, tmp_path / "o")
    assert str(file.parent) in caught.value.fix
    shutil.rmtree(file.parent)
    _export(tiny.experiment, tmp_path / "o")
    assert _tree(tmp_path / "o") == _tree(alone)


def test_a_segment_that_is_too_large_is_refused_before_any_volume_is_written_and_its_search_is_kept(
    tiny: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    command = ["export", "precomputed", str(tiny.root), str(tmp_path / "o"), "--layer", "segmentation", "--meshes", "2"]
    found = CliRunner().invoke(app, [*command, "--shape-memory-gib", "0.0001"])
    assert found.exit_code == 2
    assert "bounding box of a segment is too large" in found.output
    assert "--shape-memory-gib 0.1" in found.output, "rounded up: the reported value is enough"
    assert [path.name for path in (tmp_path / "o").iterdir()] == [".export"]
    caplog.set_level("INFO")
    assert CliRunner().invoke(app, [*command, "--levels", "1", "--workers", "1"]).exit_code == 0
    assert "segmentation-segments" not in caplog.text, "they are not searched again"


def test_segments_are_searched_only_where_shapes_are_to_be_made(
    tiny: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    _export(tiny.experiment, tmp_path / "o", options=ShapeOptions())
    assert "-segments" not in caplog.text
    assert _export(tiny.experiment, tmp_path / "o")["meshes"] == 3
    assert "segmentation-segments: 3/3 blocks" in caplog.text
    caplog.clear()
    assert _export(tiny.experiment, tmp_path / "o") == {"blocks": 0}
    assert "-segments" not in caplog.text


def test_no_more_workers_make_shapes_than_memory_holds_of_the_largest_segment(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    volume = open_layer(tiny.experiment, "segmentation").volume
    table = table_of_blocks([(volume.read(volume.box), (0, 0, 0))])
    boxes = (table.end_vox - table.begin_vox + 2).prod(axis=1)[table.largest(3)]
    each = PROCESS_BYTES + int(boxes.max()) * MESH_BYTES_PER_VOXEL
    asked: dict[str, int] = {}
    plain = PassRunner._run

    def run(runner: PassRunner, pass_: ExportPass) -> int:
        asked[pass_.name] = runner.workers
        return plain(PassRunner(runner.experiment, runner.folder), pass_)

    caplog.set_level("INFO")
    monkeypatch.setattr(PassRunner, "_run", run)
    for free, wanted in ((3 * each - 1, 2), (3 * each, 3), (99 * each, 4), (1, 1)):
        monkeypatch.setattr(shapes, "free_memory_bytes", lambda free=free: free)
        out = tmp_path / str(free)
        _export(tiny.experiment, out, 4, ShapeOptions(meshes=3))
        assert (asked["segmentation-segments"], asked["segmentation-0"], asked["segmentation-mesh"]) == (4, 4, wanted)
    assert "meshes: 2 of 4 workers: one may need 0.3 GiB" in caplog.text
    assert "4 of 4" not in caplog.text


def test_as_many_workers_are_taken_as_fit_but_one_at_least() -> None:
    assert [fitting_workers(8, 10, free, "it") for free in (0, 9, 10, 29, 80, 1000)] == [1, 1, 1, 2, 8, 8]


def _layer_of_noise(folder: Path) -> tuple[PrecomputedLayer, np.ndarray]:
    """Bricks of 50 segments all over a volume, in chunks of which most pieces hold several."""
    begin, shape, size_nm = (3, -5, 7), (40, 100, 90), (10.0, 10.0, 10.0)
    offset = (begin[0] * 10.0, begin[1] * 10.0, begin[2] * 10.0)
    grid = Geometry(size_nm, offset, shape)
    bricks = np.random.default_rng(1).integers(0, 50, [-(-n // 4) for n in shape]).astype(np.uint64)
    labels = bricks.repeat(4, 0).repeat(4, 1).repeat(4, 2)[tuple(map(slice, shape))]
    output = OutputArray(folder / "source.zarr", SEGMENTATION, grid, grid.box, (16, 32, 32))
    output.create({"key": "k"})
    output.open().write(grid.box, labels)
    layer = Layer("segmentation", "labels", output.open(), "i")
    return PrecomputedLayer(layer, folder / "out", pyramid(size_nm, Box(begin, shape), 1), ReadBack(), False), labels


def _random_table(rng: np.random.Generator, rows: int, ids: int) -> SegmentTable:
    found = np.unique(rng.integers(1, ids, rows).astype(np.uint64))
    begin = rng.integers(-1000, 1000, (len(found), 3))
    return SegmentTable(found, rng.integers(1, 50, len(found)), begin, begin + rng.integers(1, 9, begin.shape))


def _written(folder: Path, tables: list[SegmentTable]) -> list[Path]:
    files = [folder / f"{number}.npy" for number in range(len(tables))]
    for file, table in zip(files, tables, strict=True):
        write_table(file, table)
        _require_equal(read_table(file), table)
    return files


def _require_equal(found: SegmentTable, expected: SegmentTable) -> None:
    for name in ("ids", "sizes_vox", "begin_vox", "end_vox"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)


def _not_done(out: Path, kind: str) -> list[Path]:
    """Files of shapes that have no done mark."""
    (largest,) = (out / ".export").glob("segments-*/largest-3.npy")
    done = {int(mark.stem) for mark in (out / ".export").glob(f"store/blocks/segmentation-{kind}/*/done/*.json")}
    assert len(done) == 1
    left = {str(segment) for number, segment in enumerate(read_table(largest).ids) if number not in done}
    files = [file for file in (out / "segmentation" / kind).iterdir() if file.name.split(":")[0] in left]
    assert files
    return files


def _blocks(out: Path) -> int:
    """Blocks of all levels."""
    scales = json.loads((out / "segmentation" / "info").read_text())["scales"]
    return sum(int(np.prod([-(-n // 128) for n in scale["size"]])) for scale in scales)


def _tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
