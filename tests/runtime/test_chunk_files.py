"""Voxels that go past zarr-python: the same values in both directions; what is lost or damaged is an error."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
import zarr.codecs

from lsdflow_command import machine as cores
from lsdflow_contract.arrays import AFFS, FRAGMENTS, LSDS, RAW
from lsdflow_contract.errors import BadData, StorageFailure
from lsdflow_contract.geometry import Box, Geometry
from lsdflow_contract.hashing import hash_of_array
from lsdflow_runtime.blocks import block_plan
from lsdflow_runtime.engine.block_task import _write_checked
from lsdflow_runtime.io import chunk_files
from lsdflow_runtime.io.chunk_files import ChunkFiles, _on_all_cores
from lsdflow_runtime.io.volumes import OutputArray, Volume, open_volume

SHAPE = (20, 17, 9)
GRID = Geometry((8.0, 8.0, 8.0), (0.0, 0.0, 0.0), SHAPE)
BLOCK = (16, 16, 16)
ZSTD = zarr.codecs.ZstdCodec(level=1, checksum=True)
FORMS: dict[str, dict[str, Any]] = {
    "2": {"zarr_format": 2, "chunks": (8, 8, 8), "compressors": numcodecs.Zstd(level=1)},
    "2 checksum": {"zarr_format": 2, "chunks": (8, 8, 8), "compressors": numcodecs.Zstd(level=1, checksum=True)},
    "2 blosc": {"zarr_format": 2, "chunks": (8, 8, 8), "compressors": numcodecs.Blosc("zstd", 3, 1)},
    "2 fortran": {"zarr_format": 2, "chunks": (8, 8, 8), "compressors": None, "order": "F"},
    "2 lzma": {"zarr_format": 2, "chunks": (8, 8, 8), "compressors": numcodecs.LZMA()},
    "3": {"zarr_format": 3, "chunks": (8, 8, 8), "compressors": ZSTD},
    "3 defaults": {"zarr_format": 3},
    "3 shards": {"zarr_format": 3, "chunks": (4, 4, 8), "shards": (8, 8, 8), "compressors": ZSTD},
    "3 shards, crc": {
        "zarr_format": 3,
        "chunks": (4, 4, 8),
        "shards": (8, 8, 8),
        "compressors": [zarr.codecs.BloscCodec(cname="lz4"), zarr.codecs.Crc32cCodec()],
    },
}
TYPES = ("u1", ">u2", "i4", "u8", "f2", "f8", "bool")


def _values(dtype: str = "u8", seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 99, SHAPE).astype(dtype)


def _made_by_zarr(
    tmp_path: Path, form: str, dtype: str = "u8", fill: object = 0, *, by_lsdflow: bool = True
) -> zarr.Array[Any]:
    return zarr.create_array(
        tmp_path / "v.zarr/a",
        shape=SHAPE,
        dtype=dtype,
        fill_value=fill,
        attributes={"resolution": [8, 8, 8], **({"lsdflow": {"key": "k"}} if by_lsdflow else {})},
        **FORMS[form],
    )


def _opened(tmp_path: Path) -> Volume:
    return open_volume(tmp_path / "v.zarr", "a")


def _written_array(tmp_path: Path, zarr_format: int = 3, spec=FRAGMENTS, block=BLOCK) -> tuple[OutputArray, np.ndarray]:
    output = OutputArray(tmp_path / "v.zarr", spec, GRID, GRID.box, block, zarr_format)
    output.create({"key": "k"})
    leading = (spec.channels,) if spec.channels else ()
    values = np.random.default_rng(1).integers(0, 200, (*leading, *SHAPE)).astype(spec.dtype)
    output.open().write(GRID.box, values)
    return output, values


def _chunk_files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file() and p.name[0] != "." and p.name != "zarr.json")


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("form", FORMS)
def test_what_zarr_python_wrote_is_read_with_the_same_values_and_type(tmp_path: Path, form: str, dtype: str) -> None:
    array = _made_by_zarr(tmp_path, form, dtype)
    array[:] = _values(dtype)
    volume = _opened(tmp_path)
    read = volume.read(volume.box)
    assert np.array_equal(read, _values(dtype))
    assert read.dtype == volume.dtype
    part = Box((3, 7, 2), (9, 9, 5))
    assert np.array_equal(volume.read(part), _values(dtype)[part.slices()])


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("form", FORMS)
def test_what_we_write_is_read_by_zarr_python_with_the_same_values(tmp_path: Path, form: str, dtype: str) -> None:
    _made_by_zarr(tmp_path, form, dtype)
    volume = _opened(tmp_path)
    volume.write(volume.box, _values(dtype))
    found = zarr.open_array(tmp_path / "v.zarr/a", mode="r")
    assert np.array_equal(found[:], _values(dtype))


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("spec", [RAW, FRAGMENTS, AFFS, LSDS])
def test_arrays_of_lsdflow_are_read_by_zarr_python(tmp_path: Path, spec, zarr_format: int) -> None:
    output, values = _written_array(tmp_path, zarr_format, spec)
    assert np.array_equal(zarr.open_array(output.folder, mode="r")[:], values)


@pytest.mark.parametrize(
    ("form", "by_lsdflow"), [(form, form in ("2 checksum", "3", "3 shards")) for form in FORMS if form != "3 defaults"]
)
def test_arrays_of_another_form_than_we_make_are_left_to_zarr_python(
    tmp_path: Path, form: str, by_lsdflow: bool
) -> None:
    _made_by_zarr(tmp_path, form)
    assert (_opened(tmp_path)._files is not None) == by_lsdflow


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_voxels_of_lsdflow_are_read_without_zarr_python(tmp_path: Path, zarr_format: int) -> None:
    output, _ = _written_array(tmp_path, zarr_format)
    assert output.open()._files is not None


@pytest.mark.parametrize("fill", [0, 7])
@pytest.mark.parametrize("form", FORMS)
def test_chunks_that_a_foreign_array_does_not_have_are_its_fill_value(tmp_path: Path, form: str, fill: int) -> None:
    _made_by_zarr(tmp_path, form, fill=fill, by_lsdflow=False)
    volume = _opened(tmp_path)
    assert np.array_equal(volume.read(volume.box), np.full(SHAPE, fill))


@pytest.mark.parametrize("form", FORMS)
def test_chunks_of_the_fill_value_are_written(tmp_path: Path, form: str) -> None:
    array = _made_by_zarr(tmp_path, form, fill=7)
    volume = _opened(tmp_path)
    volume.write(volume.box, np.full(SHAPE, 7, "u8"))
    edges = array.shards or array.chunks
    chunks = int(np.prod([-(-n // e) for n, e in zip(SHAPE, edges, strict=True)]))
    assert len(_chunk_files(tmp_path / "v.zarr/a")) == chunks


@pytest.mark.proves("DAT-17")
def test_an_array_of_lsdflow_has_a_shard_per_block_with_chunks_near_64() -> None:
    from lsdflow_runtime.io.chunk_files import inner_chunk

    lengths = (1, 40, 64, 96, 100, 120, 128, 160, 251, 256, 400)
    assert [inner_chunk(n) for n in lengths] == [1, 40, 64, 48, 50, 60, 64, 80, 251, 64, 80]


def test_blocks_of_lsdflow_are_one_file_each(tmp_path: Path) -> None:
    grid = Geometry((8.0, 8.0, 8.0), (0.0, 0.0, 0.0), (128, 128, 130))
    output = OutputArray(tmp_path / "v.zarr", RAW, grid, grid.box, (128, 128, 128))
    output.create({"key": "k"})
    output.open().write(grid.box, np.zeros(grid.shape_vox, np.uint8))
    array = zarr.open_array(output.folder, mode="r")
    assert (array.shards, array.chunks) == ((128, 128, 128), (64, 64, 64))
    assert len(_chunk_files(output.folder)) == 2


@pytest.mark.parametrize(("cores_here", "opened"), [(1, 2), (2, 2), (3, 4)])
def test_a_file_is_opened_once_per_read_or_once_per_row_of_chunks_if_cores_would_be_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores_here: int, opened: int
) -> None:
    """Opening takes long on shared storage. Here: two files, with two rows of chunks each in the box."""
    grid = Geometry((8.0, 8.0, 8.0), (0.0, 0.0, 0.0), (128, 128, 130))
    output = OutputArray(tmp_path / "v.zarr", RAW, grid, grid.box, (128, 128, 128))
    output.create({"key": "k"})
    values = np.random.default_rng(0).integers(0, 256, grid.shape_vox).astype(np.uint8)
    volume = output.open()
    volume.write(grid.box, values)
    monkeypatch.setattr(chunk_files, "available_cores", lambda: cores_here)
    paths: list[Path] = []

    def opening(path: Path, *words: Any, _open: Any = Path.open, **more: Any) -> Any:
        paths.append(path)
        return _open(path, *words, **more)

    monkeypatch.setattr(Path, "open", opening)
    box = Box((1, 2, 3), (120, 50, 127))
    assert np.array_equal(volume.read(box), values[box.slices()])
    assert len([path for path in paths if path.is_relative_to(output.folder)]) == opened


@pytest.mark.parametrize(("given", "threads"), [("", 3), ("2", 2), ("64", 3), ("2(x2)", 3)])
def test_chunks_are_coded_on_no_more_cores_than_the_job_was_given(
    monkeypatch: pytest.MonkeyPatch, given: str, threads: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    monkeypatch.setattr(cores, "cgroup_quota", lambda: None)
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", given)
    together = threading.Barrier(threads)

    def wait_for_the_others(_: int) -> str:
        together.wait(10)
        return threading.current_thread().name

    assert len(set(_on_all_cores(wait_for_the_others, list(range(6))))) == threads


def test_blocks_that_are_coded_at_a_time_have_a_thread_each() -> None:
    coding, begun = threading.Barrier(2), threading.Barrier(2)

    def name_of_thread(_: int) -> str:
        return threading.current_thread().name

    def while_the_other_is_busy() -> set[str]:
        begun.wait(10)
        found = set(_on_all_cores(name_of_thread, [1, 2, 3]))
        coding.wait(10)
        return found

    def busy(number: int) -> None:
        if number == 0:
            begun.wait(10)
            coding.wait(10)

    with ThreadPoolExecutor(2, "block") as pool:
        first, second = pool.submit(_on_all_cores, busy, [0, 1]), pool.submit(while_the_other_is_busy)
        assert second.result() <= {"block_0", "block_1"}
        first.result()


def test_a_write_leaves_other_blocks_untouched(tmp_path: Path) -> None:
    output, values = _written_array(tmp_path)
    before = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in _chunk_files(output.folder)}
    box = Box((16, 0, 0), (4, 16, 9))
    output.open().write(box, np.zeros(box.shape_vox, np.uint64))
    changed = [p for p in _chunk_files(output.folder) if before[p] != (p.read_bytes(), p.stat().st_mtime_ns)]
    assert changed == [output.folder / "c/1/0/0"]
    values[box.slices()] = 0
    assert np.array_equal(output.open().read(GRID.box), values)


def test_an_open_volume_sees_what_another_writer_wrote(tmp_path: Path) -> None:
    output, _ = _written_array(tmp_path)
    reader = output.open()
    reader.read(GRID.box)
    output.open().write(GRID.box, _values(seed=5))
    assert np.array_equal(reader.read(GRID.box), _values(seed=5))


def _read_or_reported(volume: Volume, values: np.ndarray) -> np.ndarray | None:
    """What was read if it is wrong; None if it is right, as after a change of what means nothing, or was refused."""
    try:
        read = volume.read(volume.box)
    except BadData:
        return None
    return None if np.array_equal(read, values) else read


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("block", [(16, 16, 16), (134, 1, 9)])
def test_every_flipped_byte_of_a_chunk_is_an_error(tmp_path: Path, zarr_format: int, block) -> None:
    output, values = _written_array(tmp_path, zarr_format, RAW, block)
    chunk = _chunk_files(output.folder)[0]
    whole = chunk.read_bytes()
    volume = output.open()
    unnoticed = []
    for place in range(0, len(whole), max(1, len(whole) // 40)):
        chunk.write_bytes(whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :])
        if _read_or_reported(volume, values) is not None:
            unnoticed.append(place)
    assert unnoticed == []


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("left", [0, 3, 0.5, 0.99])
def test_a_cut_off_chunk_is_an_error(tmp_path: Path, zarr_format: int, left: float) -> None:
    output, _ = _written_array(tmp_path, zarr_format)
    chunk = _chunk_files(output.folder)[0]
    content = chunk.read_bytes()
    chunk.write_bytes(content[: int(left if left >= 1 else left * len(content))])
    with pytest.raises(BadData, match="cannot be read") as caught:
        output.open().read(GRID.box)
    assert caught.value.exit_code == 65
    assert str(output.folder) in caught.value.where


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_chunk_of_zero_bytes_as_a_power_cut_leaves_it_is_an_error(tmp_path: Path, zarr_format: int) -> None:
    output, _ = _written_array(tmp_path, zarr_format)
    chunk = _chunk_files(output.folder)[0]
    chunk.write_bytes(bytes(chunk.stat().st_size))
    with pytest.raises(BadData, match="cannot be read"):
        output.open().read(GRID.box)


def test_a_chunk_lost_inside_a_shard_of_lsdflow_is_an_error(tmp_path: Path) -> None:
    grid = Geometry((8.0, 8.0, 8.0), (0.0, 0.0, 0.0), (128, 64, 64))
    output = OutputArray(tmp_path / "v.zarr", RAW, grid, grid.box, grid.shape_vox)
    output.create({"key": "k"})
    values = np.ones(grid.shape_vox, np.uint8)
    values[64:] = 0
    zarr.open_array(output.folder, mode="r+")[:] = values
    with pytest.raises(BadData, match="cannot be read"):
        output.open().read(grid.box)


KILLED = """
import os, signal, sys
from pathlib import Path
import numpy as np
from lsdflow_runtime.io.volumes import open_volume
volume = open_volume(Path(sys.argv[1]), "volumes/fragments")
Path.{step} = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
volume.write(volume.box, np.zeros(volume.box.shape_vox, np.uint64))
"""


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize(("step", "left"), [("replace", "old"), ("unlink", "new")])
def test_a_writer_that_is_killed_leaves_the_old_chunk_or_the_new_one(
    tmp_path: Path, zarr_format: int, step: str, left: str
) -> None:
    """Killed when the new file is whole but not yet in its place, and just after."""
    output, values = _written_array(tmp_path, zarr_format, block=SHAPE)
    ended = subprocess.run([sys.executable, "-c", KILLED.format(step=step), str(output.path)], check=False)
    assert ended.returncode == -9
    expected = values if left == "old" else np.zeros_like(values)
    assert np.array_equal(output.open().read(GRID.box), expected)
    output.open().write(GRID.box, _values(seed=3))
    assert np.array_equal(output.open().read(GRID.box), _values(seed=3))
    assert np.array_equal(zarr.open_array(output.folder, mode="r")[:], _values(seed=3))


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_full_disk_is_reported_and_leaves_the_old_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zarr_format: int
) -> None:
    output, values = _written_array(tmp_path, zarr_format)
    files = sorted(p for p in output.folder.rglob("*") if p.is_file())

    def full(_path: Path, _target: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        with pytest.raises(StorageFailure, match="No space left") as caught:
            output.open().write(GRID.box, _values(seed=3))
    assert caught.value.exit_code == 74
    assert np.array_equal(output.open().read(GRID.box), values)
    assert sorted(p for p in output.folder.rglob("*") if p.is_file()) == files


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_storage_that_fails_while_a_chunk_is_read_is_no_damaged_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zarr_format: int
) -> None:
    output, _ = _written_array(tmp_path, zarr_format)
    volume = output.open()

    def fail(_files: ChunkFiles, _index: object) -> np.ndarray:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(ChunkFiles, "read", fail)
    with pytest.raises(StorageFailure, match="Input/output error"):
        volume.read(GRID.box)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_what_is_made_durable_is_the_files_of_the_box_and_once_all_folders_up_to_the_array(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zarr_format: int
) -> None:
    output, _ = _written_array(tmp_path, zarr_format)
    synced: list[Path] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(Path(f"/proc/self/fd/{descriptor}").readlink()))
    output.open().make_durable(Box((16, 0, 0), (4, 16, 9)))
    names = ["1.0.0", "."] if zarr_format == 2 else ["c/1/0/0", "c/1/0", "c/1", "c", "."]
    assert synced == [output.folder / name for name in names]
    synced.clear()
    output.open().make_durable(Box((16, 16, 0), (4, 1, 9)))
    names = ["1.1.0", "."] if zarr_format == 2 else ["c/1/1/0", "c/1/1", "c/1"]
    assert synced == [output.folder / name for name in names]


def test_a_block_is_durable_before_its_checksum_can_be_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output, values = _written_array(tmp_path, block=SHAPE)
    block = block_plan(GRID.box, SHAPE, (0, 0, 0), "toy").block(0)
    durable: list[Box] = []
    monkeypatch.setattr(Volume, "make_durable", lambda _volume, box: durable.append(box))
    assert _write_checked(output.open(), block, values) == hash_of_array(values)
    assert durable == [block.write]


def _claiming(size: int) -> bytes:
    """A zstd frame of a few bytes that says it unpacks to `size` bytes."""
    return b"\x28\xb5\x2f\xfd\xe0" + size.to_bytes(8, "little") + b"\x01\x00\x00"


@pytest.mark.parametrize(
    "content",
    [
        _claiming(1 << 40),
        _claiming(8),
        numcodecs.Zstd(1, checksum=True).encode(np.zeros(1 << 26, np.uint8)),
        numcodecs.Zstd(1).encode(np.zeros(16**3, np.uint64))[:-1],
        b"\x28\xb5\x2f\xfd",
        b"",
        b"no frame at all",
    ],
    ids=["a terabyte", "too little", "64 MiB of zeros", "cut off", "a magic number", "nothing", "text"],
)
def test_a_chunk_that_unpacks_to_another_size_is_refused_before_it_fills_the_memory(
    tmp_path: Path, content: bytes
) -> None:
    output = OutputArray(tmp_path / "v.zarr", FRAGMENTS, GRID, GRID.box, BLOCK, 2)
    output.create({"key": "k"})
    volume = output.open()
    volume.write(GRID.box, _values())
    (file,) = list(output.folder.glob("0.0.0"))
    file.write_bytes(content)
    tracemalloc.start()
    with pytest.raises(BadData, match="a chunk cannot be read"):
        volume.read(Box((0, 0, 0), (4, 4, 4)))
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()
