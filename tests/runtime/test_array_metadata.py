"""Metadata of our arrays: groups that any zarr library opens, and seals that report every change."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import zarr

from lsdflow_contract import CONTRACT_VERSION
from lsdflow_contract.arrays import AFFS, SEGMENTATION
from lsdflow_contract.errors import BadData, MissingInput, OutputConflict
from lsdflow_contract.geometry import Geometry
from lsdflow_runtime.io.array_metadata import make_array
from lsdflow_runtime.io.volumes import OutputArray, open_volume

GRID = Geometry((40.0, 8.0, 8.0), (0.0, 0.0, 0.0), (8, 16, 16))
PROVENANCE = {"key": "this work", "contract": CONTRACT_VERSION}
Format = Literal[2, 3]


def written(path: Path, zarr_format: Format) -> OutputArray:
    output = OutputArray(path, SEGMENTATION, GRID, GRID.box, (8, 8, 8), zarr_format)
    output.create(PROVENANCE)
    output.write_groups()
    output.open().write(GRID.box, np.arange(8 * 16 * 16, dtype=np.uint64).reshape(8, 16, 16))
    return output


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_container_is_opened_from_its_root_by_plain_zarr(tmp_path: Path, zarr_format: Format) -> None:
    output = written(tmp_path / "a.zarr", zarr_format)
    OutputArray(output.path, AFFS, GRID, GRID.box, (8, 8, 8), zarr_format).create(PROVENANCE)
    root = zarr.open_group(output.path, mode="r")
    assert root.metadata.zarr_format == zarr_format
    assert np.array_equal(root["volumes/segmentation"][:], output.open().read(GRID.box))
    assert sorted(dict(root["volumes"].arrays())) == ["affs", "segmentation"]


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_groups_are_added_if_a_run_ended_before_it_wrote_them(tmp_path: Path, zarr_format: Format) -> None:
    output = written(tmp_path / "a.zarr", zarr_format)
    for folder in (output.path, output.path / "volumes"):
        (folder / (".zgroup" if zarr_format == 2 else "zarr.json")).unlink()
    assert not output.create(PROVENANCE), "the array itself is not made again"
    output.write_groups()
    assert zarr.open_group(output.path, mode="r")["volumes/segmentation"].shape == (8, 16, 16)


def test_an_array_written_again_in_the_other_format_is_found_from_the_root(tmp_path: Path) -> None:
    output = written(tmp_path / "a.zarr", 3)
    other = OutputArray(output.path, SEGMENTATION, GRID, GRID.box, (8, 8, 8), 2)
    with pytest.raises(OutputConflict):
        other.create({**PROVENANCE, "key": "other work"})
    shutil.rmtree(output.folder)
    other.create({**PROVENANCE, "key": "other work"})
    other.write_groups()
    assert zarr.open_group(output.path, mode="r")["volumes/segmentation"].metadata.zarr_format == 2


def test_attributes_that_others_gave_a_group_are_kept(tmp_path: Path) -> None:
    output = written(tmp_path / "a.zarr", 3)
    zarr.open_group(output.path).attrs["ome"] = {"name": "mine"}
    output.write_groups()
    assert zarr.open_group(output.path, mode="r").attrs["ome"] == {"name": "mine"}


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_no_flipped_bit_of_the_metadata_is_read_as_something_else(tmp_path: Path, zarr_format: Format) -> None:
    output = written(tmp_path / "a.zarr", zarr_format)
    found = output.open()
    wanted, refused, chance = (found.read(GRID.box), found.geometry), 0, random.Random(0)
    for path in [p for p in output.folder.iterdir() if p.name in (".zarray", ".zattrs", "zarr.json")]:
        content = path.read_bytes()
        for bit in chance.sample(range(8 * len(content)), 150):
            changed = bytearray(content)
            changed[bit // 8] ^= 1 << bit % 8
            path.write_bytes(changed)
            try:
                seen = open_volume(output.path, SEGMENTATION.dataset)
                assert np.array_equal(seen.read(GRID.box), wanted[0]), f"{path.name}, bit {bit}"
                assert seen.geometry == wanted[1], f"{path.name}, bit {bit}"
            except BadData:
                refused += 1
        path.write_bytes(content)
    assert refused > 100


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_lost_chunk_is_not_zeros_where_the_provenance_is_damaged_as_well(tmp_path: Path, zarr_format: Format) -> None:
    output = written(tmp_path / "a.zarr", zarr_format)
    path = output.folder / (".zattrs" if zarr_format == 2 else "zarr.json")
    path.write_text(path.read_text().replace('"lsdflow"', '"lsdflog"'))
    shutil.rmtree(output.folder / "c", ignore_errors=True)
    for chunk in output.folder.glob("0.*"):
        chunk.unlink()
    with pytest.raises(BadData) as caught:
        open_volume(output.path, SEGMENTATION.dataset).read(GRID.box)
    assert str(output.folder) in caught.value.where


def test_damaged_metadata_are_not_taken_for_those_of_somebody_else(tmp_path: Path) -> None:
    output = written(tmp_path / "a.zarr", 3)
    (output.folder / "zarr.json").write_text("{")
    with pytest.raises(BadData) as caught:
        output.create(PROVENANCE)
    assert "lsdflow repair" in caught.value.fix


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_lost_or_damaged_metadata_are_written_again_and_chunks_stay(tmp_path: Path, zarr_format: Format) -> None:
    output = written(tmp_path / "a.zarr", zarr_format)
    files = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in output.folder.rglob("*") if p.is_file()}
    values = output.open().read(GRID.box)
    for name in [p.name for p in files if p.name in (".zarray", ".zattrs", "zarr.json")]:
        for damage in (lambda path: path.unlink(), lambda path: path.write_text("{")):
            damage(output.folder / name)
            with pytest.raises((BadData, MissingInput, OutputConflict)):
                output.create(PROVENANCE)
            output.restore_metadata(PROVENANCE)
            assert np.array_equal(output.open().read(GRID.box), values)
    for path, (content, changed) in files.items():
        assert path.read_bytes() == content
        assert path.name.startswith((".z", "zarr")) or path.stat().st_mtime_ns == changed


def test_a_process_killed_while_it_creates_an_array_leaves_nothing_after_the_next_create(tmp_path: Path) -> None:
    output = OutputArray(tmp_path / "a.zarr", SEGMENTATION, GRID, GRID.box, (8, 8, 8), 3)

    def killed_before_the_seal(folder: Path) -> None:
        folder.mkdir(parents=True)
        (folder / "zarr.json").write_text("{}")
        os._exit(9)

    killed = multiprocessing.get_context("fork").Process(
        target=make_array, args=(output.folder, killed_before_the_seal)
    )
    killed.start()
    killed.join()
    assert killed.exitcode == 9
    assert [path.name.startswith(".") for path in output.folder.parent.iterdir()] == [True]
    assert output.create(PROVENANCE)
    assert list(output.folder.parent.iterdir()) == [output.folder]
    assert output.open().geometry == GRID


def test_an_array_that_has_lost_its_seal_is_refused(tmp_path: Path) -> None:
    output = written(tmp_path / "a.zarr", 3)
    path = output.folder / "zarr.json"
    document = json.loads(path.read_text())
    del document["attributes"]["lsdflow_seal"]
    path.write_text(json.dumps(document))
    with pytest.raises(BadData, match="lost its seal"):
        output.open()
