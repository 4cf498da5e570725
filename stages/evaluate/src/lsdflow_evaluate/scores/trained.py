"""How much of the scored region was trained on. Such scores say how well labels were learnt, not what to expect
elsewhere.

It is known only for networks that this experiment trained, and for training volumes whose raw comes from the same files
as the target. Sections that the training held out are not trained.
"""

from __future__ import annotations

import logging
from typing import Any

from lsdflow_contract.arrays import LABELS, RAW
from lsdflow_contract.checkpoint import bundle_folder, bundle_iterations, read_bundle
from lsdflow_contract.errors import StageError
from lsdflow_contract.geometry import Box
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import Manifest, read_manifest
from lsdflow_runtime.io.volumes import Volume, open_volume

LOG = logging.getLogger("lsdflow.evaluate")
TRAINING_STAGES = ("train-acrlsd", "train-lsd")


def trained_part(layout: ExperimentLayout, region: Box) -> dict[str, Any]:
    """The share of `region` (voxels of the target) that was trained on, and the volumes; empty if that is not known.

    Where volumes overlap, voxels are counted more than once, up to the whole region. Scores need neither the training
    nor its volumes: if these are missing or damaged, nothing is known and nothing is raised.
    """
    try:
        return _trained_part(layout, region)
    except StageError as error:
        LOG.info("whether the truth was trained on is not known: %s (%s)", error.what, error.where)
        return {}


def _trained_part(layout: ExperimentLayout, region: Box) -> dict[str, Any]:
    training = _training_that_predicted(layout)
    if training is None:
        return {}
    held_out, target = training.facts.get("validation_fraction"), open_volume(layout.target_volume, RAW.dataset)
    if held_out is None:
        return {}
    voxels = {
        name: _trained_labels(layout, name, held_out, target).intersect(region).size
        for name in sorted(read_manifest(layout, "prepare").outputs)
        if name.startswith("training/")
    }
    found = {name.removeprefix("training/"): count for name, count in voxels.items() if count}
    return {"share": min(1.0, sum(found.values()) / region.size), "volumes": list(found)}


def _training_that_predicted(layout: ExperimentLayout) -> Manifest | None:
    """The manifest of the training whose network gave the affinities; None for a network from elsewhere."""
    if not layout.manifest("predict").exists():
        return None
    used = read_manifest(layout, "predict").inputs.get("network")
    for stage in TRAINING_STAGES:
        checkpoints = layout.checkpoints(stage)
        bundles = (read_bundle(bundle_folder(checkpoints, n)) for n in bundle_iterations(checkpoints))
        if layout.manifest(stage).exists() and used in {bundle.weights_sha256 for bundle in bundles}:
            return read_manifest(layout, stage)
    return None


def _trained_labels(layout: ExperimentLayout, name: str, held_out: float, target: Volume) -> Box:
    """The trained labels of a volume in voxels of the target; empty for a volume of other files, or another grid."""
    container, nothing = layout.prepared_volume(name), Box((0, 0, 0), (0, 0, 0))
    raw, labels = open_volume(container, RAW.dataset), open_volume(container, LABELS.dataset).geometry
    files, of_target = (volume.provenance.get("inputs", {}).get("raw") for volume in (raw, target))
    if files is None or files != of_target or labels.voxel_size_nm != target.geometry.voxel_size_nm:
        return nothing
    depth, height, width = labels.shape_vox
    trained = depth - (max(1, round(depth * held_out)) if held_out > 0 else 0)
    return Box(labels.voxel_offset_from(target.geometry, container), (trained, height, width))
