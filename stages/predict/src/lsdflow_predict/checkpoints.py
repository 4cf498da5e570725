"""Which bundles predict uses: chosen, checked against one another and against the target, before any work."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from lsdflow_contract.arrays import AFFINITY_NEIGHBORHOOD, is_neighborhood
from lsdflow_contract.checkpoint import (
    WEIGHTS,
    Bundle,
    Kind,
    Mode,
    bundle_folder,
    bundle_iterations,
    read_best,
    read_bundle,
)
from lsdflow_contract.errors import BadData, ContractMismatch, MissingInput
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.geometry import Nm3
from lsdflow_contract.hashing import hash_of_file
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_predict.config import PredictConfig

LSD_STAGE = "train-lsd"
AFFINITY_STAGES = ("train-acrlsd", "train-lsd")
_OUTPUTS: dict[str, dict[str, int]] = {
    "lsd": {"lsds": 10},
    "acrlsd": {"affs": 3},
    "mtlsd": {"lsds": 10, "affs": 3},
    "affinities": {"affs": 3},
}


@dataclass(frozen=True)
class BundleAt:
    """A bundle and the folder it lies in."""

    folder: Path
    bundle: Bundle


@dataclass(frozen=True)
class Networks:
    """The network that gives affinities and, for mode acrlsd, the LSD network before it."""

    affinities: BundleAt
    lsds: BundleAt | None
    accepted: tuple[str, ...] = ()

    @property
    def weights(self) -> dict[str, str]:
        """sha256 of the weights, by role."""
        found = {"network": self.affinities.bundle.weights_sha256}
        return found if self.lsds is None else {**found, "lsd_network": self.lsds.bundle.weights_sha256}


def choose_networks(experiment: Experiment, config: PredictConfig, voxel_size_nm: Nm3) -> Networks:
    """The bundles to predict with, for a target of `voxel_size_nm`.

    Raises MissingInput (66: none there), BadData (65: damaged), ContractMismatch (76: wrong kind of network, another
    LSD network than trained with, another voxel size).
    """
    mode = experiment.common.mode
    affinities = _affinity_bundle(experiment, config, mode)
    lsds = _lsd_bundle(experiment, config, affinities) if mode == "acrlsd" else None
    accepted = [*_check_lsd_identity(affinities, lsds, config)]
    for found in (affinities, *([lsds] if lsds else [])):
        accepted += _check_voxel_size(found, voxel_size_nm, config)
    return Networks(affinities, lsds, tuple(accepted))


def check_weights(networks: Networks) -> None:
    """BadData (65) unless the weights on disk are those the bundles describe; MissingInput (66) if they are gone."""
    for found in (networks.affinities, *([networks.lsds] if networks.lsds else [])):
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


def _affinity_bundle(experiment: Experiment, config: PredictConfig, mode: Mode) -> BundleAt:
    folder = _chosen_folder(experiment, config.checkpoint, _affinity_stage(experiment.layout, mode))
    return _require_kind(BundleAt(folder, read_bundle(folder)), mode)


def _affinity_stage(layout: ExperimentLayout, mode: Mode) -> str:
    """Mode acrlsd comes from train-acrlsd; a single network from whichever training stage has one."""
    if mode == "acrlsd":
        return AFFINITY_STAGES[0]
    trained = [stage for stage in AFFINITY_STAGES if mode in _kinds(layout, stage)]
    return trained[0] if trained else AFFINITY_STAGES[0]


def _kinds(layout: ExperimentLayout, stage: str) -> set[str]:
    checkpoints = layout.checkpoints(stage)
    last = bundle_iterations(checkpoints)[-1:]
    return {read_bundle(bundle_folder(checkpoints, iteration)).kind for iteration in last}


def _chosen_folder(experiment: Experiment, wanted: int | str, stage: str) -> Path:
    checkpoints = experiment.layout.checkpoints(stage)
    if wanted == "best":
        best = read_best(experiment.layout.best_checkpoint(stage))
        return bundle_folder(checkpoints, best.iteration)
    if isinstance(wanted, str) and not wanted.isdigit():
        return experiment.resolve(wanted)
    folder = bundle_folder(checkpoints, int(wanted))
    if not folder.is_dir():
        there = ", ".join(map(str, bundle_iterations(checkpoints))) or "none"
        raise MissingInput(
            "no checkpoint of this iteration",
            where=checkpoints,
            wanted=wanted,
            found=f"iterations: {there}",
            fix=f"choose one of these: predict.{'lsd_checkpoint' if stage == LSD_STAGE else 'checkpoint'}",
        )
    return folder


def _lsd_bundle(experiment: Experiment, config: PredictConfig, affinities: BundleAt) -> BundleAt:
    if config.lsd_checkpoint != "trained_with":
        folder = _chosen_folder(experiment, config.lsd_checkpoint, LSD_STAGE)
        return _require_kind(BundleAt(folder, read_bundle(folder)), "lsd")
    checkpoints = experiment.layout.checkpoints(LSD_STAGE)
    wanted = affinities.bundle.lsd_bundle_sha256
    there: list[str] = []
    for iteration in bundle_iterations(checkpoints):
        found = BundleAt(bundle_folder(checkpoints, iteration), read_bundle(bundle_folder(checkpoints, iteration)))
        if found.bundle.weights_sha256 == wanted:
            return _require_kind(found, "lsd")
        there.append(f"{iteration}: {found.bundle.weights_sha256[:12]}")
    if not there:
        raise MissingInput("no LSD checkpoint", where=checkpoints, fix="run train-lsd, or give predict.lsd_checkpoint")
    raise ContractMismatch(
        "the LSD network that the affinity network was trained with is not there",
        where=checkpoints,
        wanted=f"weights sha256 {wanted}",
        found="; ".join(there),
        fix="give its folder as predict.lsd_checkpoint, or train the affinity network again",
    )


def _require_kind(found: BundleAt, wanted: Kind) -> BundleAt:
    bundle = found.bundle
    if bundle.kind != wanted:
        raise ContractMismatch(
            "the checkpoint holds another kind of network",
            where=found.folder,
            wanted=f"{wanted}: gives {_OUTPUTS[wanted]}",
            found=f"{bundle.kind} from {bundle.writer.stage}: {bundle.unet.in_channels} in, gives {bundle.outputs}",
            fix=f"correct predict.{'lsd_checkpoint' if wanted == 'lsd' else 'checkpoint'} or experiment.mode",
        )
    inputs, outputs = 1 + (10 if wanted == "acrlsd" else 0), _outputs(bundle)
    if bundle.outputs != outputs or bundle.unet.in_channels != inputs:
        raise BadData(
            "the bundle contradicts itself",
            where=found.folder,
            wanted=f"kind {wanted}: {inputs} channels in, gives {outputs}",
            found=f"{bundle.unet.in_channels} channels in, gives {bundle.outputs}",
        )
    if bundle.neighborhood and not is_neighborhood(bundle.neighborhood):
        raise BadData(
            "the bundle gives other affinities than the nearest first",
            where=found.folder,
            wanted=f"{[list(offset) for offset in AFFINITY_NEIGHBORHOOD]}, then others, each once",
            found=[list(offset) for offset in bundle.neighborhood],
        )
    return found


def _outputs(bundle: Bundle) -> dict[str, int]:
    """What a network of this kind gives: an affinity for each offset of its neighbourhood."""
    affs = len(bundle.neighborhood or AFFINITY_NEIGHBORHOOD)
    return {name: affs if name == "affs" else count for name, count in _OUTPUTS[bundle.kind].items()}


def _check_lsd_identity(affinities: BundleAt, lsds: BundleAt | None, config: PredictConfig) -> list[str]:
    """What was accepted although it differs."""
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


def same_size(first_nm: Nm3, second_nm: Nm3) -> bool:
    """True for voxel sizes that differ by rounding at most."""
    return all(math.isclose(a, b, rel_tol=1e-6) for a, b in zip(first_nm, second_nm, strict=True))


def _check_voxel_size(found: BundleAt, target_nm: Nm3, config: PredictConfig) -> list[str]:
    trained_nm = found.bundle.voxel_size_nm
    if same_size(trained_nm, target_nm):
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
