"""Initial weights of a training, if they are not random: those of a bundle, imported or trained elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lsdflow_contract.checkpoint import BUNDLE_JSON, Bundle, UNetSpec, bundle_folder, read_best, read_bundle
from lsdflow_contract.errors import ContractMismatch, MissingInput


@dataclass(frozen=True)
class InitialWeights:
    """A bundle's folder, and the sha256 of its weights."""

    folder: Path
    sha256: str


def find_initial_weights(place: Path, unet: UNetSpec, outputs: dict[str, int]) -> InitialWeights:
    """The weights of a bundle (its folder, or train/<stage> of an experiment for the best one) for this network.

    Raises MissingInput (66), BadData (65), and ContractMismatch (76) if they are of another network.
    """
    folder = place
    if not (place / BUNDLE_JSON).is_file():
        if not (place / "best.json").is_file():
            raise MissingInput(
                "no weights to begin with",
                where=place,
                wanted=f"the folder of a checkpoint ({BUNDLE_JSON}), or train/<stage> of an experiment (best.json)",
                fix="correct initial_weights",
            )
        folder = bundle_folder(place / "checkpoints", read_best(place / "best.json").iteration)
    bundle = read_bundle(folder)
    _require_same_network(bundle, unet, outputs, folder)
    return InitialWeights(folder, bundle.weights_sha256)


def _require_same_network(bundle: Bundle, unet: UNetSpec, outputs: dict[str, int], folder: Path) -> None:
    theirs = {**bundle.unet.model_dump(), "outputs": bundle.outputs}
    ours = {**unet.model_dump(), "outputs": outputs}
    differ = [name for name in ours if ours[name] != theirs[name]]
    if differ:
        raise ContractMismatch(
            "the weights to begin with are those of another network",
            where=folder,
            wanted=", ".join(f"{name} {ours[name]}" for name in differ),
            found=", ".join(f"{name} {theirs[name]}" for name in differ),
            fix="set num_fmaps, fmap_inc_factor and downsample_factors as the bundle has them",
        )
