"""A small synthetic EM volume with its true labels, for trying the pipeline without own data.

The tissue is grown first (tissue.py), then its grey values are drawn (image.py). The result depends only on the seed:
the same seed gives the same bytes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lsdflow_launch.synthetic.image import render
from lsdflow_launch.synthetic.tissue import grow_tissue

SMALLEST_SHAPE_VOX = 16


def synthetic_em(
    shape_vox: tuple[int, int, int], voxel_size_nm: tuple[float, float, float], seed: int
) -> tuple[NDArray[np.uint8], NDArray[np.uint64]]:
    """Return a densely packed block of neuropil as in a FIB-SEM image, with its labels.

    Returns raw u8 (z,y,x), dark membranes on grey cytoplasm, and labels u64 (z,y,x): 1..n without gaps and without
    background, each label one 6-connected neurite; membranes belong to the neurites on either side.
    Raises ValueError for a block of fewer than 16 voxels along an axis or a voxel size that is not positive.
    """
    if len(shape_vox) != 3 or min(shape_vox) < SMALLEST_SHAPE_VOX:
        raise ValueError(f"shape_vox: found {shape_vox}, wanted three numbers of at least {SMALLEST_SHAPE_VOX}")
    if len(voxel_size_nm) != 3 or not min(voxel_size_nm) > 0:
        raise ValueError(f"voxel_size_nm: found {voxel_size_nm}, wanted three positive lengths in nm")
    growth, drawing = np.random.default_rng(seed).spawn(2)
    tissue = grow_tissue(shape_vox, voxel_size_nm, growth)
    return render(tissue, voxel_size_nm, drawing), tissue.labels
