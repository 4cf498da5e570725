"""Which networks predict uses: their bundles are chosen, and checked against one another and against the target."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from lsdflow_contract.arrays import AFFINITY_NEIGHBORHOOD, is_neighborhood
from lsdflow_contract.checkpoint import (
    OUTPUTS,
    WEIGHTS,
    Bundle,
    Kind,
    Mode,
    bundle_folder,
    bundle_iterations,
    outputs_of,
    read_best,
    read_bundle,
)
from lsdflow_contract.errors import BadData, ContractMismatch, MissingInput
from lsdflow_contract.geometry import Nm3
from lsdflow_contract.hashing import hash_of_file
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_predict.config import PredictConfig

LSD_STAGE = "train-lsd"
AFFINITY_STAGES = ("train-acrlsd", "train-lsd")


@dataclass(frozen=True)
class ChosenBundle:
    """A bundle and its folder."""

    folder: Path
    bundle: Bundle


@dataclass(frozen=True)
class Networks:
    """The network that gives affinities and, for mode acrlsd, the LSD network before it.

    accepted: the mismatches that the settings allow, as text.
    """

    affinities: ChosenBundle
    lsds: ChosenBundle | None
    accepted: tuple[str, ...] = ()

    @property
    def chosen(self) -> list[ChosenBundle]:
        """The bundles: of the affinities and, if there is one, of the LSDs."""
        return [self.affinities, *([self.lsds] if self.lsds else [])]

    @property
    def weights(self) -> dict[str, str]:
        """sha256 of the weights, by role."""
        roles = ("network", "lsd_network")
        return {role: found.bundle.weights_sha256 for role, found in zip(roles, self.chosen, strict=False)}


def choose_networks(
    layout: ExperimentLayout,
    mode: Mode,
    config: PredictConfig,
    voxel_size_nm: Nm3,
    resolve: Callable[[str], Path],
) -> Networks:
    """The bundles to predict with, for a target of `voxel_size_nm`. Weights are not read.

    resolve: gives the folder of a bundle that the options name by a path.
    Raises MissingInput (66: no bundle), BadData (65: damaged), ContractMismatch (76: wrong kind of network, another
    LSD network than trained with, another voxel size).
    """
    stage = _affinity_stage(layout, mode)
    affinities = _read_kind(_chosen_folder(layout, stage, config.checkpoint, resolve), mode)
    lsds = None
    if mode == "acrlsd" and config.lsd_checkpoint == "trained_with":
        lsds = _lsds_trained_with(layout.checkpoints(LSD_STAGE), affinities.bundle.lsd_bundle_sha256)
    elif mode == "acrlsd":
        lsds = _read_kind(_chosen_folder(layout, LSD_STAGE, config.lsd_checkpoint, resolve), "lsd")
    accepted = _check_lsd_identity(affinities, lsds, config)
    networks = Networks(affinities, lsds)
    for found in networks.chosen:
        accepted += _check_voxel_size(found, voxel_size_nm, config)
    return replace(networks, accepted=tuple(accepted))


def check_weights(networks: Networks) -> None:
    """BadData (65) unless the weights on disk are those the bundles describe; MissingInput (66) if they are absent."""
    for found in networks.chosen:
        if found.bundle.is_planned:
            continue
        path = found.folder / WEIGHTS
        if not path.exists():
            raise MissingInput("the bundle has no weights", where=path)
        sha256 = hash_of_file(path)
        if sha256 != found.bundle.weights_sha256:
            raise BadData(
                "the weights are damaged or were changed",
                where=path,
                wanted=f"sha256 {found.bundle.weights_sha256}",
                found=f"sha256 {sha256}",
                fix="choose another predict.checkpoint, or copy the bundle again",
            )


def _affinity_stage(layout: ExperimentLayout, mode: Mode) -> str:
    """Mode acrlsd comes from train-acrlsd; a single network from whichever training stage has one."""
    if mode != "acrlsd":
        for stage in AFFINITY_STAGES:
            checkpoints = layout.checkpoints(stage)
            last = bundle_iterations(checkpoints)[-1:]
            if any(read_bundle(bundle_folder(checkpoints, iteration)).kind == mode for iteration in last):
                return stage
    return AFFINITY_STAGES[0]


def _chosen_folder(layout: ExperimentLayout, stage: str, wanted: int | str, resolve: Callable[[str], Path]) -> Path:
    """The folder of the bundle `wanted` ("best", an iteration or a path) of a training stage."""
    checkpoints = layout.checkpoints(stage)
    if wanted == "best":
        best = read_best(layout.best_checkpoint(stage))
        return bundle_folder(checkpoints, best.iteration)
    if isinstance(wanted, str) and not wanted.isdigit():
        return resolve(wanted)
    folder = bundle_folder(checkpoints, int(wanted))
    if not folder.is_dir():
        iterations = ", ".join(map(str, bundle_iterations(checkpoints))) or "none"
        raise MissingInput(
            "no checkpoint of this iteration",
            where=checkpoints,
            wanted=wanted,
            found=f"iterations: {iterations}",
            fix=f"choose one of these: predict.{'lsd_checkpoint' if stage == LSD_STAGE else 'checkpoint'}",
        )
    return folder


def _lsds_trained_with(checkpoints: Path, wanted: str | None) -> ChosenBundle:
    """The LSD bundle with weights of this sha256."""
    others: list[str] = []
    for iteration in bundle_iterations(checkpoints):
        folder = bundle_folder(checkpoints, iteration)
        found = read_bundle(folder)
        if found.weights_sha256 == wanted:
            return _require_kind(ChosenBundle(folder, found), "lsd")
        others.append(f"{iteration}: {found.weights_sha256[:12]}")
    if not others:
        raise MissingInput("no LSD checkpoint", where=checkpoints, fix="run train-lsd, or give predict.lsd_checkpoint")
    raise ContractMismatch(
        "the LSD network that the affinity network was trained with is missing",
        where=checkpoints,
        wanted=f"weights sha256 {wanted}",
        found="; ".join(others),
        fix="give its folder as predict.lsd_checkpoint, or train the affinity network again",
    )


def _read_kind(folder: Path, wanted: Kind) -> ChosenBundle:
    return _require_kind(ChosenBundle(folder, read_bundle(folder)), wanted)


def _require_kind(found: ChosenBundle, wanted: Kind) -> ChosenBundle:
    bundle = found.bundle
    if bundle.kind != wanted:
        raise ContractMismatch(
            "the checkpoint holds another kind of network",
            where=found.folder,
            wanted=f"{wanted}: gives {OUTPUTS[wanted]}",
            found=f"{bundle.kind} from {bundle.writer.stage}: {bundle.unet.in_channels} in, gives {bundle.outputs}",
            fix=f"correct predict.{'lsd_checkpoint' if wanted == 'lsd' else 'checkpoint'} or experiment.mode",
        )
    inputs = 1 + (10 if wanted == "acrlsd" else 0)
    outputs = outputs_of(wanted, bundle.neighborhood or AFFINITY_NEIGHBORHOOD)
    if bundle.outputs != outputs or bundle.unet.in_channels != inputs:
        raise BadData(
            "the bundle contradicts itself",
            where=found.folder,
            wanted=f"kind {wanted}: {inputs} channels in, gives {outputs}",
            found=f"{bundle.unet.in_channels} channels in, gives {bundle.outputs}",
        )
    if bundle.neighborhood and not is_neighborhood(bundle.neighborhood):
        raise BadData(
            "the bundle does not list the three nearest affinities first, and each offset once",
            where=found.folder,
            wanted=f"{[list(offset) for offset in AFFINITY_NEIGHBORHOOD]}, then others, each once",
            found=[list(offset) for offset in bundle.neighborhood],
        )
    return found


def _check_lsd_identity(affinities: ChosenBundle, lsds: ChosenBundle | None, config: PredictConfig) -> list[str]:
    """What is accepted although it differs."""
    if lsds is None or affinities.bundle.lsd_bundle_sha256 == lsds.bundle.weights_sha256:
        return []
    wanted, found = affinities.bundle.lsd_bundle_sha256, lsds.bundle.weights_sha256
    if config.allow_lsd_mismatch:
        return [f"LSD network {found} instead of {wanted}"]
    raise ContractMismatch(
        "the LSD network is not the one the affinity network was trained with",
        where=lsds.folder,
        wanted=f"weights sha256 {wanted}",
        found=f"weights sha256 {found}",
        fix='predict.lsd_checkpoint = "trained_with", or predict.allow_lsd_mismatch = true',
    )


def _check_voxel_size(found: ChosenBundle, target_nm: Nm3, config: PredictConfig) -> list[str]:
    """What is accepted although it differs."""
    trained_nm = found.bundle.voxel_size_nm
    # Voxel sizes that differ by rounding are the same.
    if all(math.isclose(a, b, rel_tol=1e-6) for a, b in zip(trained_nm, target_nm, strict=True)):
        return []
    if config.allow_voxel_size_mismatch:
        return [f"{found.bundle.kind} network trained at {trained_nm} nm, target {target_nm} nm"]
    planned = found.bundle.is_planned
    raise ContractMismatch(
        f"the target has another voxel size than the {'training volumes' if planned else 'network was trained with'}",
        where="prepare.target.voxel_size" if planned else found.folder,
        wanted=f"{trained_nm} nm (z, y, x)",
        found=f"target: {target_nm} nm",
        fix="take a network trained at the voxel size of the target, resample the target with a tool of yours before "
        "prepare, or predict.allow_voxel_size_mismatch = true",
    )
