"""`lsdflow init --network`: does a trained network fit a volume, and how must the volume be read for it?

1. Voxel size. Along each axis the voxels of the volume are compared with those of the network. From 0.7 to 1.4 times
   as long they are used as they are ("at scale"); else prepare resamples the volume by a whole number. Voxels that
   would have to be divided by more than 2, or joined by more than 4, do not fit.

        volume / network   0.18      0.7              1.4        2.8
        ---------------------|--------|----------------|----------|----------
               does not fit  |  mean  |    at scale    |  linear  | does not fit

2. Grey values. If black and white are far from those that the network was trained on, `raw_range` maps them there.
3. Contrast. The network looks at the middle of the volume. It divides what it was trained on into cells; with inverted
   contrast it finds hardly any boundary that is closed, whatever the affinities are. Then it looks at the inverted one.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lsdflow_contract.checkpoint import Bundle, read_bundle
from lsdflow_contract.errors import ContractMismatch, MissingInput, UsageError
from lsdflow_contract.geometry import Nm3, Vox3
from lsdflow_launch.commands import ask_stage
from lsdflow_launch.init.middle import asked
from lsdflow_launch.init.propose import FEWEST_SECTIONS, Choice, text_of

LOG = logging.getLogger("lsdflow.init")
# In an experiment: the folder of copies of networks that come with predict, and what a network saw that found no cells.
NETWORKS, PICTURE = "networks", "network_check.png"
SMALLEST_SCALE, LARGEST_SCALE = 0.7, 1.4
MOST_JOINED, MOST_DIVIDED = 4, 2
# A network was trained with changes of brightness and contrast of about this size.
GREY_SHIFT, SMALLEST_CONTRAST, LARGEST_CONTRAST = 32.0, 0.8, 1.35
# With fewer bits the network has found no cells: this is one of 95 % of the patch, and others in the rest.
FEWEST_CELLS = 0.5


@dataclass(frozen=True)
class Network:
    """A trained network: one that comes with predict (`card`: its grey values and scores), or a folder of the user."""

    place: str
    mode: str
    voxel_size_nm: Nm3
    input_shape_vox: Vox3
    unet: Mapping[str, Any]
    card: Mapping[str, Any] | None = None

    @property
    def profile(self) -> str:
        """The profile for trainings that start from it without a GPU; the shapes are then those of the network."""
        return "tiny-anisotropic" if self.unet.get("kernels_down") else "tiny"

    @property
    def profile_on_gpu(self) -> str:
        """The profile for trainings that start from it on a GPU: its own recipe, if it comes with predict."""
        return self.profile.replace("tiny", "general")

    @property
    def comes_with_predict(self) -> bool:
        """True if `place` is a name, not a folder."""
        return self.card is not None


def shipped_networks() -> dict[str, dict[str, Any]]:
    """The networks that come with predict, by name."""
    answer = ask_stage("predict", ["networks", "--json"])
    return dict(answer) if isinstance(answer, Mapping) else {}


def find_network(given: str, mode: str | None = None) -> Network:
    """The network of this name, or in this folder; `mode`: the mode that the user wants.

    Raises MissingInput (66) if there is none, BadData (65) if it is damaged, UsageError (2) for one that does not
    segment alone.
    """
    shipped = {} if Path(given).is_dir() else shipped_networks()
    if given in shipped:
        return _of_card(given, shipped[given])
    folder = Path(given).expanduser()
    if not folder.is_dir() and not folder.is_file():
        wanted, fix = f"a folder with bundle.json, or {', '.join(shipped)}", "lsdflow init --network list"
        raise MissingInput("no such network", where=f"--network {given}", wanted=wanted, fix=fix)
    return _of_bundle(folder, read_bundle(folder), mode)


def network_to_start_from(
    sizes_nm: Sequence[Sequence[float]], sections: int, mode: str | None, profile: str | None
) -> Network | None:
    """The network that comes with predict for voxels like all of these, if a training of so many sections fills it.

    mode, profile: those that the user wants; a training of profile tiny or standard has another network.
    """
    for network in itertools.starmap(_of_card, shipped_networks().items()):
        alike = all(resampled_size(size, network.voxel_size_nm) == tuple(size) for size in sizes_nm)
        deep = sections >= FEWEST_SECTIONS.get(network.profile, 0)
        if alike and deep and mode in (None, network.mode) and profile in (None, network.profile_on_gpu):
            return network
    return None


def copy_network(network: Network, folder: Path) -> None:
    """Copy a network that comes with predict into a new folder."""
    if not folder.exists():
        asked("predict", ["networks", "--copy", network.place, "--to", str(folder)])


def list_of_networks() -> str:
    """What the networks that come with predict are for, their scores and licences, for people."""
    lines = []
    for name, card in shipped_networks().items():
        size = text_of(card["voxel_size_nm"])
        lines.append(f"{name}: {card['tissue']}")
        lines.append(f"    voxels of {size} nm, mode {card['kind']}, {card['bytes'] / 1e6:.1f} MB")
        lines.append(f"    trained on {card['data']}")
        lines += [f"    {where}: {score}" for where, score in card["scores"].items()]
        lines.append(f"    licence: {card['licence']}")
        lines.append(f"    sha256 of the weights: {card['weights_sha256']}")
    return "\n".join(lines)


def network_that_fits(target: Mapping[str, Any]) -> str:
    """The option of `init` that names a network for a volume of these facts."""
    for name, card in shipped_networks().items():
        if resampled_size(target["voxel_size_nm"], card["voxel_size_nm"]):
            return f"--network {name}, or --network FOLDER"
    return "--network FOLDER (none that comes with lsdflow fits this voxel size)"


def choices_for(network: Network, target: Mapping[str, Any]) -> list[Choice]:
    """Settings with which the network sees this volume as those it was trained on; `target`: facts of `prepare look`.

    Raises ContractMismatch (76) for voxels of a size that it cannot be used for.
    """
    return [*size_choices(network, target["voxel_size_nm"]), *grey_choices(network.card, target)]


def size_choices(network: Network, size_nm: Sequence[float]) -> list[Choice]:
    """How voxels of another size than those of the network are used: at scale, or resampled."""
    if all(math.isclose(a, b, rel_tol=1e-6) for a, b in zip(size_nm, network.voxel_size_nm, strict=True)):
        return []
    used = resampled_size(size_nm, network.voxel_size_nm)
    if used is None:
        raise _does_not_fit(network, size_nm)
    trained, choices = text_of(network.voxel_size_nm), []
    if used != tuple(size_nm):
        why = f"voxels are {text_of(size_nm)} nm, those of the network {trained} nm"
        exact = ", ".join(f"{size:.15g}" for size in used)
        choices.append(Choice("prepare.target.resample_to", f"{exact} nm", why))
    if not all(math.isclose(a, b, rel_tol=1e-6) for a, b in zip(used, network.voxel_size_nm, strict=True)):
        scale = text_of([round(a / b, 2) for a, b in zip(used, network.voxel_size_nm, strict=True)])
        why = f"trained on voxels of {trained} nm; here they are {scale} times as long, which it was not trained on"
        choices.append(Choice("predict.allow_voxel_size_mismatch", True, why))
    return choices


def resampled_size(size_nm: Sequence[float], trained_nm: Sequence[float]) -> tuple[float, ...] | None:
    """The voxel size at which a network of `trained_nm` sees a volume of `size_nm`; None if it does not fit."""
    found = [_resampled(size, trained) for size, trained in zip(size_nm, trained_nm, strict=True)]
    return None if any(size is None for size in found) else tuple(size for size in found if size is not None)


def _resampled(size: float, trained: float) -> float | None:
    """One axis: joined or divided as little as possible, so that no detail is lost."""
    joined = [size * n for n in range(1, MOST_JOINED + 1)]
    divided = [size / n for n in range(2, MOST_DIVIDED + 1)]
    tolerance = 1e-6
    fits = (s for s in (*joined, *divided) if SMALLEST_SCALE - tolerance <= s / trained <= LARGEST_SCALE + tolerance)
    return next(fits, None)


def _does_not_fit(network: Network, size_nm: Sequence[float]) -> ContractMismatch:
    others = [name for name, card in shipped_networks().items() if resampled_size(size_nm, card["voxel_size_nm"])]
    fix = f"--network {others[0]} fits" if others else "no network that comes with lsdflow fits: label and --train"
    return ContractMismatch(
        "this network does not fit the voxel size of the volume",
        where=f"--network {network.place}",
        wanted=f"about {text_of(network.voxel_size_nm)} nm (z, y, x), or a size that can be resampled to it",
        found=f"{text_of(size_nm)} nm",
        fix=f"{fix}; if the metadata of the volume are wrong: --voxel-size",
    )


def grey_choices(card: Mapping[str, Any] | None, target: Mapping[str, Any]) -> list[Choice]:
    """A range of grey values for a volume whose grey values are far from those that the network was trained on."""
    seen = target.get("grey_percentiles")
    if card is None or not seen or not seen["1"] < seen["99"]:
        return []
    trained = _percentiles(card)
    if target["dtype"] == "uint8" and grey_fits(seen, trained):
        return []
    low, high = mapped_range(seen["1"], seen["99"], trained)
    shown = f"1, 50, 99 % of the voxels are below {seen['1']:g}, {seen['50']:g}, {seen['99']:g}"
    why = f"{target['dtype']}: {shown}; those of the network below {text_of(list(trained.values()))}"
    return [Choice("prepare.target.raw_range", [low, high], why)]


def grey_fits(seen: Mapping[str, float], trained: Mapping[str, float]) -> bool:
    """True if brightness and contrast of u8 grey values are within what a training varies."""
    contrast = (seen["99"] - seen["1"]) / (trained["99"] - trained["1"])
    return SMALLEST_CONTRAST <= contrast <= LARGEST_CONTRAST and abs(seen["50"] - trained["50"]) <= GREY_SHIFT


def mapped_range(first: float, last: float, trained: Mapping[str, float]) -> tuple[float, float]:
    """The `raw_range` that maps `first` and `last` to the 1st and 99th percentile of the network."""
    levels = (trained["99"] - trained["1"]) / (last - first)
    black = first - trained["1"] / levels
    return float(f"{black:.6g}"), float(f"{black + 255 / levels:.6g}")


def contrast_choices(
    network: Network, target: Mapping[str, Any], raw_range: Sequence[float] | None, cells: Callable[[bool], float]
) -> list[Choice]:
    """A reversed `raw_range` if the network finds cells in the inverted volume only; a warning if it finds none.

    raw_range: that with which the network looks; None for uint8 as it is. cells: the bits that the network finds in the
    middle of the volume (`Middle`), inverted or not.
    """
    plain = cells(False)
    if plain >= FEWEST_CELLS:
        return []
    inverted = cells(True)
    if inverted < FEWEST_CELLS:
        LOG.warning(
            "the network finds no separate cells in the middle of the volume, which may look unlike what it was "
            "trained on: look at %s in the experiment (raw and affinities, then the same inverted), segment a small "
            "part first (prepare.target.roi), or train on labels of this volume (--train)",
            PICTURE,
        )
        return []
    why = (
        f"the contrast is inverted: the cells in the middle of the volume hold {plain:.1f} bits as they are, and "
        f"{inverted:.1f} with black and white exchanged"
    )
    return [Choice("prepare.target.raw_range", _inverted_range(network.card, target, raw_range), why)]


def _inverted_range(
    card: Mapping[str, Any] | None, target: Mapping[str, Any], raw_range: Sequence[float] | None
) -> list[float]:
    """The `raw_range` that exchanges black and white, and maps them to those of the network if they are far off."""
    if card is None:
        return [255.0, 0.0] if raw_range is None else [raw_range[1], raw_range[0]]
    seen, trained = target["grey_percentiles"], _percentiles(card)
    turned = {"1": 255 - seen["99"], "50": 255 - seen["50"], "99": 255 - seen["1"]}
    if target["dtype"] == "uint8" and grey_fits(turned, trained):
        return [255.0, 0.0]
    return list(mapped_range(seen["99"], seen["1"], trained))


def _percentiles(card: Mapping[str, Any]) -> dict[str, float]:
    return {share: float(value) for share, value in card["grey_percentiles"].items()}


def _of_card(name: str, card: Mapping[str, Any]) -> Network:
    size, shape = tuple(card["voxel_size_nm"]), tuple(card["input_shape_vox"])
    return Network(name, card["kind"], size, shape, card["unet"], card)


def _of_bundle(folder: Path, bundle: Bundle, mode: str | None) -> Network:
    if bundle.kind in ("lsd", "acrlsd") and bundle.kind != mode:
        raise UsageError(
            "this network does not segment alone",
            where=f"--network {folder}",
            wanted="a network of mode mtlsd or affinities",
            found=bundle.kind,
            fix="for mode acrlsd: --mode acrlsd --network AFFINITIES --set predict.lsd_checkpoint=LSDS",
        )
    unet = bundle.unet.model_dump(mode="json")
    # The whole path, which is no name of a network that comes with predict.
    return Network(str(folder.resolve()), bundle.kind, bundle.voxel_size_nm, bundle.predict_input_shape_vox, unet)
