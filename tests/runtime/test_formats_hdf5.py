"""HDF5 reads zeros where a file of the voxels was lost: refused. Filters, locks and the padding of Imaris."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
import pytest

from lsdflow_contract.errors import BadData, MissingInput
from lsdflow_runtime.formats import hdf5
from lsdflow_runtime.formats.detect import open_source

RAW = np.random.default_rng(0).integers(1, 255, (4, 6, 8), np.uint8)
Spoil = Callable[[Path], Any]


def virtual(folder: Path) -> Path:
    """v.h5: a virtual dataset of virtual datasets, so that lost files are searched at any depth."""
    for z, section in enumerate(RAW):
        with h5py.File(folder / f"s{z}.h5", "w") as file:
            file.create_dataset("x", data=section, chunks=(3, 4))
    for name, first in (("top", 0), ("low", 2)):
        layout = h5py.VirtualLayout((2, 6, 8), "u1")
        for z in range(2):
            layout[z] = h5py.VirtualSource(f"s{first + z}.h5", "x", (6, 8))
        with h5py.File(folder / f"{name}.h5", "w") as file:
            file.create_virtual_dataset("half", layout)
    layout = h5py.VirtualLayout(RAW.shape, "u1")
    layout[:2] = h5py.VirtualSource("top.h5", "half", (2, 6, 8))
    layout[2:] = h5py.VirtualSource("low.h5", "half", (2, 6, 8))
    with h5py.File(folder / "v.h5", "w") as file:
        file.create_virtual_dataset("raw", layout)
    return folder / "v.h5"


def external(folder: Path) -> Path:
    """e.h5: a dataset in two files of bytes beside it."""
    half = RAW.nbytes // 2
    with h5py.File(folder / "e.h5", "w") as file:
        parts = [("one.bin", 0, half), ("two.bin", 7, h5py.h5f.UNLIMITED)]
        file.create_dataset("raw", RAW.shape, "u1", external=parts)
    (folder / "one.bin").write_bytes(RAW.tobytes()[:half])
    (folder / "two.bin").write_bytes(b"7 bytes" + RAW.tobytes()[half:])
    return folder / "e.h5"


def linked(folder: Path) -> Path:
    """l.h5: a group that is a link to another file."""
    with h5py.File(folder / "other.h5", "w") as file:
        file["volumes/raw"] = RAW
    with h5py.File(folder / "l.h5", "w") as file:
        file["raw"] = h5py.ExternalLink("other.h5", "/volumes/raw")
    return folder / "l.h5"


LAYOUTS = [virtual, external, linked]


@pytest.mark.parametrize("write", LAYOUTS)
def test_voxels_in_other_files_are_read_from_any_folder(
    tmp_path: Path, write: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path)
    monkeypatch.chdir("/")
    with open_source(path, "raw") as volume:
        np.testing.assert_array_equal(volume.read(volume.box), RAW)
        assert set(volume.files) == set(tmp_path.iterdir())


def take_away(file: Path) -> None:
    file.unlink()


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def empty(file: Path) -> None:
    file.write_bytes(b"")


def replace(file: Path) -> None:
    if file.suffix == ".bin":
        file.write_bytes(file.read_bytes()[:-1])
    else:
        with h5py.File(file, "w") as changed:
            changed["x"] = changed["half"] = RAW[0, :3]


@pytest.mark.parametrize("write", LAYOUTS)
@pytest.mark.parametrize("spoil", [take_away, cut, empty, replace])
def test_a_file_that_is_lost_cut_emptied_or_replaced_is_refused_by_name(
    tmp_path: Path, write: Callable[[Path], Path], spoil: Spoil
) -> None:
    main = write(tmp_path)
    for file in set(tmp_path.iterdir()) - {main}:
        content = file.read_bytes()
        spoil(file)
        with pytest.raises((BadData, MissingInput)) as caught:
            open_source(main, "raw")
        assert file.name in caught.value.message() or spoil is replace
        file.write_bytes(content)


def test_voxels_that_were_never_written_are_refused(tmp_path: Path) -> None:
    layout = h5py.VirtualLayout((5, 6, 8), "u1")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("raw", RAW.shape, "u1")
        file.create_dataset("sparse", RAW.shape, "u1", chunks=(2, 6, 8))[:2] = 1
        file["full"] = RAW
        layout[:4] = h5py.VirtualSource(file["full"])
        file.create_virtual_dataset("unmapped", layout)
        layout = h5py.VirtualLayout(RAW.shape, "u1")
        layout[:] = h5py.VirtualSource(file["sparse"])
        file.create_virtual_dataset("of_sparse", layout)
    for name, text in (("raw", "ever written"), ("unmapped", "no source"), ("of_sparse", "not complete")):
        with pytest.raises(BadData, match=text):
            open_source(tmp_path / "a.h5", name)


@pytest.mark.parametrize("name", ["Blosc", "Blosc2", "Bitshuffle", "Zstd", "LZ4"])
def test_filters_of_hdf5plugin_are_read_and_one_that_is_not_installed_is_named(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("raw", data=RAW, chunks=(2, 6, 8), **getattr(hdf5plugin, name)())
    with open_source(tmp_path / "a.h5", "raw") as volume:
        np.testing.assert_array_equal(volume.read(volume.box), RAW)

    def not_installed(_: str) -> None:
        raise ImportError

    monkeypatch.setattr(hdf5, "import_module", not_installed)
    monkeypatch.setattr(hdf5.h5z, "filter_avail", lambda _: False)
    with pytest.raises(BadData, match="not installed") as caught:
        open_source(tmp_path / "a.h5", "raw")
    assert name.lower()[:5] in caught.value.found.lower()
    assert "re-copy" not in caught.value.fix


def test_hdf5plugin_is_loaded_where_a_file_needs_it(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("raw", data=RAW, chunks=(2, 6, 8), **hdf5plugin.Zstd())
    code = (
        "import sys; from pathlib import Path; from lsdflow_runtime.formats.hdf5 import open_hdf5\n"
        "v = open_hdf5(Path(sys.argv[1]), 'raw'); print(v.read(v.box).sum())"
    )
    run = subprocess.run([sys.executable, "-c", code, tmp_path / "a.h5"], capture_output=True, text=True, check=False)
    assert run.stdout.strip() == str(RAW.sum()), run.stderr


@pytest.mark.parametrize("killed", [False, True])
def test_a_file_that_another_program_writes_is_not_called_damaged(tmp_path: Path, killed: bool) -> None:
    code = "import h5py, sys; f = h5py.File(sys.argv[1], 'w', libver='latest'); f.flush(); print(); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code, tmp_path / "a.h5"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        if killed:
            writer.kill()
            writer.wait()
        with pytest.raises(BadData, match="another program") as caught:
            open_source(tmp_path / "a.h5", "raw")
        assert "h5clear" in caught.value.fix
        writer.kill()


def imaris(path: Path, sizes: tuple[int, int, int]) -> Path:
    with h5py.File(path, "w") as file:
        data = np.zeros((6, 8, 8), np.uint8)
        data[:4, :6] = RAW
        node = file.create_dataset("Channel 0/Data", data=data, chunks=(3, 4, 4))
        for letter, size in zip("ZYX", sizes, strict=True):
            node.parent.attrs[f"ImageSize{letter}"] = np.array(list(str(size)), "S1")
    return path


def test_the_padding_of_imaris_is_not_read(tmp_path: Path) -> None:
    with open_source(imaris(tmp_path / "a.ims", RAW.shape), "Channel 0/Data") as volume:
        np.testing.assert_array_equal(volume.read(volume.box), RAW)
        assert volume.missing_chunks(volume.box) == []
    with pytest.raises(BadData, match="exceed"):
        open_source(imaris(tmp_path / "b.ims", (4, 6, 12)), "Channel 0/Data")
