"""Crops for patches made on the training device: the arrays that the gunpowder pipeline reads, and what it draws.

The pipeline is that of pipeline.py itself, so location, volume and all random numbers of batch i are those of gunpowder
for batch i.  But its nodes do not compute: they request the region that they need, record what they have drawn, and
pass on empty arrays.  The data that was read is recorded at the node that chooses the volume.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import gunpowder as gp
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lsdflow_contract.errors import BadData, ConfigError, InternalError
from lsdflow_contract.geometry import Box
from lsdflow_network.precision import memory_format
from lsdflow_training.augmentation.cpu import source_box
from lsdflow_training.augmentation.description import Change, Region, Step, Turn, Warp
from lsdflow_training.augmentation.device import apply_step, changed
from lsdflow_training.augmentation.nodes import ElasticAugment, IntensityNode
from lsdflow_training.data.nodes import ApplyBackground, CompactIds, GrowBoundary, TrainedVoxels
from lsdflow_training.data.patch import DevicePatch, Patch
from lsdflow_training.data.pipeline import Keys
from lsdflow_training.settings import TrainingSettings
from lsdflow_training.targets.boundaries import compact_ids
from lsdflow_training.targets.lsd_node import AddLsdTargets
from lsdflow_training.targets.torch_targets import make_targets

IDLE = (ApplyBackground, GrowBoundary, gp.IntensityScaleShift)
ADDING = (AddLsdTargets, TrainedVoxels, gp.AddAffinities, gp.BalanceLabels)
GREATEST = {"uint8": 255, "uint16": 256 * 256 - 1, "float32": 1}  # raw value that counts as 1


@dataclass(frozen=True)
class Crops:
    """Arrays of one batch: raw (as stored), labels (ids from 1, int16 or int32), mask; and the augmentation to apply.

    labels_box: box of the labels after all steps, relative to the output's begin (the mask has the same).  times: of
    the nodes, as gunpowder measures them.
    """

    raw: npt.NDArray[Any]
    labels: npt.NDArray[np.signedinteger[Any]]
    mask: npt.NDArray[np.uint8]
    steps: tuple[Step, ...]
    changes: tuple[Change, ...]
    labels_box: Box
    times: gp.ProfilingStats


@dataclass
class Notes:
    """What the nodes record for one request."""

    arrays: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    labels_box: Box = field(default_factory=lambda: Box((0, 0, 0), (0, 0, 0)))


class CropReader:
    """Reads the crops of batches through a pipeline of training_pipeline, whose nodes it changes."""

    def __init__(self, pipeline: gp.Pipeline, keys: Keys, request: gp.BatchRequest) -> None:
        self.pipeline, self.keys, self.request = pipeline, keys, request
        self.names = {keys.raw: "raw", keys.labels: "labels", keys.mask: "mask"}
        self.notes = Notes()
        self._replace_processing(pipeline)

    def read(self, request: gp.BatchRequest) -> Crops:
        """The crops of the batch of this request (which holds its seed); the pipeline must be built."""
        self.notes = notes = Notes()
        batch = self.pipeline.request_batch(request)
        labels = compact_ids(notes.arrays["labels"])
        small = labels.max(initial=0) <= np.iinfo(np.int16).max
        return Crops(
            raw=notes.arrays["raw"],
            labels=labels.astype(np.int16 if small else np.int32),
            mask=notes.arrays["mask"].astype(np.uint8, copy=False),
            steps=tuple(notes.steps),
            changes=tuple(notes.changes),
            labels_box=notes.labels_box,
            times=batch.profiling_stats,
        )

    def _replace_processing(self, part: gp.Pipeline) -> None:
        """Replace the processing of the nodes; those before the choice of the volume still read, and stay unchanged.

        Raises ConfigError for a node that is not implemented on the device.
        """
        if type(part.output) is gp.RandomProvider:
            self._record_what_is_read(part.output)
            part.traverse(lambda before: _idle(before.output) if type(before.output) is gp.Normalize else None)
            return
        self._defer(part.output)
        for before in part.children:
            self._replace_processing(before)

    def _defer(self, node: Any) -> None:
        kind: type[Any] = type(node)  # exactly: a subclass may do more than these; all that IntensityNodes do is drawn
        if kind is ElasticAugment:
            self._defer_warp(node)
        elif kind is gp.SimpleAugment:
            self._defer_turn(node)
        elif issubclass(kind, IntensityNode):
            node.process = lambda batch, request: self._note(node.drawn(batch[self.keys.raw].data.shape, request))
        elif kind is CompactIds:
            node.process = lambda _batch, request: self._note_labels_box(request)
        elif kind in ADDING:
            node.process = lambda _batch, request: _empty_additions(node, request)
        elif kind in IDLE:
            _idle(node)
        else:
            raise ConfigError(
                'pipeline = "gpu" cannot do all that this training asks for',
                where="pipeline",
                found=type(node).__name__,
                fix='use pipeline = "gunpowder"',
            )

    def _record_what_is_read(self, node: Any) -> None:
        read = node.provide

        def provide(request: gp.BatchRequest) -> gp.Batch:
            """Move the arrays from the batch to the notes."""
            batch = read(request)
            for key, name in self.names.items():
                self.notes.arrays[name] = batch[key].data
                batch[key].data = _nothing(batch[key].spec)
            return batch

        node.provide = provide

    def _defer_warp(self, node: Any) -> None:
        warps: list[Warp] = []

        def prepare(request: gp.BatchRequest) -> gp.BatchRequest:
            """Draw the deformation, and request what it needs."""
            needed, warp = _draw_warp(node, request, self.keys)
            warps[:] = [warp]
            return needed

        def process(batch: gp.Batch, request: gp.BatchRequest) -> None:
            """Note the deformation for the device; give the arrays the ROIs of the request, without values."""
            self.notes.steps.append(warps[0])
            for key in self.names:
                batch[key].spec.roi = request[key].roi
                batch[key].data = _nothing(batch[key].spec)

        node.prepare, node.process = prepare, process

    def _defer_turn(self, node: gp.SimpleAugment) -> None:
        move_rois = node.process

        def process(batch: gp.Batch, request: gp.BatchRequest) -> None:
            """Note mirrored axes (z, y, x) and the transposition for the device; change only the ROIs."""
            z, y, x = (bool(mirrored) for mirrored in node.mirror)
            self.notes.steps.append(Turn((z, y, x), tuple(node.transpose)))
            move_rois(batch, request)

        node.process = process

    def _note_labels_box(self, request: gp.BatchRequest) -> None:
        self.notes.labels_box = _box(request[self.keys.labels].roi)

    def _note(self, change: Change) -> None:
        self.notes.changes.append(change)


def _draw_warp(node: ElasticAugment, request: gp.BatchRequest, keys: Keys) -> tuple[gp.BatchRequest, Warp]:
    """The request of the node, and the deformation that it has drawn; as ElasticAugment.prepare."""
    if request[keys.mask].roi != request[keys.labels].roi:
        raise InternalError("labels and mask are deformed as one", found=f"{request}")
    whole = request.get_total_roi()
    shape = _box(whole).shape_vox
    warp = node.draw(shape)
    needed, regions = gp.BatchRequest(), {}
    for name, same in (("raw", (keys.raw,)), ("labels", (keys.labels, keys.mask))):
        target = _box(request[same[0]].roi - whole.begin)
        source = source_box(warp, target)
        # gunpowder reads the hull of what a node needs and what is requested from it
        z, y, x = (min(a, b) for a, b in zip(source.begin_vox, target.begin_vox, strict=True))
        regions[name] = Region(target, (z, y, x))
        for key in same:
            needed[key] = request[key].copy()
            needed[key].roi = gp.Roi(source.begin_vox, source.shape_vox) + whole.begin
    return needed, replace(warp, regions=regions)


def _idle(node: Any) -> None:
    node.process = lambda _batch, _request: None


def _empty_additions(node: gp.BatchFilter, request: gp.BatchRequest) -> gp.Batch:
    """Empty arrays for those that the node would add."""
    added = gp.Batch()
    for key in node.provided_items:
        if key in request:
            spec = node.spec[key].copy()
            spec.roi = request[key].roi
            added[key] = gp.Array(_nothing(spec), spec)
    return added


def _nothing(spec: gp.ArraySpec) -> npt.NDArray[Any]:
    """An array of zeros with the region's shape that uses almost no memory."""
    return np.broadcast_to(np.zeros((), spec.dtype or np.uint8), tuple(spec.roi.shape))


