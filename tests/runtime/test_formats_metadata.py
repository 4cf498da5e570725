"""What metadata says of voxel size and offset: every convention, conflicts refused, nothing guessed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from lsdflow_contract.errors import BadData
from lsdflow_runtime.formats.attributes import claims_of, nm_per
from lsdflow_runtime.formats.claims import GeometryClaim, place
from lsdflow_runtime.formats.detect import open_source
from lsdflow_runtime.formats.ngff import levels_of

SHAPE = (4, 4, 4)
LEAVES = st.none() | st.floats() | st.integers() | st.sampled_from(["", "nm", "z", "8"])
LISTS = st.lists(LEAVES, max_size=4)
KEYS = st.sampled_from(["resolution", "voxel_size", "offset", "units", "pixelResolution", "transform"])
POSITIVE = st.floats(0.01, 1e5, allow_nan=False)


def placed(attributes: dict[str, Any], axes: str = "zyx", **options: Any) -> tuple[Any, Any]:
    geometry = place(claims_of(attributes, axes, "a.zarr"), SHAPE, "a.zarr", **options)
    return geometry.voxel_size_nm, geometry.offset_nm


@pytest.mark.parametrize(
    ("attributes", "axes", "size", "offset"),
    [
        ({"resolution": [40, 8, 4], "offset": [80, 16, 4]}, "zyx", (40, 8, 4), (80, 16, 4)),
        ({"resolution": [4, 8, 40], "offset": [4, 16, 80]}, "xyz", (40, 8, 4), (80, 16, 4)),
        (
            {"voxel_size": [0.04, 0.008, 0.004], "units": ["um"] * 3, "offset": [1, 0, 0]},
            "zyx",
            (40, 8, 4),
            (1000, 0, 0),
        ),
        ({"voxel_size": [33.5, 8, 8], "resolution": [33.5, 8, 8]}, "zyx", (33.5, 8, 8), (0, 0, 0)),
        ({"voxel_size": [1, 40, 8, 4], "units": ["", "nm", "nm", "nm"]}, "czyx", (40, 8, 4), (0, 0, 0)),
        ({"pixelResolution": [0.004, 0.008, 0.04]}, "xyz", (40, 8, 4), (0, 0, 0)),
        ({"pixelResolution": {"unit": "nm", "dimensions": [4, 8, 40]}}, "zyx", (40, 8, 4), (0, 0, 0)),
        (
            {"transform": {"axes": ["x", "y", "z"], "scale": [4, 8, 40], "translate": [1, 2, 3], "units": ["nm"] * 3}},
            "zyx",
            (40, 8, 4),
            (3, 2, 1),
        ),
    ],
)
def test_every_convention_is_understood(attributes: dict[str, Any], axes: str, size: Any, offset: Any) -> None:
    assert placed(attributes, axes) == (size, offset)


def test_missing_voxel_size_is_refused_with_the_key_that_sets_it() -> None:
    with pytest.raises(BadData) as caught:
        placed({"offset": [0, 0, 0]}, setting="[prepare.target] voxel_size")
    assert '[prepare.target] voxel_size = "40, 8, 8 nm"' in caught.value.fix


def test_conflict_names_both_values_and_sources() -> None:
    with pytest.raises(BadData) as caught:
        placed({"resolution": [40, 8, 8], "voxel_size": [1, 1, 1]})
    for part in ("resolution", "voxel_size", "(40, 8, 8)", "(1, 1, 1)"):
        assert part in caught.value.found


def test_reversed_sizes_are_called_reversed() -> None:
    with pytest.raises(BadData, match="reversed"):
        placed({"resolution": [40, 8, 4], "voxel_size": [4, 8, 40]})


def test_conflicting_offsets_are_refused() -> None:
    claims = [GeometryClaim("a", (1.0, 1.0, 1.0), (0.0, 0.0, 0.0)), GeometryClaim("b", None, (8.0, 0.0, 0.0))]
    with pytest.raises(BadData, match="different offsets"):
        place(claims, SHAPE, "a")


@pytest.mark.parametrize("value", [[0, 8, 8], [-1, 8, 8], [8, 8], "8", [8, "x", 8], [float("nan"), 8, 8], 8])
def test_nonsense_sizes_are_refused(value: Any) -> None:
    with pytest.raises(BadData):
        placed({"resolution": value})


@pytest.mark.parametrize("unit", ["pixel", "second", "", "nanometers/voxel"])
def test_unknown_units_are_refused(unit: str) -> None:
    with pytest.raises(BadData, match="unit"):
        placed({"resolution": [8, 8, 8], "units": [unit] * 3})


def test_micro_sign_and_greek_mu_are_both_micrometres() -> None:
    assert nm_per("\u00b5m", "") == nm_per("\u03bcm", "") == nm_per("\\u00B5m", "") == 1000


def test_a_typed_size_overrides_conflicting_metadata() -> None:
    size, _ = placed({"resolution": [40, 8, 8], "voxel_size": [1, 1, 1]}, voxel_size_nm=(30.0, 6.0, 6.0))
    assert size == (30, 6, 6)


def test_typed_size_keeps_the_voxel_position_of_the_offset() -> None:
    _, offset = placed({"resolution": [10, 10, 10], "offset": [100, 50, 0]}, voxel_size_nm=(8.0, 8.0, 8.0))
    assert offset == (80, 40, 0)


@pytest.mark.proves("DAT-13")
@given(size=st.tuples(POSITIVE, POSITIVE, POSITIVE), voxels=st.tuples(*[st.integers(-1000, 1000)] * 3), factor=POSITIVE)
def test_expansion_factor_divides_size_and_offset_alike(size: Any, voxels: Any, factor: float) -> None:
    offset = [n * s for n, s in zip(voxels, size, strict=True)]
    found_size, found_offset = placed({"resolution": list(size), "offset": offset}, expansion_factor=factor)
    assert found_size == pytest.approx([s / factor for s in size], rel=1e-8)
    assert found_offset == pytest.approx([o / factor for o in offset], rel=1e-8)


@given(st.dictionaries(KEYS, LEAVES | LISTS | st.fixed_dictionaries({"scale": LISTS, "axes": LISTS})))
def test_any_metadata_gives_a_geometry_or_bad_data(attributes: dict[str, Any]) -> None:
    try:
        size, _ = placed(attributes)
    except BadData:
        return
    assert min(size) > 0


def image(steps: list[dict[str, Any]], unit: str | None = "nanometer") -> dict[str, Any]:
    axes = [{"name": name, "type": "space", **({"unit": unit} if unit else {})} for name in "zyx"]
    datasets = [{"path": "0", "coordinateTransformations": steps}]
    return {"multiscales": [{"version": "0.4", "axes": axes, "datasets": datasets}]}


@pytest.mark.parametrize(
    "steps",
    [
        [],
        [{"type": "translation", "translation": [0, 0, 0]}],
        [{"type": "translation", "translation": [0, 0, 0]}, {"type": "scale", "scale": [8, 8, 8]}],
        [{"type": "scale", "scale": [8, 8, 8]}, {"type": "scale", "scale": [8, 8, 8]}],
        [{"type": "scale"}],
    ],
)
def test_ome_transformations_that_break_the_standard_are_refused(steps: list[dict[str, Any]]) -> None:
    with pytest.raises(BadData):
        levels_of(image(steps), "a.zarr")


def test_ome_scale_of_the_whole_pyramid_is_applied_after_the_level() -> None:
    steps = [{"type": "scale", "scale": [2, 2, 2]}, {"type": "translation", "translation": [3, 3, 3]}]
    attributes = image(steps)
    attributes["multiscales"][0]["coordinateTransformations"] = [{"type": "scale", "scale": [4, 4, 4]}]
    level = levels_of(attributes, "a.zarr")[0]
    assert (level.voxel_size_nm, level.offset_nm) == ((8, 8, 8), (12, 12, 12))


def test_ome_axes_without_units_say_nothing_of_nm(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "0", data=np.zeros(SHAPE, np.uint8), zarr_format=2)
    zarr.open_group(tmp_path, mode="a", zarr_format=2, attributes=image([{"type": "scale", "scale": [8, 8, 8]}], None))
    with open_source(tmp_path) as volume, pytest.raises(BadData, match="voxel size"):
        volume.geometry()


def test_ome_axes_out_of_space_are_refused() -> None:
    attributes = image([{"type": "scale", "scale": [8, 8, 8]}])
    attributes["multiscales"][0]["axes"][0]["name"] = "q"
    with pytest.raises(BadData, match="axes"):
        levels_of(attributes, "a.zarr")


def test_array_and_ome_group_that_disagree_are_a_conflict(tmp_path: Path) -> None:
    zarr.create_array(
        tmp_path / "0", data=np.zeros(SHAPE, np.uint8), zarr_format=2, attributes={"resolution": [4, 4, 4]}
    )
    zarr.open_group(tmp_path, mode="a", zarr_format=2, attributes=image([{"type": "scale", "scale": [8, 8, 8]}]))
    with open_source(tmp_path) as volume, pytest.raises(BadData, match="different voxel sizes"):
        volume.geometry()
