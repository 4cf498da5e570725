"""Plans the blocks: each consists of whole blocks of watershed and is read with at least one voxel of context."""

from __future__ import annotations

from collections.abc import Iterable

from lsdflow_agglomerate.block_edges import FragmentNaming
from lsdflow_agglomerate.config import AgglomerateConfig
from lsdflow_agglomerate.super_blocks import SuperBlocks
from lsdflow_contract.errors import ConfigError
from lsdflow_contract.geometry import Geometry, Nm3, Vox3
from lsdflow_runtime.blocks import BlockPlan, block_plan

# Edge of a super-block: its graph needs about 2 GB on FIB-25 (50,000 rows of faces per million voxels).
SUPER_BLOCK_VOX = 768


def plan_blocks(
    config: AgglomerateConfig, naming: FragmentNaming, watershed_context_vox: Vox3, voxel_size_nm: Nm3
) -> BlockPlan:
    """Blocks of the region for which watershed has computed fragments.

    :raises ConfigError: a block is not a whole number of watershed's blocks, or there is no context.
    """
    shape_vox = naming.block_shape_vox
    if config.block_shape is not None:
        shape_vox = config.block_shape.to_vox(voxel_size_nm, "agglomerate.block_shape")
        check_whole_blocks(shape_vox, naming.block_shape_vox)
    return BlockPlan(naming.total, shape_vox, context_vox(config, watershed_context_vox, voxel_size_nm))


def plan_faces(config: AgglomerateConfig, naming: FragmentNaming, voxel_size_nm: Nm3) -> BlockPlan:
    """Blocks whose faces are counted (seamless fragments); the sums do not depend on their shape.

    :raises ConfigError: a block is not a whole number of voxels, or a context is set although blocks are not scored.
    """
    if config.context is not None:
        raise ConfigError(
            "seamless fragments are scored on complete faces, without context",
            where="agglomerate.context",
            found=str(config.context),
            fix="leave context out",
        )
    if config.block_shape is None:
        return BlockPlan(naming.total, naming.block_shape_vox)
    shape_vox = config.block_shape.to_vox(voxel_size_nm, "agglomerate.block_shape")
    return block_plan(naming.total, shape_vox, (0, 0, 0), "agglomerate")


def plan_super_blocks(
    config: AgglomerateConfig,
    faces: BlockPlan,
    naming: FragmentNaming,
    watershed_context_vox: Vox3,
    grid: Geometry,
) -> SuperBlocks:
    """Super-blocks of the volume: their graphs are agglomerated separately, then joined (seamless fragments).

    :raises ConfigError: a super-block is not a whole number of blocks.
    """
    edges = faces.write_shape_vox
    shape_vox = _three(max(1, SUPER_BLOCK_VOX // edge) * edge for edge in edges)
    if config.super_block is not None:
        shape_vox = config.super_block.to_vox(grid.voxel_size_nm, "agglomerate.super_block")
        if any(s < e or s % e for s, e in zip(shape_vox, edges, strict=True)):
            raise ConfigError(
                "a super-block must be made of whole blocks",
                where="agglomerate.super_block",
                wanted=f"multiples of {edges} voxels",
                found=shape_vox,
                fix="leave super_block out",
            )
    # A watershed block that a super-block cuts reads seeds beyond the cut, as far as it extends across.
    cut = (w if s % w else 1 for s, w in zip(shape_vox, naming.block_shape_vox, strict=True))
    reach_vox = _three(context + c - 1 for context, c in zip(watershed_context_vox, cut, strict=True))
    return SuperBlocks(faces, shape_vox, reach_vox, grid.shape_vox)


def check_whole_blocks(shape_vox: Vox3, watershed_shape_vox: Vox3) -> None:
    """Raise ConfigError if blocks cut a block of watershed, because the owner of an edge would be ambiguous."""
    if any(s < w or s % w for s, w in zip(shape_vox, watershed_shape_vox, strict=True)):
        raise ConfigError(
            "a block must be made of whole blocks of watershed",
            where="agglomerate.block_shape",
            wanted=f"multiples of {watershed_shape_vox} voxels",
            found=shape_vox,
            fix="leave block_shape out to use the blocks of watershed",
        )


def context_vox(config: AgglomerateConfig, watershed_context_vox: Vox3, voxel_size_nm: Nm3) -> Vox3:
    """The configured context, or that of watershed (then at least one voxel).

    :raises ConfigError: a configured context is below one voxel, so that faces between blocks would be missed.
    """
    if config.context is None:
        z, y, x = (max(1, c) for c in watershed_context_vox)
        return z, y, x
    context = config.context.to_vox(voxel_size_nm, "agglomerate.context")
    if min(context) < 1:
        raise ConfigError(
            "without context, fragments of two blocks are never seen together",
            where="agglomerate.context",
            wanted="at least 1 voxel along every axis",
            found=f"{context} voxels",
        )
    return context


def _three(values: Iterable[int]) -> Vox3:
    z, y, x = values
    return z, y, x