def _box(roi: gp.Roi) -> Box:
    (z, y, x), (depth, height, width) = (int(n) for n in roi.begin), (int(n) for n in roi.shape)
    return Box((z, y, x), (depth, height, width))


@torch.no_grad()
def make_patch(crops: Crops, settings: TrainingSettings, device: torch.device) -> DevicePatch:
    """The patch that the gunpowder pipeline makes of the same batch. Raises BadData unless raw is u8, u16 or f32."""
    volumes = {
        "raw": to_device(crops.raw, device).to(torch.float32) * (1 / _greatest(crops.raw)),
        "labels": to_device(crops.labels, device),
        "mask": to_device(crops.mask, device),
    }
    for step in crops.steps:
        volumes = apply_step(step, volumes)
    raw = volumes["raw"]
    for change in crops.changes:
        raw = changed(raw, change)
    raw = raw * 2 - 1
    begin = crops.labels_box.begin_vox
    output = Box((0, 0, 0), settings.shapes.output_vox).translate((-begin[0], -begin[1], -begin[2]))
    made = make_targets(volumes["labels"], volumes["mask"], output, settings.targets, settings.augmentation.anisotropic)
    patch = Patch(
        raw=raw[None, None].contiguous(memory_format=memory_format(device)),
        targets={name: value[None] for name, value in made.targets.items()},
        weights={name: value[None] for name, value in made.weights.items()},
    )
    return DevicePatch(patch, made.labels[output.slices()], volumes["mask"][output.slices()])


def to_device(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    """A copy on the device; the caller may overwrite the array as soon as this returns."""
    here = torch.from_numpy(np.ascontiguousarray(array))
    if device.type == "cpu":
        return here.clone()
    return here.pin_memory().to(device, non_blocking=True)


def _greatest(raw: npt.NDArray[Any]) -> int:
    """The raw value that counts as 1, as in gunpowder's Normalize."""
    if raw.dtype.name not in GREATEST:
        raise BadData("raw data of this type cannot be trained on", wanted=", ".join(GREATEST), found=raw.dtype.name)
    return GREATEST[raw.dtype.name]
