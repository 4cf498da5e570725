"""Precomputed export: read back by cloud-volume, equal to a slow reference; meshes and skeletons where segments are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cloudvolume import CloudVolume
from killed_export import killed_after
from slow_levels import slow_level, slow_mean, slow_mode
from typer.testing import CliRunner

from lsdflow_contract.arrays import RAW, SEGMENTATION, ArraySpec
from lsdflow_contract.geometry import Box, Geometry, Vox3
from lsdflow_runtime.formats.detect import open_source
from lsdflow_runtime.io.volumes import OutputArray
from lsdflow_view.cli import app
from lsdflow_view.export.levels import Layer, open_layer, pyramid, whole_bins
from lsdflow_view.export.passes import ReadBack
from lsdflow_view.export.precomputed import VolumeOptions, _precomputed_layer, export_precomputed
from lsdflow_view.export.precomputed_volume import PrecomputedLayer
from lsdflow_view.export.segments import table_of_blocks
from lsdflow_view.export.shapes import ShapeOptions

STEP = (1, 2, 2)
RESOLUTIONS_NM = ([9.3, 9.3, 40.0], [18.6, 18.6, 40.0])
WHOLE = VolumeOptions()
THREE_EXACT = ShapeOptions(meshes=3, skeletons=3, error_nm=0.0)


@pytest.fixture(scope="module")
def exported(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Raw, affinities and segmentation; exact meshes and skeletons of the three largest segments."""
    out = tmp_path_factory.mktemp("precomputed") / "out"
    written = export_precomputed(tiny.experiment, out, ("raw", "affinities", "segmentation"), WHOLE, THREE_EXACT)
    assert (written["meshes"], written["skeletons"]) == (3, 3)
    return out


@pytest.fixture(scope="module")
def segmentation(tiny: Any) -> np.ndarray:
    """The whole of it, z, y, x."""
    volume = open_layer(tiny.experiment, "segmentation").volume
    return volume.read(volume.box)


