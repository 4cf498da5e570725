"""The passes that write one prepared volume: raw, and labels with mask, each in blocks of whole chunks.

1. A block reads its box from the sources, checks it, and converts it: raw to 8 bits, labels to ids and mask states.
2. The engine writes the block, reads it back, and records its checksums with the statistics of the block.
3. When all blocks are done, the statistics of the blocks are merged (`report.summary_of`).

        source   |....chunk....|....chunk....|        block: at least one chunk of the source, rounded up to whole
        output   |64|64|64|64|64|64|64|64|64|64|      chunks of the output, then extended along x and y as memory
        blocks   |       block       |  block |       allows, so that the source is decoded as few times as possible

A volume with `resample_to` is read in source voxels and written in output voxels (`resampling`). If it becomes so much
coarser that the source of one chunk of 64^3 does not fit into memory, the chunks are smaller.

The arrays are zarr format 2, which gunpowder reads. The two passes of a volume have keys that begin like the key of the
volume, whose folder contains the arrays; so `lsdflow clean` finds their done marks. Done marks are files even if the
store of the experiment is MongoDB, so that prepare needs no server.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from lsdflow_contract.arrays import LABELS, MASK, RAW, ArraySpec
from lsdflow_contract.errors import BadData, ConfigError, MissingInput
from lsdflow_contract.experiment import ComputeTable
from lsdflow_contract.geometry import Box, Geometry, Vox3
from lsdflow_contract.hashing import hash_of
from lsdflow_contract.manifest import work_key
from lsdflow_prepare.config import TargetVolume, TrainingVolume
from lsdflow_prepare.findings import Findings
from lsdflow_prepare.greyscale import to_u8
from lsdflow_prepare.inputs import Resolve, VolumeInputs, open_inputs
from lsdflow_prepare.placement import moved
from lsdflow_prepare.resampling import resampled_grey, resampled_ids
from lsdflow_prepare.statistics import LabelStatistics, RawStatistics
from lsdflow_prepare.survey import refuse_missing_chunks
from lsdflow_runtime.blocks import Block, BlockPlan
from lsdflow_runtime.engine.block_task import BlockFunction, BlockOutput, BlockTask, TaskOfStage
from lsdflow_runtime.io.volumes import OutputArray, open_volume

STAGE = "prepare"
CHUNK_VOX = 64
MEMORY_BYTES = 512 << 20
# Fewer blocks are processed in one process, because starting workers takes longer.
BLOCKS_FOR_WORKERS = 8

Content = Literal["raw", "labels"]
SPECS: Mapping[Content, tuple[ArraySpec, ...]] = {"raw": (RAW,), "labels": (LABELS, MASK)}
# Source values, float64 for the map to 8 bits, result; ids, states, comparisons and components.
BYTES_PER_VOXEL: Mapping[Content, int] = {"raw": 20, "labels": 40}


@dataclass(frozen=True)
class VolumePass(BlockTask):
    """A pass over a prepared volume.

    content      which arrays it writes: raw, or labels with mask
    volume_key   names the parameters and the sources of the volume
    """

    content: Content = "raw"
    volume_key: str = ""

    @property
    def container(self) -> Path:
        """The zarr container of the volume."""
        return next(iter(self.outputs.values())).path

    @property
    def has_whole_planes(self) -> bool:
        """True if each block covers the y,x plane of the volume."""
        return self.plan.grid_shape[1:] == (1, 1)

    @property
    def is_whole(self) -> bool:
        """True if every block is done and the arrays exist."""
        has_arrays = all(output.folder.is_dir() for output in self.outputs.values())
        return has_arrays and len(self.marks.done()) == len(self.plan)

    def provenance(self) -> dict[str, Any]:
        """The lsdflow block in the attributes of the arrays, with the key of the volume and its parameters."""
        return {**super().provenance(), "key": self.volume_key, "parameters": dict(self.config)}

    def identity(self, records: Mapping[int, Mapping[str, Any]]) -> str:
        """Hash of the checksums of all blocks, which identifies the content of the arrays."""
        return hash_of({str(number): record["checksums"] for number, record in sorted(records.items())})


def new_volume(of_stage: TaskOfStage, inputs: VolumeInputs) -> list[VolumePass]:
    """The passes that write the volume in a folder of its key."""
    sources = {name: hash_of(state) for name, state in inputs.states.items()}
    key = work_key(STAGE, parameters_of(inputs), sources)
    container = of_stage["layout"].result(STAGE, key) / f"{inputs.name}.zarr"
    return passes_of(of_stage, inputs, container, key, sources)


def parameters_of(inputs: VolumeInputs) -> dict[str, Any]:
    """The settings that determine the voxels of a volume."""
    return inputs.table.model_dump(mode="json", exclude={"name", "probability"})


def passes_of(
    of_stage: TaskOfStage, inputs: VolumeInputs, container: Path, volume_key: str, sources: Mapping[str, str]
) -> list[VolumePass]:
    """The passes of the volume in `container`; `sources`: a hash of the state of each source."""
    contents: list[Content] = ["raw"] if inputs.labels is None else ["raw", "labels"]
    return [_pass(of_stage, inputs, container, volume_key, sources, content) for content in contents]


def _pass(
    of_stage: TaskOfStage,
    inputs: VolumeInputs,
    container: Path,
    volume_key: str,
    sources: Mapping[str, str],
    content: Content,
) -> VolumePass:
    grid = inputs.output_geometry
    source = inputs.raw if content == "raw" or inputs.labels is None else inputs.labels.source
    needed = BYTES_PER_VOXEL[content] * math.prod(inputs.factors.coarser)
    chunk = chunk_edge(needed)
    decoded = None if source.chunk_shape_vox is None else inputs.factors.output_shape(source.chunk_shape_vox)
    edge = block_shape(grid.shape_vox, chunk, needed, decoded)
    plan = BlockPlan(grid.box, edge)
    z, y, x = (min(chunk, length) for length in grid.shape_vox)
    of_pass: TaskOfStage = {**of_stage, "compute": _compute_of_pass(of_stage["compute"], len(plan))}
    return VolumePass(
        **of_pass,
        key=volume_key[:8] + hash_of([volume_key, inputs.label, content])[8:],
        config=parameters_of(inputs),
        inputs=dict(sources),
        plan=plan,
        outputs={
            spec.dataset: OutputArray(container, spec, grid, grid.box, edge, 2, chunk_shape_vox=(z, y, x))
            for spec in SPECS[content]
        },
        open=lambda: _opened(inputs.name, inputs.table, inputs.resolve, content),
        label=f"{inputs.label} {content}",
        content=content,
        volume_key=volume_key,
    )


def pass_with_key(
    of_stage: TaskOfStage, volumes: Sequence[tuple[str, TrainingVolume | TargetVolume]], resolve: Resolve, key: str
) -> VolumePass | None:
    """The pass with a key, whose arrays the coordinator has created; None if there is none.

    The sources are opened, but their files are not examined.
    """
    folder = of_stage["layout"].result(STAGE, key)
    for name, table in volumes:
        found = provenance_of(folder / f"{name}.zarr")
        if not found:
            continue
        with open_volume_inputs(name, table, resolve) as inputs:
            sources = found.get("inputs", {})
            tasks = passes_of(of_stage, inputs, folder / f"{name}.zarr", str(found.get("key", "")), sources)
        for task in tasks:
            if task.key == key:
                return task
    return None


@contextmanager
def open_volume_inputs(name: str, table: TrainingVolume | TargetVolume, resolve: Resolve) -> Iterator[VolumeInputs]:
    """The open inputs of a volume. Raises its first problem."""
    findings = Findings()
    inputs = open_inputs(name, table, resolve, findings)
    if inputs is None:
        raise findings.errors[0]
    with inputs:
        yield inputs


def provenance_of(container: Path, grid: Geometry | None = None) -> dict[str, Any]:
    """The provenance of the arrays of a container (on this grid); empty if none can be read."""
    for spec in (spec for specs in SPECS.values() for spec in specs):
        try:
            volume = open_volume(container, spec.dataset)
        except (MissingInput, BadData, ConfigError):
            continue
        if grid is None or volume.geometry == grid:
            return volume.provenance
    return {}


def _compute_of_pass(compute: ComputeTable, blocks: int) -> ComputeTable:
    return compute.model_copy(update={"runner": "serial"}) if blocks < BLOCKS_FOR_WORKERS else compute


@contextmanager
def _opened(
    name: str, table: TrainingVolume | TargetVolume, resolve: Resolve, content: Content
) -> Iterator[BlockFunction]:
    """The block function of a pass, with its own open sources."""
    with open_volume_inputs(name, table, resolve) as inputs:
        yield lambda block: make_block(inputs, content, block)


def make_block(inputs: VolumeInputs, content: Content, block: Block) -> BlockOutput:
    """The arrays of a block, computed from the sources, and their statistics.

    Raises:
        BadData: problems that only the whole data show: NaN, values out of range, negative labels, missing chunks.
    """
    box = inputs.source_box(block.write, neighbours=content == "raw")
    first, factors = moved(box, inputs.region.begin_vox).begin_vox, inputs.factors
    _refuse_missing(inputs, content, box)
    if content == "raw":
        own = factors.own(block.write)
        grey = to_u8(inputs.read_raw(box), inputs.table.raw_range, f"{inputs.raw.where} {box}", own.slices(first))
        raw = RawStatistics()
        raw.add(grey.values, grey.clipped, own.size)
        values = resampled_grey(grey.values, first, block.write, factors)
        return BlockOutput({RAW.dataset: values}, facts=raw.facts())
    read = inputs.read_labels(box)
    ids, states = (resampled_ids(part, first, block.write, factors) for part in read)
    labels = LabelStatistics()
    labels.add(ids, states)
    return BlockOutput({LABELS.dataset: ids, MASK.dataset: states}, facts=labels.facts())


def _refuse_missing(inputs: VolumeInputs, content: Content, box: Box) -> None:
    if content == "raw":
        refuse_missing_chunks(inputs.raw, box, inputs.table.sparse)
        return
    for overlay in (inputs.labels, inputs.mask):
        if overlay is not None:
            z, y, x = overlay.placed.begin_vox
            own = overlay.covered.intersect(box).translate((-z, -y, -x))
            refuse_missing_chunks(overlay.source, own, inputs.table.sparse)


def chunk_edge(bytes_per_voxel: int) -> int:
    """Edge of the chunks of an output, voxels: CHUNK_VOX, halved until what is read for one chunk fits into memory."""
    edge = CHUNK_VOX
    while edge**3 * bytes_per_voxel > MEMORY_BYTES and edge > 1:
        edge //= 2
    return edge


def block_shape(shape_vox: Vox3, chunk_vox: int, bytes_per_voxel: int, source_chunk_vox: Vox3 | None = None) -> Vox3:
    """Shape of a block: multiples of `chunk_vox` that fit into memory, at least one chunk."""
    limit = max(MEMORY_BYTES // bytes_per_voxel, chunk_vox**3)
    whole = [_round_up(length, chunk_vox) for length in shape_vox]
    wanted = source_chunk_vox or (chunk_vox,) * 3
    edges = [min(_round_up(length, chunk_vox), most) for length, most in zip(wanted, whole, strict=True)]
    for axis in (0, 1, 2):
        while edges[0] * edges[1] * edges[2] > limit and edges[axis] > chunk_vox:
            edges[axis] = _round_up(edges[axis] // 2, chunk_vox)
    for axis in (2, 1):
        others = edges[0] * edges[1] * edges[2] // edges[axis]
        edges[axis] = max(edges[axis], min(whole[axis], limit // others // chunk_vox * chunk_vox))
    return (edges[0], edges[1], edges[2])


def _round_up(length: int, step: int) -> int:
    return max(step, -(-length // step) * step)


def bytes_needed(shape: Vox3, with_labels: bool) -> int:
    """Expected bytes on disk: raw is hardly compressible, labels compress to a twentieth."""
    voxels = int(np.prod(shape))
    return voxels + (voxels * 9 // 20 if with_labels else 0)
