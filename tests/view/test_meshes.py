"""The 3-D panel opens with meshes of the largest segments: closed, in their place, in memory that does not grow."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from viewed_experiment import GRID, SEGMENTED, VOXEL_SIZE_NM, make_viewed_experiment

from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_contract.geometry import Geometry
from lsdflow_view import meshes as meshes_module
from lsdflow_view.export.ngff import export_ome
from lsdflow_view.layers import ViewerLayers, open_viewer_layers
from lsdflow_view.meshes import LabelLevel, Meshes, coarse_copy, mesh_of

SERVED = "http://127.0.0.1:1/t"


@pytest.fixture(scope="module")
def gallery(viewed_experiment: Experiment) -> ViewerLayers:
    """Open, read only."""
    return open_viewer_layers(viewed_experiment)


@pytest.fixture(scope="module")
def segmentation(gallery: ViewerLayers) -> np.ndarray:
    """All voxels."""
    volume = gallery.volumes["segmentation"]
    return np.asarray(volume.read(volume.box))


def largest_of(labels: np.ndarray) -> list[int]:
    """Slow: the segments with most voxels first, equals by lowest id."""
    sizes = {int(n): int((labels == n).sum()) for n in np.unique(labels) if n}
    return sorted(sizes, key=lambda n: (-sizes[n], n))


def decoded(content: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Vertices (x, y, z in nm) and triangles of a legacy mesh, as its specification describes it."""
    count = int(np.frombuffer(content, "<u4", 1)[0])
    vertices = np.frombuffer(content, "<f4", 3 * count, 4).reshape(-1, 3).astype(float)
    return vertices, np.frombuffer(content, "<u4", offset=4 + 12 * count).reshape(-1, 3)


def enclosed_nm3(vertices: np.ndarray, faces: np.ndarray) -> float:
    """Volume within a closed surface; fails for a surface with a border."""
    edges = np.concatenate([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [2, 0]]])
    assert sorted(map(tuple, edges.tolist())) == sorted((b, a) for a, b in edges.tolist()), "not closed"
    a, b, c = (vertices[faces[:, i]] for i in range(3))
    return abs(float(np.einsum("ij,ij->i", a, np.cross(b, c)).sum()) / 6)


def bounds_nm(mask: np.ndarray, grid: Geometry) -> tuple[np.ndarray, np.ndarray]:
    """Lowest and highest corner of the voxels of a mask, x, y, z."""
    voxels = np.argwhere(mask)
    size, offset = np.array(grid.voxel_size_nm), np.array(grid.offset_nm)
    return (voxels.min(axis=0) * size + offset)[::-1], ((voxels.max(axis=0) + 1) * size + offset)[::-1]


def test_the_state_opens_the_3_d_panel_with_the_largest_segments_beside_the_layers_as_before(
    gallery: ViewerLayers, segmentation: np.ndarray
) -> None:
    state = gallery.state(SERVED)
    (layer,) = (one for one in state["layers"] if one["name"] == "meshes")
    assert layer["source"]["url"] == f"precomputed://{SERVED}/meshes"
    assert layer["visible"]
    assert layer["segments"] == [str(n) for n in largest_of(segmentation)[: meshes_module.SHOWN]]
    assert state["layout"] == "4panel"
    others = [one["name"] for one in state["layers"] if one["name"] != "meshes"]
    assert others == [one.name for one in gallery.layers()]
    assert not any("segments" in one for one in state["layers"] if one["name"] != "meshes")
    assert state["selectedLayer"]["layer"] == others[-1], "the slider of the thresholds"


def test_no_more_than_twelve_are_shown_but_each_segment_has_a_mesh() -> None:
    labels = np.arange(1, 1 + 20, dtype=np.uint64).repeat(27).reshape(20, 3, 9)
    level = LabelLevel(
        lambda box: labels[box.slices()], Geometry(VOXEL_SIZE_NM, (0.0, 0.0, 0.0), labels.shape), (8, 8, 8)
    )
    meshes = Meshes((level,))
    (layer,) = meshes.layers()
    assert layer.segments == tuple(range(1, 13))
    assert meshes.file("20")
    assert meshes.file("21") is None


def test_a_mesh_is_a_closed_surface_around_the_voxels_of_its_segment_in_nm(
    gallery: ViewerLayers, segmentation: np.ndarray
) -> None:
    grid = gallery.volumes["segmentation"].geometry
    assert grid.offset_nm == pytest.approx(GRID.position_nm(SEGMENTED.begin_vox))
    for segment in largest_of(segmentation)[:3]:
        assert gallery.meshes.file(f"{segment}:0") == f'{{"fragments":["{segment}"]}}'.encode()
        vertices, faces = decoded(gallery.meshes.file(f"{segment}") or b"")
        mask = segmentation == segment
        low, high = bounds_nm(mask, grid)
        np.testing.assert_allclose(vertices.min(axis=0), low, atol=min(VOXEL_SIZE_NM))
        np.testing.assert_allclose(vertices.max(axis=0), high, atol=min(VOXEL_SIZE_NM))
        assert enclosed_nm3(vertices, faces) == pytest.approx(mask.sum() * np.prod(VOXEL_SIZE_NM), rel=0.1)


