"""OME-NGFF export: read by the field's tools, equal to a slow reference, the same bytes after SIGKILL."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from killed_export import killed_after
from slow_levels import slow_level, slow_mean, slow_mode
from typer.testing import CliRunner

from lsdflow_contract.geometry import Box
from lsdflow_runtime.formats.detect import open_source
from lsdflow_runtime.io.volumes import Volume, open_volume
from lsdflow_view.cli import app
from lsdflow_view.export.levels import open_layer
from lsdflow_view.export.ngff import export_ome
from lsdflow_view.export.passes import export_folder

HERE = Path(__file__).parent
READERS = HERE.parents[1] / ".cache" / "readers" / "bin" / "python"
STEPS = ((1, 2, 2),)
SIZES_NM = ([40, 9.3, 9.3], [40, 18.6, 18.6])


@pytest.fixture(scope="module")
def exported(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The usual layers at once, the affinities added later."""
    out = tmp_path_factory.mktemp("ome") / "tiny.zarr"
    first = export_ome(tiny.experiment, out, (), None)
    later = export_ome(tiny.experiment, out, ("affinities",), None)
    assert first > later > 0
    return out


@pytest.fixture(scope="module")
def as_others_read_it(exported: Path) -> dict[str, Any]:
    """What the official schemas, the field's models and the reference reader say (they refuse nothing)."""
    done = subprocess.run([READERS, HERE / "read_as_others.py", exported], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_schemas_models_and_the_reference_reader_take_the_image_and_its_labels(
    as_others_read_it: dict[str, Any],
) -> None:
    assert set(as_others_read_it) == {"raw", "fragments", "segmentation", "truth", "affinities"}
    space = [[axis, "space", "nanometer"] for axis in "zyx"]
    for name, found in as_others_read_it.items():
        assert found["axes"] == ([["c", "channel", None], *space] if name == "affinities" else space)
        assert len(found["shapes"]) == 2
        assert found["dtypes"] == ["uint8" if name in ("raw", "affinities") else "uint64"] * 2
    # A colour for each of millions of labels is not written: viewers make one from the id.
    assert as_others_read_it["segmentation"]["strict_about_labels"] == ["'colors' is a required property"]


def test_scale_and_translation_are_nanometers_of_the_centres(as_others_read_it: dict[str, Any], tiny: Any) -> None:
    corner = np.array(tiny.begin_vox) * SIZES_NM[0]
    segmented = corner + np.array(tiny.segmented.begin_vox) * SIZES_NM[0]
    for name, origin in (("raw", corner), ("segmentation", segmented), ("affinities", segmented)):
        for (scale, translation), size in zip(as_others_read_it[name]["transforms"], SIZES_NM, strict=True):
            assert scale["scale"][-3:] == pytest.approx(size)
            centre_shift = (np.array(size) - SIZES_NM[0]) / 2
            assert translation["translation"][-3:] == pytest.approx(origin + centre_shift)


def test_the_reference_reader_sees_the_source_and_levels_of_a_slow_reference(
    as_others_read_it: dict[str, Any], tiny: Any
) -> None:
    for name, slow in (("raw", slow_mean), ("truth", slow_mode), ("segmentation", slow_mode)):
        volume = open_layer(tiny.experiment, name).volume
        expected = [volume.read(volume.box)]
        for step in STEPS:
            expected.append(slow_level(expected[-1], (0, 0, 0), step, slow))
        assert as_others_read_it[name]["sha256"] == [_sha256(values) for values in expected]


def test_arrays_have_the_chunks_of_the_source_and_the_names_of_the_axes(exported: Path, tiny: Any) -> None:
    segmentation = json.loads((exported / "labels/segmentation/1/zarr.json").read_text())
    assert segmentation["codecs"][0]["name"] == "sharding_indexed"
    assert segmentation["chunk_grid"]["configuration"]["chunk_shape"] == [8, 128, 128]
    affinities = json.loads((exported / "images/affinities/0/zarr.json").read_text())
    assert affinities["dimension_names"] == ["c", "z", "y", "x"]
    source = open_layer(tiny.experiment, "affinities").volume
    copy = open_volume(exported / "images/affinities", "0")
    np.testing.assert_array_equal(copy.read(copy.box), source.read(source.box))


def test_prepare_reads_an_export_where_it_was(exported: Path, tiny: Any) -> None:
    for level, size in enumerate(SIZES_NM):
        source = open_source(exported, str(level))
        found = source.geometry()  # refused, if attributes of the array and of the pyramid did not agree
        assert found.voxel_size_nm == pytest.approx(size)
        assert found.offset_nm == pytest.approx(tiny.grid.offset_nm)


def test_a_killed_export_resumes_to_the_same_bytes_and_makes_no_finished_block_again(
    exported: Path, tiny: Any, tmp_path: Path
) -> None:
    out, begun = tmp_path / "killed.zarr", 9
    assert killed_after(begun, lambda: export_ome(tiny.experiment, out, (), None))
    assert not (out / "zarr.json").exists(), "what is not finished is no image yet"
    chunks = {path: path.stat().st_ino for path in out.rglob("c/*/*/*")}
    assert len(chunks) == begun + 1
    total = export_ome(tiny.experiment, out, (), None) + begun
    assert sum(path.stat().st_ino != inode for path, inode in chunks.items()) == 1, "the block without a mark"
    assert len(list(out.rglob("c/*/*/*"))) == total
    assert export_ome(tiny.experiment, out, (), None) == 0
    export_ome(tiny.experiment, out, ("affinities",), None)
    assert _tree(out) == _tree(exported)


def test_a_folder_of_something_else_is_refused_and_left_alone(tiny: Any, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    found = CliRunner().invoke(app, ["export", "ome", str(tiny.root), str(tmp_path)])
    assert found.exit_code == 73
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_second_process_is_refused_while_one_exports_to_the_folder(tiny: Any, tmp_path: Path) -> None:
    out = tmp_path / "o.zarr"
    with export_folder(out, None, {}):
        found = CliRunner().invoke(app, ["export", "ome", str(tiny.root), str(out), "--layer", "raw"])
    assert (found.exit_code, "another process exports" in found.output) == (73, True)
    assert not (out / "0").exists()


def test_other_levels_in_the_same_folder_are_refused(exported: Path, tiny: Any) -> None:
    before = _tree(exported)
    found = CliRunner().invoke(app, ["export", "ome", str(tiny.root), str(exported), "--levels", "1"])
    assert found.exit_code == 73
    assert _tree(exported) == before


def test_a_wrong_layer_and_one_that_is_not_there_are_reported(tiny: Any, tmp_path: Path) -> None:
    for layer, code, word in (("segmentaton", 2, "segmentation"), ("lsds", 66, "predict")):
        found = CliRunner().invoke(app, ["export", "ome", str(tiny.root), str(tmp_path / "o"), "--layer", layer])
        assert (found.exit_code, word in found.output) == (code, True)
        assert not (tmp_path / "o").exists()


def test_memory_is_that_of_blocks_not_of_the_volume(tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    plain = Volume.read
    monkeypatch.setattr(Volume, "read", lambda self, box, *a: read.append(_asked(box)) or plain(self, box, *a))
    export_ome(tiny.experiment, tmp_path / "o.zarr", ("raw",), 3)
    assert max(read) <= 16 * 32 * 32
    assert sum(read) >= 20 * 90 * 100


def _asked(box: Box) -> int:
    return box.size


def _sha256(values: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(values).data).hexdigest()


def _tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_every_block_lasts_a_loss_of_power_before_it_counts(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lasting: list[str] = []
    durable = Volume.make_durable
    monkeypatch.setattr(Volume, "make_durable", lambda v, box: (lasting.append(f"{v.where} {box}"), durable(v, box))[1])
    written = export_ome(tiny.experiment, tmp_path / "out", ("raw", "segmentation"), 2)
    assert len(set(lasting)) == len(lasting) == written > 0