def test_cloud_volume_reads_every_level_in_place(exported: Path, tiny: Any) -> None:
    for name, slow in (("raw", slow_mean), ("segmentation", slow_mode)):
        volume = open_layer(tiny.experiment, name).volume
        inside = tiny.segmented.begin_vox if name == "segmentation" else (0, 0, 0)
        begin = tuple(a + b for a, b in zip(tiny.begin_vox, inside, strict=True))
        expected = volume.read(volume.box)
        for mip, resolution in enumerate(RESOLUTIONS_NM):
            if mip:
                expected = slow_level(expected, begin, STEP, slow)
                begin = tuple(b // s for b, s in zip(begin, STEP, strict=True))
            found = CloudVolume(f"file://{exported / name}", mip=mip, progress=False)
            assert list(found.info["scales"][mip]["resolution"]) == pytest.approx(resolution)
            assert found.voxel_offset.tolist() == list(begin[::-1])
            np.testing.assert_array_equal(np.asarray(found[:])[..., 0].T, expected)


def test_affinities_are_an_image_of_three_channels(exported: Path, tiny: Any) -> None:
    found = CloudVolume(f"file://{exported / 'affinities'}", progress=False)
    volume = open_layer(tiny.experiment, "affinities").volume
    np.testing.assert_array_equal(np.asarray(found[:]).T, volume.read(volume.box))


def test_labels_are_compressed_segmentation_and_prepare_reads_them_where_they_were(exported: Path, tiny: Any) -> None:
    info = json.loads((exported / "segmentation" / "info").read_text())
    assert (info["type"], info["data_type"], info["num_channels"]) == ("segmentation", "uint64", 1)
    assert {scale["encoding"] for scale in info["scales"]} == {"compressed_segmentation"}
    found = open_source(exported / "segmentation")
    source = open_layer(tiny.experiment, "segmentation").volume
    np.testing.assert_array_equal(found.read(found.box), source.read(source.box))
    there = found.geometry()
    assert there.voxel_size_nm == pytest.approx(source.geometry.voxel_size_nm)
    assert there.offset_nm == pytest.approx(source.geometry.offset_nm)


def test_the_bounding_box_of_a_mesh_is_that_of_its_segment_in_nm(
    exported: Path, tiny: Any, segmentation: np.ndarray
) -> None:
    volume = CloudVolume(f"file://{exported / 'segmentation'}", progress=False)
    for segment in _largest(segmentation, 3):
        mesh = volume.mesh.get(segment)
        low, high = _bounds_nm(segmentation, segment, tiny)
        np.testing.assert_allclose(mesh.vertices.min(axis=0), low, atol=0.01)
        np.testing.assert_allclose(mesh.vertices.max(axis=0), high, atol=0.01)
        assert _is_closed(mesh.faces)


def test_nodes_of_a_skeleton_lie_in_the_centres_of_voxels_of_the_segment(
    exported: Path, tiny: Any, segmentation: np.ndarray
) -> None:
    volume = CloudVolume(f"file://{exported / 'segmentation'}", progress=False)
    for segment in _largest(segmentation, 3):
        skeleton = volume.skeleton.get(segment)
        assert len(skeleton.edges) > 3
        exact = skeleton.vertices[:, ::-1] / tiny.grid.voxel_size_nm - _origin_vox(tiny) - 0.5
        voxels = np.rint(exact).astype(int)
        np.testing.assert_allclose(exact, voxels, atol=0.01)
        assert (segmentation[tuple(voxels.T)] == segment).all()
        assert skeleton.radii.min() > 0
        assert skeleton.radii.max() < np.ptp(_bounds_nm(segmentation, segment, tiny), axis=0).max()


def test_neuroglancer_lists_the_chosen_segments_with_their_voxels(exported: Path, segmentation: np.ndarray) -> None:
    info = json.loads((exported / "segmentation" / "info").read_text())
    assert (info["mesh"], info["skeletons"]) == ("mesh", "skeletons")
    listed = json.loads((exported / "segmentation" / info["segment_properties"] / "info").read_text())["inline"]
    assert listed["ids"] == [str(segment) for segment in _largest(segmentation, 3)]
    assert listed["properties"][0]["values"] == [float((segmentation == int(s)).sum()) for s in listed["ids"]]


def test_a_simplified_mesh_stays_within_its_error(tiny: Any, tmp_path: Path, segmentation: np.ndarray) -> None:
    (segment,) = _largest(segmentation, 1)
    export_precomputed(tiny.experiment, tmp_path / "o", ("segmentation",), VolumeOptions(1), ShapeOptions(meshes=1))
    mesh = CloudVolume(f"file://{tmp_path / 'o/segmentation'}", progress=False).mesh.get(segment)
    low, high = _bounds_nm(segmentation, segment, tiny)
    np.testing.assert_allclose(mesh.vertices.min(axis=0), low, atol=9.31)
    np.testing.assert_allclose(mesh.vertices.max(axis=0), high, atol=9.31)


def test_shapes_of_a_coarser_level_are_where_its_voxels_are(
    tiny: Any, tmp_path: Path, segmentation: np.ndarray
) -> None:
    options = ShapeOptions(meshes=2, skeletons=2, level=1, error_nm=0.0)
    export_precomputed(tiny.experiment, tmp_path / "o", ("segmentation",), WHOLE, options)
    volume = CloudVolume(f"file://{tmp_path / 'o/segmentation'}", mip=1, progress=False)
    begin, size_nm = _origin_vox(tiny) // STEP, np.multiply(tiny.grid.voxel_size_nm, STEP)
    coarse = slow_level(segmentation, tuple(_origin_vox(tiny)), STEP, slow_mode)
    for segment in _largest(segmentation, 2):
        voxels = np.argwhere(coarse == segment) + begin
        vertices = volume.mesh.get(segment).vertices[:, ::-1]
        np.testing.assert_allclose(vertices.min(axis=0), voxels.min(axis=0) * size_nm, atol=0.01)
        np.testing.assert_allclose(vertices.max(axis=0), (voxels.max(axis=0) + 1) * size_nm, atol=0.01)
        nodes = volume.skeleton.get(segment).vertices[:, ::-1] / size_nm - begin - 0.5
        np.testing.assert_allclose(nodes, np.rint(nodes), atol=0.01)
        assert (coarse[tuple(np.rint(nodes).astype(int).T)] == segment).all()


def test_sizes_and_boxes_of_segments_are_those_of_a_loop_over_segments(segmentation: np.ndarray) -> None:
    starts = [(z, y) for z in range(0, segmentation.shape[0], 7) for y in range(0, segmentation.shape[1], 33)]
    table = table_of_blocks((segmentation[z : z + 7, y : y + 33], (z, y, 0)) for z, y in starts)
    assert table.ids.tolist() == [segment for segment in np.unique(segmentation).tolist() if segment]
    for row, segment in enumerate(table.ids):
        voxels = np.argwhere(segmentation == segment)
        assert table.sizes_vox[row] == len(voxels)
        assert table.box(row).begin_vox == tuple(voxels.min(axis=0))
        assert table.box(row).end_vox == tuple(voxels.max(axis=0) + 1)


def test_a_killed_export_resumes_to_the_same_bytes(tiny: Any, tmp_path: Path) -> None:
    def export(out: Path) -> dict[str, int]:
        return export_precomputed(tiny.experiment, out, ("raw", "segmentation"), WHOLE, THREE_EXACT)

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    blocks = export(whole)["blocks"]
    assert killed_after(0, lambda: export(killed)), "in the table of segments"
    assert killed_after(1 + 2, lambda: export(killed)), "in a block"
    assert not (killed / "raw" / "info").exists(), "what is not finished is no volume yet"
    assert killed_after(blocks - 2 + 1, lambda: export(killed)), "in a mesh"
    assert export(killed) == {"blocks": 0, "meshes": 2, "skeletons": 3}
    assert _tree(killed) == _tree(whole)
    assert export(killed) == {"blocks": 0}


# 1 x 9 x 9 chunks: along a curve that has no bit for z, shards hold 1 x 8 x 8; 9 x 5 x 1: they hold 8 x 8 x 1.
@pytest.mark.parametrize(("shape", "shards"), [((20, 520, 520), 4), ((520, 281, 33), 2)])
@pytest.mark.parametrize("spec", [RAW, SEGMENTATION])
def test_shards_are_read_by_cloud_volume_and_tensorstore_in_place(
    tmp_path: Path, shape: Vox3, shards: int, spec: ArraySpec
) -> None:
    layer = _sharded_layer(tmp_path, shape, spec)
    passes = layer.passes()
    for pass_ in passes:
        assert pass_.begin()
        with pass_.open() as write:
            for block in reversed(list(pass_.plan.blocks())):
                write(block)
    (tmp_path / "out" / "info").write_text(json.dumps(layer.info()))
    assert len(passes[0].plan) == len(list(passes[0].folder.iterdir())) == shards
    assert json.loads((tmp_path / "out" / "info").read_text())["scales"][0]["sharding"]["hash"] == "identity"
    expected, reduction = layer.layer.volume.read(layer.layer.volume.box), layer.layer.reduction
    for mip, level in enumerate(layer.levels):
        if mip:
            bins = whole_bins(expected, *level.cut_voxels(level.box, layer.levels[mip - 1].box))
            expected = reduction(bins, level.step)
        found = CloudVolume(f"file://{tmp_path / 'out'}", mip=mip, progress=False)
        assert found.voxel_offset.tolist() == list(level.box.begin_vox[::-1])
        np.testing.assert_array_equal(np.asarray(found[:])[..., 0].T, expected)
        other = open_source(tmp_path / "out", str(found.info["scales"][mip]["key"]))  # by tensorstore
        np.testing.assert_array_equal(other.read(other.box), expected)


def test_an_impossible_export_is_refused_before_anything_is_written(tiny: Any, tmp_path: Path) -> None:
    begin = ["export", "precomputed", str(tiny.root), str(tmp_path / "o"), "--meshes", "2"]
    for options, words in (
        (["--shape-level", "7"], ["no such level"]),
        (["--shapes-of", "raw"], ["segmentation"]),
        (["--skeletons", "some"], ["a number, or all"]),
    ):
        found = CliRunner().invoke(app, [*begin, *options])
        assert found.exit_code == 2
        assert all(word in found.output for word in words), found.output
        assert not (tmp_path / "o").exists()


def test_an_experiment_without_any_volume_is_reported(tmp_path: Path) -> None:
    (tmp_path / "experiment.toml").write_text("[experiment]\n")
    for format_ in ("ome", "precomputed"):
        found = CliRunner().invoke(app, ["export", format_, str(tmp_path), str(tmp_path / "o")])
        assert (found.exit_code, "prepare" in found.output) == (66, True)


def test_an_offset_of_a_part_of_a_voxel_is_exported_with_the_shift_said_and_layers_stay_together(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """-4.5 and 0.5 voxels: rounded to even they would move apart by a voxel."""
    begins = []
    for name, offset in (("raw", (-45.0, 5.0, 12.5)), ("labels", (5.0, 15.0, 22.5))):
        grid = Geometry((10.0, 10.0, 10.0), offset, (8, 8, 8))
        output = OutputArray(tmp_path / f"{name}.zarr", RAW, grid, grid.box, (8, 8, 8))
        output.create({"key": "k"})
        layer = _precomputed_layer(Layer(name, "image", output.open(), "i"), tmp_path, WHOLE, ReadBack())
        begins.append(layer.levels[0].box.begin_vox)
    assert begins == [(-4, 1, 1), (1, 2, 2)]
    assert caplog.text.count("5, 5, -2.5 nm (z, y, x) beside its place") == 2


def _sharded_layer(folder: Path, shape: Vox3, spec: ArraySpec) -> PrecomputedLayer:
    """Noise in bricks, and background that fills whole chunks, also those that the volume's end cuts."""
    begin, size_nm = (3, 5, 7), (40.0, 10.0, 10.0)
    offset = tuple(b * s for b, s in zip(begin, size_nm, strict=True))
    grid = Geometry(size_nm, (offset[0], offset[1], offset[2]), shape)
    bricks = np.random.default_rng(1).integers(0, 200, [-(-n // 9) for n in shape]).astype(spec.dtype)
    values = bricks.repeat(9, 0).repeat(9, 1).repeat(9, 2)[tuple(map(slice, shape))] + np.ones((), spec.dtype)
    values[:, :70] = 0
    values[:, 256:] = 0
    output = OutputArray(folder / "source.zarr", spec, grid, grid.box, (64, 128, 128))
    output.create({"key": "k"})
    output.open().write(grid.box, values)
    layer = Layer("it", "image" if spec is RAW else "labels", output.open(), "i")
    return PrecomputedLayer(layer, folder / "out", pyramid(size_nm, Box(begin, shape), 3), ReadBack(), True)


def _largest(labels: np.ndarray, count: int) -> list[int]:
    ids, sizes = np.unique(labels[labels > 0], return_counts=True)
    return [int(ids[row]) for row in np.lexsort((ids, -sizes))[:count]]


def _origin_vox(tiny: Any) -> np.ndarray:
    return np.add(tiny.begin_vox, tiny.segmented.begin_vox)


def _bounds_nm(labels: np.ndarray, segment: int, tiny: Any) -> tuple[np.ndarray, np.ndarray]:
    """Outer faces of its first and last voxels, x, y, z."""
    voxels = np.argwhere(labels == segment) + _origin_vox(tiny)
    low, high = voxels.min(axis=0) * tiny.grid.voxel_size_nm, (voxels.max(axis=0) + 1) * tiny.grid.voxel_size_nm
    return low[::-1], high[::-1]


def _is_closed(faces: np.ndarray) -> bool:
    """Every edge of a triangle is one of another triangle, the other way round."""
    edges = np.concatenate([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [2, 0]]])
    ways, counts = np.unique(edges, axis=0, return_counts=True)
    back, back_counts = np.unique(edges[:, ::-1], axis=0, return_counts=True)
    return np.array_equal(ways, back) and np.array_equal(counts, back_counts)


def _tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