def test_a_mesh_that_may_not_move_ends_where_its_mask_ends() -> None:
    vertices, faces = decoded(mesh_of(np.ones((2, 3, 4), np.bool_), (100.0, -7.5, 0.25), (40.0, 9.3, 8.0), 0.0))
    np.testing.assert_allclose(vertices.min(axis=0), (0.25, -7.5, 100.0), atol=1e-3)
    np.testing.assert_allclose(vertices.max(axis=0), (32.25, 20.4, 180.0), atol=1e-3)
    assert enclosed_nm3(vertices, faces) > 0.7 * 24 * 40 * 9.3 * 8


@pytest.mark.parametrize("kept_vox", [200, 3000, 20_000])
def test_a_large_segmentation_is_thinned_to_what_memory_may_hold_and_stays_in_its_place(
    gallery: ViewerLayers, segmentation: np.ndarray, monkeypatch: pytest.MonkeyPatch, kept_vox: int
) -> None:
    monkeypatch.setattr(meshes_module, "KEPT_VOX", kept_vox)
    monkeypatch.setattr(meshes_module, "AT_ONCE_VOX", 5000)  # blocks whose edges are no multiple of the step
    copy = coarse_copy(gallery.segmentation, None)
    assert copy.labels.size <= kept_vox
    grid = gallery.volumes["segmentation"].geometry
    assert copy.begin_nm == grid.offset_nm
    step = np.array(copy.voxel_size_nm) / VOXEL_SIZE_NM
    for place in np.ndindex(*copy.labels.shape):
        middle = ((np.array(place) + 0.5) * step).astype(int)
        if (middle < segmentation.shape).all():
            assert copy.labels[place] == segmentation[tuple(middle)], place
    assert copy.labels.shape == tuple(-(-n // s) for n, s in zip(segmentation.shape, step.astype(int), strict=True))


def test_of_a_segmentation_too_large_to_read_a_part_around_the_position_is_shown_and_this_is_said(
    gallery: ViewerLayers, segmentation: np.ndarray, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(meshes_module, "READ_VOX", 16 * 32 * 32)
    read: list[int] = []
    (level,) = gallery.segmentation
    counted = replace(level, read=lambda box: (read.append(box.size), level.read(box))[1])
    size, offset = np.array(level.geometry.voxel_size_nm), np.array(level.geometry.offset_nm)
    beyond = tuple(level.geometry.box.end_vox * size * 9)
    for position, begin in ((None, (0, 0, 32)), (tuple(offset), (0, 0, 0)), (beyond, (0, 32, 32))):
        read.clear()
        with caplog.at_level(logging.WARNING):
            copy = coarse_copy((counted,), position)
        assert sum(read) <= 16 * 32 * 32
        np.testing.assert_allclose((np.array(copy.begin_nm) - offset) / size, begin, atol=1e-6)
        part = segmentation[tuple(slice(b, b + n) for b, n in zip(begin, (16, 32, 32), strict=True))]
        assert np.array_equal(copy.labels, part)
    assert "not of the whole volume" in caplog.text
    assert "lsdflow export ome" in caplog.text


def test_with_an_export_the_whole_volume_is_read_from_a_coarser_level(
    viewed_experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    export_ome(viewed_experiment, tmp_path / "levels", (), 3)
    gallery = open_viewer_layers(viewed_experiment, tmp_path / "levels")
    assert len(gallery.segmentation) == 3
    monkeypatch.setattr(meshes_module, "READ_VOX", 25 * 40 * 25)
    with caplog.at_level(logging.WARNING):
        copy = coarse_copy(gallery.segmentation, None)
    assert "not of the whole" not in caplog.text
    volume = gallery.segmentation[1]
    assert np.array_equal(copy.labels, volume.read(volume.geometry.box))
    assert copy.voxel_size_nm == (VOXEL_SIZE_NM[0], 2 * VOXEL_SIZE_NM[1], 2 * VOXEL_SIZE_NM[2])
    assert copy.begin_nm == gallery.volumes["segmentation"].geometry.offset_nm


def test_a_segmentation_that_cannot_be_read_takes_away_the_meshes_alone_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_viewed_experiment(tmp_path)
    for chunk in (tmp_path / "segmentation.zarr/volumes/segmentation/c").rglob("*"):
        if chunk.is_file():
            chunk.write_bytes(chunk.read_bytes()[:20])
    ending, gallery = (open_viewer_layers(load_experiment(tmp_path)) for _ in range(2))
    with caplog.at_level(logging.WARNING):
        ending.meshes.is_needed = False
        assert (ending.meshes.layers(), caplog.text) == ((), ""), "the viewer that ends takes the reader's threads away"
        names = [layer["name"] for layer in gallery.state(SERVED)["layers"]]
    assert names == [layer.name for layer in gallery.layers()]
    assert "no meshes: " in caplog.text
    assert gallery.meshes.file("1:0") is None


def test_without_a_finished_segmentation_there_are_no_meshes(tmp_path: Path) -> None:
    make_viewed_experiment(tmp_path)
    (tmp_path / "manifests" / "segment.json").unlink()
    names = [layer["name"] for layer in open_viewer_layers(load_experiment(tmp_path)).state(SERVED)["layers"]]
    assert "fragments" in names
    assert "meshes" not in names
