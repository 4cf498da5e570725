"""What a segmentation is described by is what the network was trained on: its descriptors are the targets."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba")
pytest.importorskip("scipy")

from lsdflow_contract.geometry import Box, Nm3
from lsdflow_contract.testing import voronoi_labels
from lsdflow_training.targets.lsd import context_vox, local_shape_descriptors

DESCRIPTORS = Path(__file__).resolve().parents[2] / "stages" / "_descriptors" / "src"


@pytest.mark.parametrize(("size", "sigma"), [((10.0, 10.0, 10.0), 30.0), ((20.0, 9.5, 9.5), 40.0)])
def test_descriptors_of_a_segmentation_are_the_training_targets(
    monkeypatch: pytest.MonkeyPatch, size: Nm3, sigma: float
) -> None:
    monkeypatch.setattr(sys, "path", [str(DESCRIPTORS), *sys.path])
    from lsdflow_descriptors.label_descriptors import descriptors_of, radius_vox

    labels = voronoi_labels((14, 18, 20), 7, 4)
    labels[:, 5:7] = 0
    inner = Box((3, 4, 2), (9, 11, 15))
    found = descriptors_of(labels, inner, (sigma,) * 3, size)
    assert np.abs(found - local_shape_descriptors(labels, sigma, size, inner)).max() < 1e-4
    assert radius_vox((sigma,) * 3, size) == context_vox(sigma, size)
