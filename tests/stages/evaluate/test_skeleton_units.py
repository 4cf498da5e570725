"""Traced skeletons in nm, micrometres or voxels: the right place, or both extents and the setting that helps."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from lsdflow_contract.errors import BadData
from lsdflow_contract.geometry import Geometry
from lsdflow_evaluate.scores.run_length import Skeletons
from lsdflow_evaluate.skeletons.units import Unit, in_nm

GRID = Geometry((40.0, 8.0, 8.0), (0.0, 0.0, 0.0), (100, 500, 500))
AWAY = Geometry((40.0, 8.0, 8.0), (4000.0, 0.0, -800.0), (100, 500, 500))


def line(grid: Geometry, unit: str, leaving: float = 1.0) -> tuple[Skeletons, np.ndarray]:
    """A line through the volume, or out of it, in a unit, and its positions in nm."""
    voxels = np.linspace(0.1, leaving, 20)[:, np.newaxis] * np.array([99, 499, 499])
    voxels = np.floor(voxels)
    nm = (voxels + 0.5) * np.array(grid.voxel_size_nm) + np.array(grid.offset_nm)
    written = {"nm": nm, "um": nm / 1000, "vox": voxels}[unit]
    edges = np.array(list(pairwise(range(20))))
    return Skeletons(written, np.ones(20, np.uint64), edges), nm


@pytest.mark.parametrize("grid", [GRID, AWAY])
@pytest.mark.parametrize("unit", ["nm", "um", "vox"])
def test_skeletons_of_a_given_unit_lie_where_they_were_traced(grid: Geometry, unit: Unit) -> None:
    written, nm = line(grid, unit)
    assert np.allclose(in_nm(written, unit, grid, "a.swc").positions_nm, nm)
    if unit == "nm":
        assert np.allclose(in_nm(written, None, grid, "a.swc").positions_nm, nm)


@pytest.mark.parametrize("grid", [GRID, AWAY])
@pytest.mark.parametrize("leaving", [1.0, 1.5])
@pytest.mark.parametrize("unit", ["um", "vox"])
def test_another_unit_than_nm_is_refused_with_both_extents_and_the_setting(
    grid: Geometry, leaving: float, unit: str
) -> None:
    written, _ = line(grid, unit, leaving)
    with pytest.raises(BadData) as caught:
        in_nm(written, None, grid, "a.swc")
    error = caught.value
    assert f'evaluate.skeleton_unit = "{unit}"' in error.fix
    assert "a.swc" in error.where
    assert f"{grid.position_nm(grid.shape_vox)[0]:g}" in error.wanted
    assert f"{written.positions_nm[:, 0].max():g}" in error.found


@pytest.mark.parametrize(("given", "is_in"), [("um", "nm"), ("nm", "um"), ("vox", "nm"), (None, "elsewhere")])
def test_skeletons_outside_the_volume_are_refused_and_the_advice_can_be_followed(
    given: Unit | None, is_in: str
) -> None:
    written, _ = line(AWAY, "nm" if is_in == "elsewhere" else is_in)
    if is_in == "elsewhere":
        written = Skeletons(written.positions_nm + 1e9, written.neurons, written.edges)
    with pytest.raises(BadData) as caught:
        in_nm(written, given, AWAY, "a.swc")
    fix = caught.value.fix
    if is_in == "elsewhere":
        assert "export them in the coordinates of the volume" in fix
    else:
        assert f'evaluate.skeleton_unit = "{is_in}" (100%' in fix
    assert f'"{given or "nm"}" if they are' not in fix
