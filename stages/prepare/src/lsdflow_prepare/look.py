"""Facts of the volumes before prepare has run, for the command `lsdflow`.

look_at, for `lsdflow init`: size, voxel size, grey values and labelled part, from samples of the voxels.
sample_of_target, for `lsdflow init`: the middle of a volume as prepare would write it, for a network to look at.
describe_volumes, for `lsdflow plan` and `validate`: the volumes that prepare will write, from metadata alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.arrays import LABELS, RAW
from lsdflow_contract.errors import ConfigError, MissingInput
from lsdflow_contract.geometry import Box, Vox3
from lsdflow_contract.hashing import hash_of
from lsdflow_prepare.config import PrepareConfig, TargetVolume
from lsdflow_prepare.findings import Findings
from lsdflow_prepare.inputs import Resolve, VolumeInputs, open_inputs
from lsdflow_prepare.report import VolumeReport, make_manifest
from lsdflow_prepare.statistics import LabelStatistics
from lsdflow_prepare.survey import read_until, sample_boxes
from lsdflow_prepare.volume_passes import STAGE, bytes_needed, make_block, open_volume_inputs, passes_of
from lsdflow_runtime.blocks import Block
from lsdflow_runtime.engine.block_task import TaskOfStage
from lsdflow_runtime.engine.planning import describe_outputs
from lsdflow_runtime.formats.detect import open_source

# This share of the voxels is outside of black and white, so that hot pixels do not determine the contrast.
OUTSIDE_PERCENT = 0.1
PERCENTILES = (1, 50, 99)
TARGET = "target"
EVERY_NTH_VOXEL = 4


def look_at(inputs: VolumeInputs, deadline: float) -> dict[str, Any]:
    """Facts of one volume; grey values and labels are read from as many blocks as the deadline allows."""
    boxes, whole = sample_boxes(inputs.region)
    values: list[NDArray[np.generic]] = []
    labels = LabelStatistics()

    def sample(box: Box) -> None:
        """Collect every n-th voxel of raw, and the statistics of the labels."""
        values.append(inputs.read_raw(box)[::EVERY_NTH_VOXEL, ::EVERY_NTH_VOXEL, ::EVERY_NTH_VOXEL].ravel())
        if inputs.labels is not None:
            block = inputs.read_labels(box)
            labels.add(block.ids, block.states)

    complete = read_until(boxes, deadline, sample) and whole
    grey = np.concatenate(values)
    return {
        "where": inputs.raw.where,
        "format": inputs.raw.form,
        "dtype": str(inputs.raw.dtype),
        "shape_vox": list(inputs.region.shape_vox),
        "voxel_size_nm": list(inputs.geometry.voxel_size_nm),
        "grey": _grey(grey),
        "grey_percentiles": _percentiles(grey),
        "whole": complete,
        "labels": _labels(inputs, labels),
        "labels_beside": _labels_beside(inputs),
    }


def _grey(values: NDArray[Any]) -> list[float]:
    """Black and white of the values (integers for integers); NaN is ignored."""
    finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values
    if finite.size == 0:
        return []
    low, high = np.percentile(finite, (OUTSIDE_PERCENT, 100 - OUTSIDE_PERCENT))
    return [float(low), float(high)] if values.dtype.kind == "f" else [float(np.floor(low)), float(np.ceil(high))]


def _percentiles(values: NDArray[Any]) -> dict[str, float]:
    """Percentiles of the values, by which volumes are compared with those that a network was trained on."""
    finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values
    return {str(share): float(np.percentile(finite, share)) for share in PERCENTILES} if finite.size else {}


def sample_of_target(table: TargetVolume | None, resolve: Resolve, shape_vox: Vox3) -> NDArray[np.uint8]:
    """The middle of the target as prepare writes it, u8 (z, y, x): `shape_vox`, or less where the volume ends.

    Raises the first problem of the volume.
    """
    if table is None:
        raise ConfigError("there is no target volume", where=STAGE, fix="give [prepare.target]")
    with open_volume_inputs(TARGET, table, resolve) as inputs:
        whole = inputs.output_geometry.shape_vox
        z, y, x = (min(n, wanted) for n, wanted in zip(whole, shape_vox, strict=True))
        box = Box(((whole[0] - z) // 2, (whole[1] - y) // 2, (whole[2] - x) // 2), (z, y, x))
        return np.asarray(make_block(inputs, "raw", Block(0, (0, 0, 0), box, box)).arrays[RAW.dataset])


def _labels(inputs: VolumeInputs, found: LabelStatistics) -> dict[str, Any] | None:
    if inputs.labels is None:
        return None
    return {
        "where": inputs.labels.source.where,
        "neurons": found.neurons,
        "neurons_below_1000_vox": sum(size < 1000 for label, size in found.sizes.items() if label),
        "labelled_fraction": 1 - found.sizes.get(0, 0) / max(found.voxels, 1),
        "trained_fraction": found.trained_fraction,
    }


def _labels_beside(inputs: VolumeInputs) -> bool:
    """True if the container of a target without configured truth has labels at the usual path."""
    if inputs.labels is not None or not isinstance(inputs.table, TargetVolume):
        return False
    try:
        with open_source(inputs.resolve(inputs.table.raw), LABELS.dataset) as source:
            return source.where != inputs.raw.where
    except (MissingInput, ConfigError):
        return False


def describe_volumes(of_stage: TaskOfStage, table: PrepareConfig, resolve: Resolve) -> None:
    """Write the volumes that can be opened, without voxels, and a manifest that lists them, for `lsdflow plan`.

    Every voxel of a label volume counts as labelled, because the true number requires reading the volume. Raises the
    first problem if no volume can be opened.
    """
    layout, findings = of_stage["layout"], Findings()
    reports, outputs, size = {}, {}, 0
    for name, volume in table.volumes():
        inputs = open_inputs(name, volume, resolve, findings)
        if inputs is None:
            continue
        label = inputs.label
        with inputs:
            made, key = inputs.output_geometry, hash_of([label, volume.model_dump(mode="json")])
            outputs[label] = layout.result(STAGE, key) / f"{name}.zarr"
            for task in passes_of(of_stage, inputs, outputs[label], key, {}):
                describe_outputs(task)
            size += bytes_needed(made.shape_vox, inputs.labels is not None)
            reports[label] = VolumeReport(
                key=key,
                identity={},
                labelled_voxels=made.box.size if inputs.labels else 0,
                facts={"shape_vox": list(made.shape_vox), "voxel_size_nm": list(made.voxel_size_nm)},
                warnings=[],
            )
    if not reports:
        raise findings.errors[0] if findings.errors else ConfigError("no volume is given", where=STAGE)
    opened = [volume for volume in table.training if f"training/{volume.name}" in reports]
    table = table.model_copy(update={"training": opened, "target": table.target if TARGET in reports else None})
    manifest = make_manifest(layout.root, table, reports, outputs, warnings=[], seconds=0.0)
    manifest.facts["bytes_expected"] = size
    manifest.write(layout)
