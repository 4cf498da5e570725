"""Opens the affinities of predict and the fragments of watershed, and checks that they belong together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lsdflow_agglomerate.block_edges import FragmentNaming
from lsdflow_agglomerate.config import AgglomerateConfig
from lsdflow_agglomerate.lsd_affinities import LsdAffinities
from lsdflow_contract.arrays import AFFS, FRAGMENTS, LSDS, ArraySpec
from lsdflow_contract.errors import BadData, ContractMismatch
from lsdflow_contract.geometry import Box, Geometry, Vox3
from lsdflow_contract.hashing import hash_of
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import Manifest, read_manifest
from lsdflow_contract.metadata import read_neighborhood
from lsdflow_descriptors.stored_lsds import lsd_sigma_nm, stored_lsds
from lsdflow_runtime.io.target import target_grid
from lsdflow_runtime.io.volumes import Volume, open_volume


@dataclass(frozen=True)
class AgglomerateInputs:
    """Open inputs, addressed by voxels of the target grid; the scheme of fragment ids; identities.

    `affs`: predicted, or computed from predicted LSDs. `seamless`: fragments cross block faces; otherwise each is
    inside one block.
    """

    grid: Geometry
    affs: Volume | LsdAffinities
    fragments: Volume
    naming: FragmentNaming
    watershed_context_vox: Vox3
    identities: dict[str, str]
    seamless: bool = False


def open_inputs(layout: ExperimentLayout, config: AgglomerateConfig) -> AgglomerateInputs:
    """Open the inputs of the stage.

    :raises MissingInput: predict or watershed has not finished, or an array is missing.
    :raises ConfigError: edges are to be scored from LSDs of unknown sigma.
    :raises ContractMismatch: the fragments are of other affinities, or have an unknown scheme of ids.
    :raises BadData: an array does not have the form of the contract.
    """
    predict = read_manifest(layout, "predict")
    watershed = read_manifest(layout, "watershed")
    check_lineage(predict, watershed, layout.manifest("watershed"))
    grid = target_grid(layout)
    fragments = _open(*watershed.output_array(layout, "fragments"), FRAGMENTS, grid)
    if fragments.provenance.get("key") != watershed.key:
        raise ContractMismatch(
            "the fragments are not those that watershed finished",
            where=fragments.where,
            wanted=f"key {watershed.key[:12]}",
            found=f"key {str(fragments.provenance.get('key', 'none'))[:12]}",
            fix="run watershed again",
        )
    resolved = watershed.config["resolved"]
    identities = {"predict": predict.identity, "watershed": watershed.identity}
    affs: Volume | LsdAffinities = _open(*predict.output_array(layout, "affs"), AFFS, grid)
    if config.scored_from == "lsds":
        affs = _made_of_lsds(layout, config, predict, fragments, grid)
        identities["lsds"] = hash_of({"predict": predict.identity, "sigma_nm": list(affs.sigma_nm)})
    context_vox, seamless = _vox3(resolved["context_vox"]), watershed.config["id_mode"] == "seamless"
    return AgglomerateInputs(grid, affs, fragments, _naming(resolved), context_vox, identities, seamless)


def _made_of_lsds(
    layout: ExperimentLayout, config: AgglomerateConfig, predict: Manifest, fragments: Volume, grid: Geometry
) -> LsdAffinities:
    """Affinities from stored LSDs. MissingInput (66) if there are no LSDs, ConfigError (78) if sigma is unknown."""
    given = config.lsd_sigma.to_nm(grid.voxel_size_nm) if config.lsd_sigma else None
    sigma_nm = lsd_sigma_nm(predict, given, "agglomerate.lsd_sigma")
    return LsdAffinities(fragments, _open(*stored_lsds(layout, predict), LSDS, grid), sigma_nm, grid.voxel_size_nm)


def check_lineage(predict: Manifest, watershed: Manifest, where: Path) -> None:
    """Raise ContractMismatch for fragments of other affinities or with an unknown scheme of ids."""
    if watershed.inputs.get("predict") != predict.identity:
        raise ContractMismatch(
            "the fragments were made from other affinities",
            where=where,
            wanted=f"affinities {predict.identity[:12]}",
            found=f"affinities {watershed.inputs.get('predict', 'none')[:12]}",
            fix="run watershed again",
        )
    id_mode = watershed.config.get("id_mode")
    if id_mode not in ("blocks", "seamless") or "resolved" not in watershed.config:
        raise ContractMismatch(
            "this version cannot read how the fragments are named",
            where=where,
            wanted='id_mode = "blocks" or "seamless"',
            found=f"id_mode = {id_mode!r}",
        )


def _open(container: Path, dataset: str, spec: ArraySpec, grid: Geometry) -> Volume:
    volume = open_volume(container, dataset, grid)
    if spec is AFFS:
        # The three nearest come first; only these are used here.
        read_neighborhood(dict(volume.array.attrs), volume.channels, volume.dtype.name, volume.where)
    elif volume.channels != spec.channels or volume.dtype.name != spec.dtype:
        raise BadData(
            f"this is not {spec.dataset}",
            where=volume.where,
            wanted=f"{spec.dtype}, {spec.channels} channels",
            found=f"{volume.dtype}, {volume.channels} channels",
        )
    return volume


def _naming(resolved: dict[str, Any]) -> FragmentNaming:
    total = Box(_vox3(resolved["total_begin_vox"]), _vox3(resolved["total_shape_vox"]))
    return FragmentNaming(total, _vox3(resolved["block_shape_vox"]), int(resolved["voxels_per_block"]))


def _vox3(values: list[int]) -> Vox3:
    z, y, x = values
    return int(z), int(y), int(x)
