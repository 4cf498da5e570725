"""The settings that `lsdflow init` proposes for volumes and a machine, each with its reason; reads no files."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lsdflow_contract.experiment import TRAININGS
from lsdflow_contract.geometry import Nm3, Vox3

# With fewer labelled voxels, a network of the published size does not generalise.
FEW_LABELLED_VOXELS = 200**3
THICK_SECTIONS, NEARLY_ISOTROPIC = 3.0, 1.5
# LSDs are statistics within 10 of the shortest voxel edges, as published, but over at least two sections.
SIGMA_EDGES, SIGMA_SECTIONS = 10, 2
HELD_OUT = 0.15
HELD_OUT_SECTIONS = {"isotropic": 32, "thick": 10}
# The depth of the training output of these networks; a thinner volume does not fill it.
FEWEST_SECTIONS = {"tiny": 44, "general": 84, "standard": 92, "snemi3d": 48}
# Blocks of watershed, in shortest voxel edges; they are read with context and need about this many bytes per voxel.
BLOCK_EDGES = (256, 192, 128, 96, 64)
CONTEXT_EDGES, BYTES_PER_VOXEL = 48, 50
BLOCK_GRAIN_VOX = 16
MEMORY_SHARE = 0.5
BLOCKS_PER_WORKER = 2


@dataclass(frozen=True)
class Machine:
    """The resources for blocks on this machine."""

    cores: int
    memory_bytes: int
    gpu: bool


@dataclass(frozen=True)
class Volume:
    """A volume as reported by `prepare look`; `labelled`: share of voxels to train on, None without labels."""

    shape_vox: Vox3
    voxel_size_nm: Nm3
    dtype: str
    grey: tuple[float, ...]
    labelled: float | None = None

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Volume:
        """Create it from the facts of prepare."""
        z, y, x = facts["shape_vox"]
        dz, dy, dx = facts["voxel_size_nm"]
        labels = facts["labels"]
        labelled = None if labels is None else labels["labelled_fraction"] * labels["trained_fraction"]
        return cls((z, y, x), (dz, dy, dx), facts["dtype"], tuple(facts["grey"]), labelled)

    @property
    def thick(self) -> bool:
        """True if sections are much thicker than the voxels in them are wide."""
        return self.voxel_size_nm[0] / min(self.voxel_size_nm[1:]) >= THICK_SECTIONS


@dataclass(frozen=True)
class Choice:
    """A value for `table.key`, with the reason."""

    key: str
    value: Any
    why: str


def proposals(
    training: Sequence[Volume], target: Volume, machine: Machine, profile: str | None = None, start: str | None = None
) -> tuple[Choice, ...]:
    """Return all choices; `profile` if the user has chosen one; `start`: as for `profile_choice`."""
    choice = profile_choice(training, machine, start)
    named = profile or choice.value
    found: list[Choice] = [] if profile else [choice]
    found += grey_choices(training, target)
    found += sigma_choices(training or (target,))
    found += held_out_choices(training, named)
    if machine.gpu and training:
        why = "the GPU here makes the patches, from volumes in its memory"
        found += [Choice(f"{table}.pipeline", "gpu", why) for table in TRAININGS]
    return (*found, *block_choices(target, machine))


def profile_choice(training: Sequence[Volume], machine: Machine, start: str | None = None) -> Choice:
    """Choose by the thickness of sections, then by the machine, and by the number of labelled voxels and sections.

    start: tiny or tiny-anisotropic, as the network has it that the training starts from; None: it starts from nothing.
    """
    thick = next((v.voxel_size_nm for v in training if v.thick), None)
    published, small = ("snemi3d", "tiny-anisotropic") if thick else ("standard", "tiny")
    form = f"thick sections, voxels of {text_of(thick)} nm" if thick else _form(training)
    voxels = round(sum(math.prod(v.shape_vox) * (v.labelled or 0.0) for v in training))
    sections = min((v.shape_vox[0] for v in training), default=0)
    seen = f"{form}; {voxels / 1e6:.1f} million labelled voxels in {sections} sections"
    if start:
        large = start.replace("tiny", "general")
        if machine.gpu and sections >= FEWEST_SECTIONS.get(large, 0):
            return Choice("experiment.profile", large, f"{seen}; on the GPU here it learns within minutes")
        why = f"patches and iterations for a CPU; the network is the one that the training starts from; GPU: {large}"
        return Choice("experiment.profile", start, f"{seen}; {why}")
    if machine.gpu:
        flat = bool(thick) or sections < FEWEST_SECTIONS["general"]
        name = "general-anisotropic" if flat else "general"
        return Choice("experiment.profile", name, f"{seen}; on the GPU here it learns within minutes")
    if voxels >= FEW_LABELLED_VOXELS and sections >= FEWEST_SECTIONS[published]:
        slow = f"there is no GPU driver here: on a CPU only {small} learns within minutes"
        return Choice("experiment.profile", published, f"{seen}; {slow}")
    if sections < FEWEST_SECTIONS.get(small, 0):
        why = f"{seen}; a network with the same range in z as in y and x needs {FEWEST_SECTIONS[small]} sections"
        return Choice("experiment.profile", "tiny-anisotropic", why)
    needed = f"{FEW_LABELLED_VOXELS / 1e6:.0f} million in {FEWEST_SECTIONS[published]} sections"
    return Choice("experiment.profile", small, f"{seen}, but the published networks need {needed}")


def _form(training: Sequence[Volume]) -> str:
    """Say what the voxels of training volumes without thick sections are, and what follows from it."""
    longest = max((v.voxel_size_nm for v in training), key=lambda size: max(size) / min(size), default=(1.0,) * 3)
    ratio = max(longest) / min(longest)
    if ratio < NEARLY_ISOTROPIC:
        return "nearly isotropic voxels"
    axis = "zyx"[longest.index(max(longest))]
    return (
        f"voxels of {text_of(longest)} nm, {ratio:.1f} times as long in {axis}: networks see as many voxels in each "
        f"direction, as for isotropic ones (networks for thick sections: from {THICK_SECTIONS:g} times in z on)"
    )


def grey_choices(training: Sequence[Volume], target: Volume) -> list[Choice]:
    """Choose one range of grey values for all volumes: the network must see the same grey for the same value."""
    unknown = [v for v in (*training, target) if v.dtype != "uint8" and not _is_unit(v)]
    if not unknown or any(len(v.grey) != 2 for v in unknown):
        return []
    low, high = min(v.grey[0] for v in unknown), max(v.grey[1] for v in unknown)
    if not low < high:
        return []
    why = f"{unknown[0].dtype}: 99.8 % of the sampled values are between these, which become 0 and 255"
    return [Choice(f"prepare.{table}.raw_range", [low, high], why) for table in ("training", "target")]


def _is_unit(volume: Volume) -> bool:
    return volume.dtype.startswith("float") and len(volume.grey) == 2 and 0 <= volume.grey[0] <= volume.grey[1] <= 1


def sigma_choices(volumes: Sequence[Volume]) -> list[Choice]:
    """Choose the Gaussian of the LSDs in nm, which stays valid if the volume is resampled."""
    size = min((v.voxel_size_nm for v in volumes), key=min)
    sigma = max(SIGMA_EDGES * min(size), SIGMA_SECTIONS * max(size))
    sections = sigma > SIGMA_EDGES * min(size)
    why = "2 times the longest voxel edge" if sections else "10 times the shortest voxel edge, as published"
    return [Choice(f"{table}.sigma", f"{sigma:g} nm", f"{why}; voxels are {text_of(size)} nm") for table in TRAININGS]


def held_out_choices(training: Sequence[Volume], profile: str) -> list[Choice]:
    """Hold out sections from training if there are enough labels; checkpoints are selected there."""
    if not training:
        return []
    sections = min(math.floor(v.shape_vox[0] * HELD_OUT) for v in training)
    left = sum(math.prod(v.shape_vox) * (v.labelled or 0.0) for v in training) * (1 - HELD_OUT)
    thick = profile == "snemi3d" or profile.endswith("anisotropic")
    if sections < HELD_OUT_SECTIONS["thick" if thick else "isotropic"] or left < FEW_LABELLED_VOXELS:
        return []
    depth = training[0].shape_vox[0]
    why = (
        f"the last {round(depth * HELD_OUT)} of {depth} sections are not trained: they are used for the "
        "validation loss and by `lsdflow select-checkpoint`"
    )
    return [Choice(f"{table}.validation_fraction", HELD_OUT, why) for table in TRAININGS]


def block_choices(target: Volume, machine: Machine) -> list[Choice]:
    """Choose the largest blocks that keep all workers busy and fit the memory; fewer workers if none fit."""
    workers = max(1, machine.cores)
    edges = _edges(target, workers, machine.memory_bytes)
    while edges is None and workers > 1:
        workers -= 1
        edges = _edges(target, workers, machine.memory_bytes)
    shape = block_shape(target, edges or BLOCK_EDGES[-1])
    count = blocks_in(target.shape_vox, shape)
    need = max(0.1, worker_bytes(target, shape) / 2**30)
    memory = f"{machine.memory_bytes / 2**30:.0f} GiB free"
    why_block = f"{count} blocks of the target; a worker of watershed needs about {need:.1f} GiB, of {memory}"
    why_workers = f"{machine.cores} cores" + ("" if workers == machine.cores else f", but only {memory}")
    lengths = f"{shape[0]} vox" if len(set(shape)) == 1 else f"{text_of(shape)} vox"
    return [
        Choice("compute.workers", workers, why_workers),
        Choice("watershed.block_shape", lengths, why_block),
    ]


def _edges(target: Volume, workers: int, memory_bytes: int) -> int | None:
    """Return the largest edge that fits and gives every worker enough blocks, else the smallest that fits, or None."""
    fitting = [
        edges
        for edges in BLOCK_EDGES
        if worker_bytes(target, block_shape(target, edges)) * workers <= memory_bytes * MEMORY_SHARE
    ]
    shapes: Iterator[int] = (
        edges
        for edges in fitting
        if blocks_in(target.shape_vox, block_shape(target, edges)) >= BLOCKS_PER_WORKER * workers
    )
    return next(itertools.chain(shapes, fitting[-1:]), None)


def block_shape(target: Volume, edges: int) -> Vox3:
    """Return a block of `edges` shortest voxel edges, about a cube in nm, in multiples of BLOCK_GRAIN_VOX."""
    shortest = min(target.voxel_size_nm)
    exact = [edges * shortest / size / BLOCK_GRAIN_VOX for size in target.voxel_size_nm]
    z, y, x = (max(1, round(grains)) * BLOCK_GRAIN_VOX for grains in exact)
    return z, y, x


def worker_bytes(target: Volume, shape_vox: Vox3) -> int:
    """Return the memory of a worker of watershed with such blocks, from the voxels that it reads with context."""
    shortest = min(target.voxel_size_nm)
    context = [math.ceil(CONTEXT_EDGES * shortest / size) for size in target.voxel_size_nm]
    read = [min(s, n) + 2 * c for s, n, c in zip(shape_vox, target.shape_vox, context, strict=True)]
    return math.prod(read) * BYTES_PER_VOXEL


def blocks_in(shape_vox: Vox3, block_vox: Vox3) -> int:
    """Return the number of blocks that cover a volume."""
    return math.prod(-(-n // b) for n, b in zip(shape_vox, block_vox, strict=True))


def text_of(values: Sequence[float]) -> str:
    """Return "z, y, x"."""
    return ", ".join(f"{value:g}" for value in values)
