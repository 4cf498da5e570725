"""Checks of the settings before fragments exist: with those of watershed and predict, and the target's voxels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lsdflow_agglomerate.config import AgglomerateConfig
from lsdflow_agglomerate.merge_functions import WATERZ_NAMES
from lsdflow_contract.errors import ConfigError, StageError, problems_of
from lsdflow_contract.geometry import Box, Geometry, Lengths
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_runtime.blocks import block_plan
from lsdflow_runtime.io.target import knows_target, target_grid

ID_MODE = "seamless"


def problems_before_fragments(
    layout: ExperimentLayout, tables: Mapping[str, Any], config: AgglomerateConfig, *, real: bool
) -> list[StageError]:
    """Errors for settings that do not match; once watershed has finished, the settings in its manifest are used.

    tables: of the experiment file. real: the layout has results, not descriptions.
    """
    seamless = tables.get("watershed", {}).get("id_mode", ID_MODE) == ID_MODE
    stored = tables.get("predict", {}).get("store_lsds")
    predicted = real and layout.manifest("predict").exists()
    checks = [lambda: _check_id_mode(config, seamless=seamless)]
    if not stored and not predicted:
        checks.append(lambda: _check_lsds(config))
    if knows_target(layout):
        checks.append(lambda: _check_lengths(target_grid(layout), config))
    return problems_of(checks)


def _check_id_mode(config: AgglomerateConfig, *, seamless: bool) -> None:
    name = "context" if seamless else "super_block"
    given: Lengths | None = getattr(config, name)
    if not seamless:
        check_block_merge_functions(config)
    if given is None:
        return
    how = "on complete faces, without context" if seamless else "in blocks, without super-blocks"
    raise ConfigError(
        f"fragments of this id_mode are scored {how}",
        where=f"agglomerate.{name}",
        wanted=f'watershed.id_mode = "{"blocks" if seamless else "seamless"}", or no {name}',
        found=str(given),
        fix=f"leave {name} out",
    )


def check_block_merge_functions(config: AgglomerateConfig) -> None:
    """Raise ConfigError (78) for a merge function that waterz lacks, because waterz scores the fragments of blocks."""
    unknown = [name for name in config.merge_functions if name not in WATERZ_NAMES]
    if unknown:
        raise ConfigError(
            "this merge function is scored on complete faces only",
            where="agglomerate.merge_functions",
            wanted=", ".join(WATERZ_NAMES),
            found=", ".join(unknown),
            fix='choose another one, or set watershed.id_mode = "seamless"',
        )


def _check_lsds(config: AgglomerateConfig) -> None:
    if config.scored_from == "lsds":
        raise ConfigError(
            "predict does not store the LSDs that the edges are to be scored from",
            where="agglomerate.scored_from",
            wanted="predict.store_lsds = true",
            found='scored_from = "lsds"',
            fix='set predict.store_lsds = true, or scored_from = "affinities"',
        )


def _check_lengths(grid: Geometry, config: AgglomerateConfig) -> None:
    for name in ("block_shape", "super_block", "context"):
        given: Lengths | None = getattr(config, name)
        if given is None:
            continue
        shape = given.to_vox(grid.voxel_size_nm, f"agglomerate.{name}")
        if name != "context":
            block_plan(Box((0, 0, 0), grid.shape_vox), shape, (0, 0, 0), "agglomerate")
