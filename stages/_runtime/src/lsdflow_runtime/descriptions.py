"""What a pass would leave, without voxels: the metadata of its arrays and a manifest, for stages that are planned next.

They are written into `Experiment.descriptions`, a folder of its own, and read by the same functions as real results.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lsdflow_contract.arrays import ArraySpec
from lsdflow_contract.errors import InternalError
from lsdflow_contract.manifest import Manifest, Writer
from lsdflow_runtime.block_task import BlockTask, outputs_of

DESCRIBED = "described"
# Ids shrink to a twentieth of their 8 bytes; grey values and affinities hardly.
ID_BYTES_PER_VOXEL = 8 / 20


def expected_bytes(task: BlockTask) -> float:
    """Bytes that the arrays of a pass will take on the disk, as those of other volumes did."""
    return sum(_bytes_per_voxel(output.spec) * output.box.size for output in task.outputs.values())


def _bytes_per_voxel(spec: ArraySpec) -> float:
    return ID_BYTES_PER_VOXEL if spec.dtype == "uint64" else max(1, spec.channels) * np.dtype(spec.dtype).itemsize


def describe_outputs(task: BlockTask) -> None:
    """Make the arrays of a pass without any chunk."""
    _require_descriptions(task)
    for output in task.outputs.values():
        output.create(task.provenance())
        output.write_groups()


def describe_manifest(passes: Sequence[BlockTask]) -> None:
    """Write the manifest that the passes would leave, as far as it is known before a run."""
    task = passes[-1]
    _require_descriptions(task)
    Manifest(
        writer=Writer.of(task.stage),
        key=task.key,
        config=dict(task.config),
        inputs=dict(task.inputs),
        outputs=outputs_of(passes),
        facts={"bytes_expected": expected_bytes(task)},
        identity=f"{DESCRIBED} {task.key}",
    ).write(task.experiment.layout)


def _require_descriptions(task: BlockTask) -> None:
    """InternalError (70) in the experiment's own folder, where descriptions would be taken for results."""
    if task.experiment.descriptions is None:
        raise InternalError("descriptions belong into a folder of their own", where=task.experiment.layout.root)
