"""BlockTask: the description of a pass for the engine; and the commit of one block.

Order of a commit (a block is done only after the last step, and every step can be repeated):
    0. nothing, if another attempt has finished the block
    1. arrays: whole chunks are written, read back, compared, and flushed to disk
    2. rows of the block (graph, overlaps), replaced as one file per collection
    3. the done mark with the checksums
"""

from __future__ import annotations

import logging
import os
import resource
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypedDict

import numpy.typing as npt

from lsdflow_command.stage import load_stage
from lsdflow_contract import CONTRACT_VERSION
from lsdflow_contract.errors import InternalError, StorageFailure
from lsdflow_contract.experiment import ComputeTable, Experiment, load_experiment
from lsdflow_contract.graph import NODES_COLLECTION, Overlaps, RagEdges, RagNodes, edges_collection, overlaps_collection
from lsdflow_contract.hashing import hash_of, hash_of_array
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import JOB_VARIABLE, Writer
from lsdflow_runtime.blocks import Block, BlockPlan
from lsdflow_runtime.io.volumes import OutputArray, Volume
from lsdflow_runtime.store.done_marks import BlockStore
from lsdflow_runtime.store.rag_store import RagStore, checksum_of_edges, checksum_of_nodes, checksum_of_overlaps
from lsdflow_runtime.store.stores import Store, open_store

LOG = logging.getLogger("lsdflow.blocks")


@dataclass(frozen=True)
class BlockOutput:
    """The return value of the pure block function: arrays of the write box, rows for the store, and facts."""

    arrays: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    nodes: RagNodes | None = None
    edges: Mapping[str, RagEdges] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    overlaps: Mapping[str, Overlaps] = field(default_factory=dict)


BlockFunction = Callable[[Block], BlockOutput]


@dataclass(frozen=True)
class Share:
    """Worker processes of this machine, and how many blocks each of them has at once."""

    processes: int
    blocks_at_once: int = 1


def _no_workers() -> None:
    raise InternalError("this pass is processed without worker processes")


@dataclass(frozen=True)
class BlockTask:
    """A pass of a stage over its blocks.

    `open` is a context manager that opens inputs and loads networks ONCE per worker and yields the block function.
    `inputs` are identities (manifests, bundles); `key` identifies parameters + inputs (contract's manifest.work_key).
    `label` names the pass if a stage has several.
    `may_have_holes`: the pass may finish without its failed blocks if the settings accept that. Passes that read its
    result must leave these blocks out, and list `accepted.result_key` in their inputs.
    `share` gives the worker processes of this machine, and how many blocks each of them has at once: then one is
    computed while others are read and committed, each in its own thread (none: compute.workers, one block each).
    `worker`: body of a worker process on this machine; it is pickled. `overrides`: of the experiment file, for workers
    of other jobs.
    """

    stage: str
    store: Store
    layout: ExperimentLayout
    compute: ComputeTable
    key: str
    config: Mapping[str, Any]
    inputs: Mapping[str, str]
    plan: BlockPlan
    outputs: Mapping[str, OutputArray]
    open: Callable[[], AbstractContextManager[BlockFunction]]
    unit: str = "block"
    label: str = ""
    may_have_holes: bool = False
    share: Callable[[], Share] | None = None
    worker: Callable[[], None] = _no_workers
    overrides: tuple[str, ...] = ()

    @property
    def shared(self) -> Share:
        """The processes of this machine, and the blocks that each has at once."""
        return Share(self.compute.workers) if self.share is None else self.share()

    @cached_property
    def marks(self) -> BlockStore:
        """Done marks of this pass."""
        return self.store.blocks(self.stage, self.key, self.plan)

    @cached_property
    def rag_store(self) -> RagStore:
        """The experiment's graph store."""
        return self.store.rag

    def identity(self, records: Mapping[int, Mapping[str, Any]]) -> str:
        """Identity of the result: a hash of the records of all finished blocks; a missing block changes it."""
        checksums = [records[n]["checksums"] if n in records else None for n in range(len(self.plan))]
        return hash_of([self.key, checksums])

    def provenance(self) -> dict[str, Any]:
        """The lsdflow block in the attributes of every array that this pass writes."""
        return {
            "contract": CONTRACT_VERSION,
            "written_by": Writer.of(self.stage).model_dump(),
            "key": self.key,
            "config_hash": hash_of(dict(self.config)),
            "inputs": dict(self.inputs),
        }

    def create_outputs(self) -> None:
        """Create the output arrays. OutputConflict (73) if other data is at the path of one.

        If an array had been deleted and is created again, the done marks are removed.
        """
        self.store.begin(self.stage, self.key)
        made = [output.create(self.provenance()) for output in self.outputs.values()]
        for output in self.outputs.values():
            output.write_groups()
        if any(made):
            self.marks.remove_all()


