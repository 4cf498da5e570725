"""Which fragments touch: pairs of labels that share at least one voxel face."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lsdflow_agglomerate.face_pairs import find_faces


def touching_pairs(labels: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """All pairs of labels that share a voxel face (6 neighbours); label 0 touches nothing.

    :param labels: (z, y, x), below 2^63.
    :returns: u, v (N,) with u < v, each pair once, ascending by (u, v).
    """
    faces = find_faces(np.zeros((3, *labels.shape), np.uint8), labels, (0, 0, 0))
    order = np.lexsort((faces.v, faces.u))
    return faces.u[order].astype(np.int64), faces.v[order].astype(np.int64)
