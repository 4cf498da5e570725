"""The viewer state: every volume at its size and place, also with voxels that are neither equal nor whole."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lsdflow_contract.failed_blocks import FailedBlock
from lsdflow_contract.viewer_state import Steps, ViewerLayer, neuroglancer_state

VOXEL_SIZE_NM = (32.5, 6.47, 6.47)
OFFSET_NM = (65.0, 100.0, 0.0)
SHAPE_VOX = (20, 300, 400)


def _layer(**changes: Any) -> ViewerLayer:
    given = {
        "name": "raw",
        "kind": "image",
        "path": "data/target.zarr/volumes/raw",
        "voxel_size_nm": VOXEL_SIZE_NM,
        "offset_nm": OFFSET_NM,
        "shape_vox": SHAPE_VOX,
    }
    return ViewerLayer(**{**given, **changes})


def _world_nm(source: dict[str, Any], index: list[float]) -> dict[str, float]:
    """Where the viewer puts an array index, in nm by axis name: the matrix, then the size of the output voxels."""
    matrix = np.array(source["transform"]["matrix"])
    out = matrix @ np.array([*index, 1.0])
    sizes = source["transform"]["outputDimensions"]
    return {name: out[i] * scale[0] * 1e9 for i, (name, scale) in enumerate(sizes.items()) if scale[1] == "m"}


def _source(state: dict[str, Any], number: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = state["layers"][number]["source"]
    return found


@pytest.mark.proves("VIS-02")
def test_every_voxel_is_at_its_offset_plus_index_times_voxel_size() -> None:
    state = neuroglancer_state((_layer(),), "http://127.0.0.1:9000")
    for index in ([0.0, 0.0, 0.0], [3.0, 5.0, 7.0]):
        world = _world_nm(_source(state), index)
        for axis, name in enumerate("zyx"):
            assert world[name] == pytest.approx(OFFSET_NM[axis] + index[axis] * VOXEL_SIZE_NM[axis])


def test_the_channel_axis_comes_first_and_moves_nothing() -> None:
    affinities = _layer(name="affinities", kind="affinities")
    state = neuroglancer_state((_layer(), affinities), "http://127.0.0.1:9000")
    transform = _source(state, 1)["transform"]
    assert list(transform["outputDimensions"]) == ["c^", "z", "y", "x"]
    assert list(transform["inputDimensions"]) == ["d0", "d1", "d2", "d3"]
    assert np.array(transform["matrix"]).shape == (4, 5)
    assert _world_nm(_source(state, 1), [2.0, 3.0, 5.0, 7.0]) == pytest.approx(
        _world_nm(_source(state), [3.0, 5.0, 7.0])
    )


def test_a_layer_with_another_voxel_size_and_offset_keeps_its_own() -> None:
    other = _layer(name="truth", kind="labels", voxel_size_nm=(16.0, 8.0, 8.0), offset_nm=(416.0, 416.0, 420.0))
    state = neuroglancer_state((_layer(), other), "http://127.0.0.1:9000")
    assert _world_nm(_source(state, 1), [1.0, 1.0, 1.0]) == pytest.approx({"z": 432.0, "y": 424.0, "x": 428.0})


def test_voxel_sizes_are_in_metres_and_as_short_as_they_were_given() -> None:
    state = neuroglancer_state((_layer(voxel_size_nm=(8.1, 8.0, 40.0)),), "http://127.0.0.1:9000")
    assert state["dimensions"] == {"x": [4e-8, "m"], "y": [8e-9, "m"], "z": [8.1e-9, "m"]}


def test_the_view_starts_in_the_middle_of_the_first_layer_in_the_order_x_y_z() -> None:
    state = neuroglancer_state((_layer(),), "http://127.0.0.1:9000")
    middle = [(o / v + n / 2) for o, v, n in zip(OFFSET_NM, VOXEL_SIZE_NM, SHAPE_VOX, strict=True)]
    assert state["position"] == pytest.approx(middle[::-1])
    assert list(state["dimensions"]) == ["x", "y", "z"]


@pytest.mark.parametrize("prefix", ["http://127.0.0.1:9000", "http://127.0.0.1:9000/", "zarr://http://127.0.0.1:9000"])
def test_sources_are_the_prefix_and_the_path(prefix: str) -> None:
    url = _source(neuroglancer_state((_layer(),), prefix))["url"]
    assert url == "zarr://http://127.0.0.1:9000/data/target.zarr/volumes/raw"


def test_labels_are_segmentations_and_all_else_are_images() -> None:
    layers = tuple(_layer(name=kind, kind=kind) for kind in ("image", "lsds", "affinities", "labels"))
    state = neuroglancer_state(layers, "http://127.0.0.1:9000")
    assert [layer["type"] for layer in state["layers"]] == ["image", "image", "image", "segmentation"]
    assert json.loads(json.dumps(state)) == state


def test_a_state_that_cannot_be_right_is_refused() -> None:
    with pytest.raises(ValueError, match="no layers"):
        neuroglancer_state((), "http://127.0.0.1:9000")
    with pytest.raises(ValueError, match="no address prefix"):
        neuroglancer_state((_layer(),), "")
    with pytest.raises(ValueError, match="voxel size"):
        neuroglancer_state((_layer(voxel_size_nm=(0.0, 8.0, 8.0)),), "http://127.0.0.1:9000")


def test_axes_that_an_array_names_are_called_by_their_names() -> None:
    layer = _layer(kind="labels", array_axes=("z", "y", "x"))
    transform = _source(neuroglancer_state((layer,), "http://127.0.0.1:9000"))["transform"]
    assert list(transform["inputDimensions"]) == ["z", "y", "x"]


def test_steps_are_an_axis_of_their_own_with_names_and_move_nothing() -> None:
    stepped = _layer(name="thresholds", kind="labels", steps=Steps("threshold", ("0.1", "0.28"), 1))
    state = neuroglancer_state((_layer(), stepped), "http://127.0.0.1:9000")
    assert state["dimensions"]["threshold"] == {"coordinates": [0, 1], "labels": ["0.1", "0.28"]}
    assert state["position"][3:] == [1.5]
    assert _source(state, 1)["transform"]["outputDimensions"]["threshold"] == [1, ""]
    assert _world_nm(_source(state, 1), [1.0, 3.0, 5.0, 7.0]) == pytest.approx(
        _world_nm(_source(state), [3.0, 5.0, 7.0])
    )


def test_precomputed_places_itself_and_chosen_segments_are_for_the_3_d_panel_while_sections_show_all() -> None:
    meshes = _layer(name="meshes", kind="labels", path="meshes", form="precomputed", segments=(2**63 + 1, 7))
    state = neuroglancer_state((_layer(), replace(meshes, shape_vox=(2, 30, 40))), "http://127.0.0.1:9000/t/")
    described = state["layers"][1]
    assert described["source"] == {"url": "precomputed://http://127.0.0.1:9000/t/meshes"}
    assert described["segments"] == [str(2**63 + 1), "7"]
    assert described["notSelectedAlpha"] == described["selectedAlpha"]
    assert state["layout"] == "4panel"
    assert state["projectionScale"] == pytest.approx(80), "the panel shows the extent of the meshes"
    assert "segments" not in neuroglancer_state((_layer(kind="labels"),), "http://a")["layers"][0]


def test_it_opens_at_a_position_in_nm() -> None:
    state = neuroglancer_state((_layer(),), "http://127.0.0.1:9000", (650.0, 647.0, 64.7))
    assert state["position"] == pytest.approx([10.0, 100.0, 20.0])


def test_failed_blocks_are_boxes_at_their_place_and_without_any_there_is_no_such_layer() -> None:
    begin_nm = tuple(offset + 16 * size for offset, size in zip(OFFSET_NM, VOXEL_SIZE_NM, strict=True))
    place = {"begin_vox": (16, 16, 16), "shape_vox": (4, 16, 16), "begin_nm": begin_nm}
    failed = FailedBlock(stage="watershed", block=7, **place, why="it failed")
    state = neuroglancer_state((_layer(),), "http://127.0.0.1:9000", failed=(failed,))
    layer = state["layers"][-1]
    assert (layer["name"], layer["type"], layer["source"]["url"]) == (
        "failed blocks",
        "annotation",
        "local://annotations",
    )
    sizes = [size * 1e9 for size, _ in layer["source"]["transform"]["outputDimensions"].values()]
    (box,) = layer["annotations"]
    corners = [np.multiply(box[point], sizes)[::-1] for point in ("pointA", "pointB")]
    np.testing.assert_allclose(corners[0], begin_nm)
    np.testing.assert_allclose(corners[1] - corners[0], np.multiply(failed.shape_vox, VOXEL_SIZE_NM))
    assert "it failed" in box["description"]
    assert len(neuroglancer_state((_layer(),), "http://127.0.0.1:9000")["layers"]) == 1
