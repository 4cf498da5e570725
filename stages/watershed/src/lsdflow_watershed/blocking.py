"""Plans the blocks, and checks that ids and memory allow them."""

from __future__ import annotations

import math
from collections.abc import Collection

from lsdflow_contract.errors import ConfigError
from lsdflow_contract.geometry import Box, Nm3, Vox3
from lsdflow_runtime.blocks import BlockPlan, block_plan
from lsdflow_watershed.config import WatershedConfig
from lsdflow_watershed.flood import LARGEST_VOLUME_VOX
from lsdflow_watershed.ids import check_id_range, check_voxel_range

# In shortest voxel edges. Seamless fragments match across faces within the context: with 48 their number is within 1 %
# of a run in one block on FIB-25, with 32 within 6 % (benchmarks/block_invariance.py).
DEFAULT_CONTEXT_EDGES = {"blocks": 32, "seamless": 48}


def plan_blocks(config: WatershedConfig, total: Box, voxel_size_nm: Nm3) -> BlockPlan:
    """Blocks of the region `total`; checks ids and sizes.

    :raises ConfigError: lengths are not whole voxels, a block is too large, or ids would not fit.
    """
    shape_vox = config.block_shape.to_vox(voxel_size_nm, "watershed.block_shape")
    plan = block_plan(total, shape_vox, context_vox(config, voxel_size_nm), "watershed")
    if config.id_mode == "blocks":
        check_id_range(len(plan), math.prod(shape_vox))
    rim_vox = 2  # of the flood
    read_vox = math.prod(
        s + 2 * c + a + rim_vox for s, c, a in zip(shape_vox, plan.context_vox, voxels_after(config), strict=True)
    )
    if read_vox > LARGEST_VOLUME_VOX:
        raise ConfigError(
            "a block is too large",
            where="watershed.block_shape",
            wanted=f"at most {LARGEST_VOLUME_VOX} voxels with context",
            found=read_vox,
        )
    return plan


def check_seed_ids(config: WatershedConfig, total: Box, grid_shape_vox: Vox3) -> None:
    """Raise ConfigError for a target whose voxel positions cannot be ids of seeds (mode `seamless`).

    :raises ConfigError: too many voxels, or `total` is not inside the target.
    """
    if config.id_mode == "seamless":
        check_voxel_range(total, grid_shape_vox)


def context_vox(config: WatershedConfig, voxel_size_nm: Nm3) -> Vox3:
    """The configured context, or the default number of shortest voxel edges along every axis (rounded up)."""
    if config.context is not None:
        return config.context.to_vox(voxel_size_nm, "watershed.context")
    reach_nm = DEFAULT_CONTEXT_EDGES[config.id_mode] * min(voxel_size_nm)
    z, y, x = (math.ceil(reach_nm / edge - 1e-6) for edge in voxel_size_nm)
    return z, y, x


def voxels_after(config: WatershedConfig) -> Vox3:
    """What a block reads at its end beyond its context: affinities to the voxels after those of the context."""
    if config.boundary_rule == "distance":
        return 0, 0, 0
    return 0 if config.fragments_in_xy else 1, 1, 1


def check_sections(bad_z: Collection[int], section_count: int) -> None:
    """Raise ConfigError for bad sections outside the target, whose indices are probably those of another volume.

    :raises ConfigError: names them.
    """
    beyond = sorted(z for z in bad_z if z >= section_count)
    if beyond:
        raise ConfigError(
            "sections to replace that the target does not have",
            where="watershed.replace_sections",
            wanted=f"0 to {section_count - 1}, counted on the target volume",
            found=beyond,
        )
