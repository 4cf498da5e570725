"""What predict reads: the target's raw and mask, and the networks with their tiles and blocks.

It is checked before any block is computed. Only descriptions are read here, no voxels and no weights, and torch, which
takes seconds to load, is not needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lsdflow_contract.arrays import RAW
from lsdflow_contract.checkpoint import Mode
from lsdflow_contract.errors import BadData, ConfigError, MissingInput
from lsdflow_contract.geometry import Geometry, region_box
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import read_manifest
from lsdflow_predict.checkpoints import Networks, choose_networks
from lsdflow_predict.config import PredictConfig
from lsdflow_predict.tiling import TiledNetwork, tile_networks
from lsdflow_runtime.io.volumes import Volume, open_volume


@dataclass(frozen=True)
class Inputs:
    """What `run`, `plan` and every worker must agree on.

    identities: of everything the result depends on: prepare's manifest, and the weights of the networks.
    lsds: the LSD network before the affinity network; None where one network gives everything.
    """

    raw: Volume
    identities: dict[str, str]
    networks: Networks
    affinities: TiledNetwork
    lsds: TiledNetwork | None

    @property
    def tiled(self) -> list[TiledNetwork]:
        """The networks: that of the affinities and, if there is one, that of the LSDs."""
        return [self.affinities, *([self.lsds] if self.lsds else [])]


def open_inputs(layout: ExperimentLayout, mode: Mode, config: PredictConfig, resolve: Callable[[str], Path]) -> Inputs:
    """Open the target and read the descriptions of the networks; `resolve` finds the paths of `config`.

    Raises MissingInput (66), BadData (65), ContractMismatch (76) or ConfigError (78) for what cannot be used.
    """
    raw = open_raw(layout.target_volume)
    voxel_size_nm = raw.geometry.voxel_size_nm
    networks = choose_networks(layout, mode, config, voxel_size_nm, resolve)
    region = region_box(config.roi, voxel_size_nm, raw.box, "predict.roi")
    check_mode(mode, config)
    identities = {"prepare": read_manifest(layout, "prepare").identity, **networks.weights}
    affinities, lsds = tile_networks(networks, config, region, voxel_size_nm)
    return Inputs(raw, identities, networks, affinities, lsds)


def open_raw(container: Path) -> Volume:
    """The target's raw. MissingInput (66) if it is absent, BadData (65) if it is not u8 (z, y, x)."""
    raw = open_volume(container, RAW.dataset)
    if raw.dtype != RAW.dtype or raw.channels:
        raise BadData(
            "raw has another type", where=raw.where, wanted="uint8 (z, y, x)", found=f"{raw.dtype}, {raw.array.shape}"
        )
    return raw


def open_mask(container: Path, dataset: str | None, grid: Geometry) -> Volume | None:
    """The mask (z, y, x) beside the target's raw, on the `grid` of raw; None if no dataset is configured.

    Raises MissingInput (66) if it is absent, BadData (65) if it does not hold unsigned integers.
    """
    if dataset is None:
        return None
    try:
        mask = open_volume(container, dataset, grid)
    except MissingInput as error:
        error.fix = f"correct predict.mask; {error.fix}"
        raise
    if mask.dtype.kind not in "ub" or mask.channels:
        raise BadData(
            "the mask has another type", where=mask.where, wanted="unsigned integers (z, y, x)", found=mask.dtype
        )
    return mask


def check_mode(mode: Mode, config: PredictConfig) -> None:
    """ConfigError (78) for options that the networks of this mode cannot satisfy."""
    if mode == "affinities" and config.store_lsds:
        raise ConfigError("this network gives no LSDs", where="predict.store_lsds", found=f"mode {mode}")
