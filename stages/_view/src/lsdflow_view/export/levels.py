"""What is exported: layers (volumes that finished stages have written), and how their coarser levels are computed.

Axes: the finer ones are halved until voxels are as isotropic as halving can make them, then all axes: 40, 8, 8 nm is
followed by 40, 16, 16; 40, 32, 32; 80, 64, 64. Level 0 is the volume itself.
Values: bins of 1 or 2 voxels per axis; the mean of intensities, the mode (most frequent label) of labels. Arrays are
([c,] z, y, x). A block is computed in eighths from the finer level, so that only one block is in memory.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from lsdflow_contract.arrays import LABELS, RAW
from lsdflow_contract.errors import MissingInput, UsageError
from lsdflow_contract.experiment import Experiment, did_you_mean
from lsdflow_contract.geometry import Box, Geometry, Nm3, Vox3
from lsdflow_contract.manifest import read_manifest
from lsdflow_runtime.blocks import BlockPlan
from lsdflow_runtime.io.volumes import Volume, open_volume

Kind = Literal["image", "labels"]
Reduction = Callable[[npt.NDArray[Any], Vox3], npt.NDArray[Any]]
Read = Callable[[Box], npt.NDArray[Any]]

# layer: stage, its output, dataset in it (empty if the output is the array itself), kind
_KNOWN: dict[str, tuple[str, str, str, Kind]] = {
    "raw": ("prepare", "target", RAW.dataset, "image"),
    "lsds": ("predict", "lsds", "", "image"),
    "affinities": ("predict", "affs", "", "image"),
    "fragments": ("watershed", "fragments", "", "labels"),
    "segmentation": ("segment", "segmentation", "", "labels"),
    "truth": ("prepare", "target", LABELS.dataset, "labels"),
}
LAYERS = tuple(_KNOWN)
# Layers that are exported by default. Network outputs are not: ten times the size of the raw data, and rarely viewed.
USUAL = ("raw", "fragments", "segmentation", "truth")
# The last level fits on a screen, because viewers begin with it.
COARSEST_EDGE_VOX = 64


@dataclass(frozen=True)
class Layer:
    """An open volume to export. `identity` names the result that it holds."""

    name: str
    kind: Kind
    volume: Volume
    identity: str

    @property
    def reduction(self) -> Reduction:
        """How a coarser level is computed."""
        return mean_of_bins if self.kind == "image" else mode_of_bins


def open_layers(experiment: Experiment, named: tuple[str, ...]) -> tuple[Layer, ...]:
    """The named layers; if none is named, those of the usual layers that exist.

    Raises UsageError (2) for an unknown name, MissingInput (66) for a layer that no finished stage has written.
    """
    unknown = [name for name in named if name not in _KNOWN]
    if unknown:
        raise UsageError("unknown layer", where="--layer", found=unknown[0], fix=did_you_mean(unknown[0], LAYERS))
    if named:
        return tuple(open_layer(experiment, name) for name in LAYERS if name in named)
    there = tuple(open_layer(experiment, name) for name in USUAL if _is_there(experiment, name))
    return there or (open_layer(experiment, "raw"),)


def open_layer(experiment: Experiment, name: str) -> Layer:
    """One layer. Raises MissingInput (66) if no finished stage has written it."""
    stage, output, dataset, kind = _KNOWN[name]
    manifest = read_manifest(experiment.layout, stage)
    container, inside = manifest.output_array(experiment.layout, output)
    return Layer(name, kind, open_volume(container, dataset or inside), manifest.identity)


def _is_there(experiment: Experiment, name: str) -> bool:
    try:
        open_layer(experiment, name)
    except MissingInput:
        return False
    return True


@dataclass(frozen=True)
class Level:
    """One level: `box` on the grid of this level, `step` (1 or 2 per axis) from the finer level."""

    number: int
    step: Vox3
    voxel_size_nm: Nm3
    box: Box

    def finer_box(self, box: Box, finer: Box) -> Box:
        """The voxels of the finer level (whose whole box is `finer`) from which `box` is computed."""
        begin = _times(box.begin_vox, self.step)
        return Box(begin, _times(box.shape_vox, self.step)).intersect(finer)

    def cut_voxels(self, box: Box, finer: Box) -> tuple[Vox3, Vox3]:
        """How many voxels are missing below and above in the bins of `box`, because `finer` ends inside them."""
        whole = Box(_times(box.begin_vox, self.step), _times(box.shape_vox, self.step))
        part = whole.intersect(finer)
        return _minus(part.begin_vox, whole.begin_vox), _minus(whole.end_vox, part.end_vox)


def pyramid(voxel_size_nm: Nm3, box: Box, count: int) -> tuple[Level, ...]:
    """`count` levels of a volume with voxels `box`. Bins begin at even voxels of the grid that `box` is given on."""
    levels = [Level(0, (1, 1, 1), voxel_size_nm, box)]
    while len(levels) < count:
        levels.append(_coarser(levels[-1]))
    return tuple(levels)


def level_count(voxel_size_nm: Nm3, box: Box) -> int:
    """The number of levels until the longest edge has COARSEST_EDGE_VOX voxels or fewer."""
    level, count = Level(0, (1, 1, 1), voxel_size_nm, box), 1
    while max(level.box.shape_vox) > COARSEST_EDGE_VOX:
        level, count = _coarser(level), count + 1
    return count


def level_geometry(base: Geometry, level: Level) -> Geometry:
    """The geometry of a level whose voxels are counted from 0: the same corner as `base`, larger voxels."""
    return Geometry(level.voxel_size_nm, base.offset_nm, level.box.shape_vox)


def centre_translation_nm(base: Geometry, level: Level) -> Nm3:
    """The translation of a level: the volume's offset, and the shift of the centre of a larger voxel.

    The centre of a voxel that averages two is half a voxel further: (size - size of level 0) / 2.
    """
    axes = zip(base.offset_nm, level.voxel_size_nm, base.voxel_size_nm, strict=True)
    z, y, x = (offset + (size - finest) / 2 for offset, size, finest in axes)
    return z, y, x


def whole_chunks(box: Box, chunk_vox: Vox3, most_vox: int) -> Vox3:
    """Shape of a block of `box` with at most `most_vox` voxels: one chunk, its shortest edge doubled repeatedly."""
    edges = list(chunk_vox)
    while 2 * math.prod(edges) <= most_vox:
        shorter = [axis for axis in range(3) if edges[axis] < box.shape_vox[axis]]
        if not shorter:
            break
        edges[min(shorter, key=lambda axis: edges[axis])] *= 2
    return edges[0], edges[1], edges[2]


def _eighths(box: Box) -> Iterator[Box]:
    """The box halved along each axis: each of the eight boxes is computed from one block of the finer level."""
    z, y, x = (-(-n // 2) for n in box.shape_vox)
    return (block.write for block in BlockPlan(box, (z, y, x)).blocks())


def _coarser(level: Level) -> Level:
    finest = min(level.voxel_size_nm)
    z, y, x = (2 if size < 2 * finest else 1 for size in level.voxel_size_nm)
    step = (z, y, x)
    sizes = tuple(size * s for size, s in zip(level.voxel_size_nm, step, strict=True))
    begin = tuple(b // s for b, s in zip(level.box.begin_vox, step, strict=True))
    end = tuple(-(-e // s) for e, s in zip(level.box.end_vox, step, strict=True))
    box = Box.from_bounds((begin[0], begin[1], begin[2]), (end[0], end[1], end[2]))
    return Level(level.number + 1, step, (sizes[0], sizes[1], sizes[2]), box)


def _times(values: Vox3, factors: Vox3) -> Vox3:
    z, y, x = (v * f for v, f in zip(values, factors, strict=True))
    return z, y, x


def _minus(values: Vox3, others: Vox3) -> Vox3:
    z, y, x = (v - o for v, o in zip(values, others, strict=True))
    return z, y, x


def whole_bins(values: npt.NDArray[Any], lower_vox: Vox3, upper_vox: Vox3) -> npt.NDArray[Any]:
    """Complete bins that a face of the volume cuts, by repeating the face: `lower_vox` voxels below, `upper_vox` above.

    A bin of a plane and its copy has the mean and the mode of that plane.
    """
    if not any((*lower_vox, *upper_vox)):
        return values
    leading = ((0, 0),) * (values.ndim - 3)
    return np.pad(values, (*leading, *zip(lower_vox, upper_vox, strict=True)), mode="edge")


def mean_of_bins(values: npt.NDArray[Any], factor: Vox3) -> npt.NDArray[Any]:
    """Mean of each bin, with the dtype of `values`; integers are rounded to the nearest, halves up."""
    members = _members(values, factor)
    if np.issubdtype(values.dtype, np.floating):
        return np.mean(members, axis=0, dtype=np.float64).astype(values.dtype)
    total = np.zeros(members[0].shape, np.int64)
    for member in members:
        total += member
    # floor((2 sum + n) / 2n) = mean + 1/2, rounded down: exact in integers, for negative ones as well
    return ((2 * total + len(members)) // (2 * len(members))).astype(values.dtype)


def mode_of_bins(labels: npt.NDArray[Any], factor: Vox3) -> npt.NDArray[Any]:
    """The most frequent label of each bin (background counts as a label); the lowest of equally frequent labels."""
    members = _members(labels, factor)
    counts = [np.ones(members[0].shape, np.uint8) for _ in members]
    for (a, first), (b, second) in itertools.combinations(enumerate(members), 2):
        same = first == second
        counts[a] += same
        counts[b] += same
    best, most = members[0].copy(), counts[0]
    for member, count in zip(members[1:], counts[1:], strict=True):
        better = (count > most) | ((count == most) & (member < best))
        np.copyto(best, member, where=better)
        most = np.maximum(most, count)
    return best


def _members(values: npt.NDArray[Any], factor: Vox3) -> list[npt.NDArray[Any]]:
    """The first voxel of every bin, the second of every bin, and so on."""
    every = [[slice(start, None, f) for start in range(f)] for f in factor]
    return [values[..., z, y, x] for z, y, x in itertools.product(*every)]


def coarser_values(read: Read, box: Box, level: Level, finer: Level, reduction: Reduction) -> npt.NDArray[Any]:
    """The values of `box` of `level`; `read` reads from the finer level."""
    made: npt.NDArray[Any] | None = None
    for part in _eighths(box):
        values = read(level.finer_box(part, finer.box))
        reduced = reduction(whole_bins(values, *level.cut_voxels(part, finer.box)), level.step)
        if made is None:
            made = np.empty((*values.shape[:-3], *box.shape_vox), values.dtype)
        made[(..., *part.slices(box.begin_vox))] = reduced
    if made is None:
        msg = f"an empty box has no values: {box}"
        raise ValueError(msg)
    return made