class TaskOfStage(TypedDict):
    """The fields of a BlockTask that depend on the stage and the experiment only."""

    stage: str
    store: Store
    layout: ExperimentLayout
    compute: ComputeTable
    worker: Callable[[], None]
    overrides: tuple[str, ...]


def task_of_stage(stage: str, experiment: Experiment) -> TaskOfStage:
    """The fields of the passes of an installed stage; workers load the stage and the experiment file themselves."""
    return {
        "stage": stage,
        "store": open_store(experiment),
        "layout": experiment.layout,
        "compute": experiment.compute,
        "worker": partial(_process_stage, stage, experiment.path, experiment.overrides),
        "overrides": experiment.overrides,
    }


def _process_stage(stage: str, path: Path, overrides: Sequence[str]) -> None:
    load_stage(stage).worker(load_experiment(path, overrides))


def outputs_of(passes: Sequence[BlockTask]) -> dict[str, str]:
    """The arrays of passes for their manifest: paths relative to the experiment, by name of the output."""
    return {
        name: str(output.folder.relative_to(task.layout.root))
        for task in passes
        for name, output in task.outputs.items()
    }


def commit_block(
    task: BlockTask, opened: Mapping[str, Volume], block: Block, output: BlockOutput, seconds: float
) -> None:
    """Write the output of a block, in the order of the module's docstring."""
    if set(output.arrays) != set(opened):
        raise InternalError("the block function made other arrays", wanted=sorted(opened), found=sorted(output.arrays))
    if task.marks.is_done(block.number):
        # Another worker got this block because this one seemed lost. It wrote the same bits.
        LOG.warning("%s was finished by another attempt meanwhile; nothing is written", block)
        return
    checksums = {name: _write_checked(opened[name], block, output.arrays[name]) for name in sorted(opened)}
    checksums |= _write_rows(task, block, output)
    LOG.debug("%s: %s in %.2f s", task.stage, block, seconds)
    record = {
        "block": block.number,
        "checksums": checksums,
        "facts": dict(output.facts),
        "seconds": seconds,
        "finished": time.time(),
        "host": socket.gethostname(),
        "job": os.environ.get(JOB_VARIABLE, ""),
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    task.marks.mark_done(block.number, record)


def _write_rows(task: BlockTask, block: Block, output: BlockOutput) -> dict[str, str]:
    """Write the rows of the block to the store; returns their checksums by collection."""
    checksums = {}
    if output.nodes is not None:
        task.rag_store.write_nodes(task.key, block.number, output.nodes)
        checksums[NODES_COLLECTION] = checksum_of_nodes(output.nodes)
    for merge_function, edges in sorted(output.edges.items()):
        task.rag_store.write_edges(task.key, merge_function, block.number, edges)
        checksums[edges_collection(merge_function)] = checksum_of_edges(edges)
    for region, overlaps in sorted(output.overlaps.items()):
        task.rag_store.write_overlaps(task.key, region, block.number, overlaps)
        checksums[overlaps_collection(region)] = checksum_of_overlaps(overlaps)
    return checksums


def _write_checked(volume: Volume, block: Block, values: npt.NDArray[Any]) -> str:
    if values.dtype != volume.dtype or values.shape[-3:] != block.write.shape_vox:
        found = (values.dtype, values.shape)
        raise InternalError(
            "wrong block array", where=volume.where, wanted=(volume.dtype, block.write.shape_vox), found=found
        )
    volume.write(block.write, values)
    checksum = hash_of_array(values)
    if hash_of_array(volume.read(block.write)) != checksum:
        raise StorageFailure("what was read back is not what was written", where=f"{volume.where} {block}")
    volume.make_durable(block.write)
    return checksum
