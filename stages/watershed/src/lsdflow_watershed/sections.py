"""Bad sections (folds, knife marks, missing slices): their affinities are not to be believed.

    z     41   42   43   44   45            replace_sections = [43, 44]
    zero  aa   aa   ..   ..   bb            no fragments there: the cell falls into two parts
    copy  aa   aa   aa   bb   bb            fragments of the nearest good section (lower z on ties)

z counts sections of the target volume from 0, so a section means the same in every block.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Filling = Literal["zero", "copy"]


def replace_sections(
    fragments: NDArray[np.uint32], begin_z: int, bad_z: Collection[int], filling: Filling
) -> NDArray[np.uint32]:
    """Clear the fragments of bad sections, or copy those of the nearest good section in this array.

    :param fragments: (z, y, x) of which the first section is section `begin_z` of the volume.
    :param bad_z: sections of the volume; those outside this array are ignored.
    :returns: a new array; all 0 in a bad section without any good one to copy from.
    """
    bad = np.zeros(fragments.shape[0], bool)
    bad[[z - begin_z for z in bad_z if 0 <= z - begin_z < fragments.shape[0]]] = True
    good = np.flatnonzero(~bad)
    replaced = fragments.copy()
    for z in np.flatnonzero(bad):
        if filling == "copy" and good.size:
            replaced[z] = fragments[good[np.argmin(np.abs(good - z))]]
        else:
            replaced[z] = 0
    return replaced
