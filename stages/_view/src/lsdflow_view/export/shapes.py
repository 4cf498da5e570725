"""Mesh and skeleton of one segment, from its mask: zmesh and kimimaro (both GPL, of the optional environment).

Both are in nanometers, x, y, z, as in precomputed: voxel i of an axis is between i and i + 1 times its size.
"""

from __future__ import annotations

from typing import Any

import kimimaro
import numpy as np
import numpy.typing as npt
import zmesh
from cloudvolume import Mesh, Skeleton

from lsdflow_contract.geometry import Nm3, Vox3

# Bytes for each voxel of the bounding box. Measured on real neurites: 6 to 12 for a mesh, 47 for a skeleton whose
# segment fills its box; with a margin.
MESH_BYTES_PER_VOXEL = 24
SKELETON_BYTES_PER_VOXEL = 64
# The only attribute of skeleton nodes, as precomputed describes it: distance to the surface in nm.
RADIUS = {"id": "radius", "data_type": "float32", "num_components": 1}


def mesh_of(mask: npt.NDArray[np.bool_], begin_vox: Vox3, voxel_size_nm: Nm3, error_nm: float, segment: int) -> Mesh:
    """The surface of a mask (z, y, x) whose first voxel is `begin_vox`; closed, even where the mask touches its border.

    error_nm: how far a vertex may be moved to save triangles.
    """
    size = np.array(voxel_size_nm[::-1])
    mesher = zmesh.Mesher(tuple(size))
    # One voxel of background on every side closes the mesh. (`close` of zmesh moves the mesh by a voxel.)
    mesher.mesh(np.pad(mask.astype(np.uint8), 1).T, close=False)
    simplifying: dict[str, Any] = {"reduction_factor": 100, "max_error": error_nm} if error_nm > 0 else {}
    found = mesher.get(1, normals=False, voxel_centered=True, **simplifying)
    corner = (np.array(begin_vox[::-1]) - 1) * size
    vertices = (found.vertices.astype(np.float64) + corner).astype(np.float32)
    return Mesh(vertices, found.faces, segid=segment)


def skeleton_of(mask: npt.NDArray[np.bool_], begin_vox: Vox3, voxel_size_nm: Nm3, segment: int) -> Skeleton:
    """Centre lines of a mask, each node in the centre of one of its voxels, with the distance to the surface (radius).

    The skeleton has no node if the mask is too small for a line.
    """
    size = np.array(voxel_size_nm[::-1])
    found = kimimaro.skeletonize(
        np.asfortranarray(mask.astype(np.uint8).T),
        anisotropy=tuple(size),
        dust_threshold=0,
        fix_borders=False,
        progress=False,
        parallel=1,
    )
    line = found.get(1, Skeleton())
    corner = (np.array(begin_vox[::-1]) + 0.5) * size
    vertices = (line.vertices.astype(np.float64) + corner).astype(np.float32)
    return Skeleton(
        vertices,
        line.edges,
        radii=line.radii,
        segid=segment,
        space="physical",
        extra_attributes=[RADIUS],
        default_attributes=False,
    )
