"""The gunpowder pipeline of LSD and affinity training: from volumes to one augmented patch with its targets.

    per volume:  ZarrSource - Normalize - RestrictMask - Pad - RandomLocation
    then:        RandomProvider - ElasticAugment 1 - SimpleAugment - ElasticAugment 2 - IntensityAugment
                 - CompactIds - ApplyBackground - GrowBoundary - AddLsdTargets
                 - TrainedVoxels - AddAffinities - BalanceLabels - IntensityScaleShift - PreCache

All regions are in voxels: gunpowder's coordinates are whole numbers, and voxel sizes (after expansion, say) need not
be.  The true voxel size is given to the one node that needs it, AddLsdTargets.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import gunpowder as gp

from lsdflow_contract.arrays import LABELS, MASK, RAW
from lsdflow_contract.geometry import Box, Vox3
from lsdflow_training.augmentation import elastic_augment
from lsdflow_training.location import RandomLocation
from lsdflow_training.lsd_node import AddLsdTargets
from lsdflow_training.nodes import AllTrained, ApplyBackground, CompactIds, GrowBoundary, RestrictMask, TrainedVoxels
from lsdflow_training.recipe import Augmentation, Recipe, Targets
from lsdflow_training.volumes import Source as Source  # noqa: PLC0414 (the trainer takes it from here)
from lsdflow_training.volumes import TrainingVolume


@dataclass(frozen=True)
class Keys:
    """The arrays of a batch."""

    raw: gp.ArrayKey
    labels: gp.ArrayKey
    mask: gp.ArrayKey
    trained: gp.ArrayKey
    lsds: gp.ArrayKey
    lsds_weight: gp.ArrayKey
    affs: gp.ArrayKey
    affs_mask: gp.ArrayKey
    affs_weight: gp.ArrayKey


def make_keys() -> Keys:
    """The keys by the names that show up in gunpowder's messages."""
    names = ("RAW", "NEURON_IDS", "LABELS_MASK", "TRAINED", "GT_LSDS", "LSDS_WEIGHT", "GT_AFFS", "AFFS_MASK",
             "AFFS_WEIGHT")  # fmt: skip
    return Keys(*(gp.ArrayKey(name) for name in names))


def batch_request(keys: Keys, recipe: Recipe, at_vox: Vox3 | None = None) -> gp.BatchRequest:
    """Request for one patch: raw of the full size, everything else of the output size, centred.

    at_vox: begin of the output in the volume (validation); None for a random location.
    """
    raw, output = gp.Coordinate(recipe.shapes.raw_vox), gp.Coordinate(recipe.shapes.output_vox)
    request = gp.BatchRequest()
    wanted = [keys.labels, keys.mask]
    wanted += [keys.lsds, keys.lsds_weight] if recipe.targets.lsds else []
    wanted += [keys.affs, keys.affs_weight] if recipe.targets.affinities else []
    begin = gp.Coordinate((0, 0, 0) if at_vox is None else at_vox)
    request[keys.raw] = gp.ArraySpec(roi=gp.Roi(begin - (raw - output) / 2, raw))
    for key in wanted:
        request[key] = gp.ArraySpec(roi=gp.Roi(begin, output))
    return request


def training_pipeline(keys: Keys, recipe: Recipe, sources: Sequence[Source]) -> gp.Pipeline:
    """Random augmented patches from all volumes."""
    padding = labels_padding_vox(recipe)
    branches = tuple(
        volume_source(keys, source.volume, padding, outside=source.validation)
        + RandomLocation(recipe.min_masked, keys.mask, recipe.shapes.output_vox, source.volume.name)
        for source in sources
    )
    pipeline = branches + gp.RandomProvider(probabilities=[source.probability for source in sources])
    for node in augmentation_nodes(keys, recipe.augmentation):
        pipeline += node
    return target_nodes(pipeline, keys, recipe.targets, recipe.augmentation.anisotropic)


def validation_pipeline(keys: Keys, recipe: Recipe, source: Source) -> gp.Pipeline:
    """Patches of one volume at given places, not augmented, with only the validation slab unmasked."""
    pipeline = volume_source(keys, source.volume, None, inside=source.validation)
    return target_nodes(pipeline, keys, recipe.targets, recipe.augmentation.anisotropic)


def volume_source(
    keys: Keys, volume: TrainingVolume, padding_vox: Vox3 | None, inside: Box | None = None, outside: Box | None = None
) -> gp.Pipeline:
    """One volume: raw padded without limit; labels and mask by padding_vox (None: without limit) with 0 = ignore."""
    mask_box = volume.mask or volume.labels
    specs = {
        keys.raw: _spec(volume.raw, interpolatable=True),
        keys.labels: _spec(volume.labels, interpolatable=False),
        keys.mask: _spec(mask_box, interpolatable=False),
    }
    datasets = {keys.raw: RAW.dataset, keys.labels: LABELS.dataset}
    if volume.mask is not None:
        datasets[keys.mask] = MASK.dataset
    given = {key: specs[key] for key in datasets}
    pipeline = gp.ZarrSource(str(volume.path), datasets, given)
    if volume.mask is None:
        pipeline += AllTrained(keys.mask, specs[keys.mask])
    pad = None if padding_vox is None else gp.Coordinate(padding_vox)
    return (
        pipeline
        + gp.Normalize(keys.raw)
        + RestrictMask(keys.mask, inside=inside, outside=outside)
        + gp.Pad(keys.raw, None)
        + gp.Pad(keys.labels, pad)
        + gp.Pad(keys.mask, pad)
    )


def augmentation_nodes(keys: Keys, how: Augmentation) -> list[gp.BatchFilter]:
    """The four augmentations, in the published order."""
    low, high = how.intensity_scale
    down, up = how.intensity_shift
    return [
        elastic_augment(how, jitter=False),
        gp.SimpleAugment(transpose_only=[1, 2] if how.anisotropic else None),
        elastic_augment(how, jitter=True),
        gp.IntensityAugment(keys.raw, low, high, down, up),
    ]


def target_nodes(pipeline: gp.Pipeline, keys: Keys, targets: Targets, anisotropic: bool) -> gp.Pipeline:
    """Boundaries, LSDs with weights, affinities with balanced weights, raw to [-1, 1]."""
    pipeline = pipeline + CompactIds(keys.labels) + ApplyBackground(keys.labels, keys.mask)
    if targets.grow_boundary_vox:
        pipeline += GrowBoundary(keys.labels, keys.mask, targets.grow_boundary_vox, only_xy=anisotropic)
    if targets.lsds:
        pipeline += AddLsdTargets(
            keys.labels,
            keys.lsds,
            keys.lsds_weight,
            keys.mask,
            sigma_nm=targets.sigma_nm,
            voxel_size_nm=targets.voxel_size_nm,
            downsample=targets.lsd_downsample,
            train_background=targets.train_background,
            engine=targets.lsd_engine,
        )
    if targets.affinities:
        pipeline += TrainedVoxels(keys.mask, keys.trained)
        pipeline += gp.AddAffinities(
            [list(offset) for offset in targets.neighborhood],
            keys.labels,
            keys.affs,
            labels_mask=keys.trained,
            affinities_mask=keys.affs_mask if targets.balance_labels else keys.affs_weight,
        )
        if targets.balance_labels:
            pipeline += gp.BalanceLabels(keys.affs, keys.affs_weight, mask=keys.affs_mask)
    return pipeline + gp.IntensityScaleShift(keys.raw, 2, -1)


def labels_padding_vox(recipe: Recipe) -> Vox3:
    """Padding of labels and mask: half the largest region of labels that augmentation can ask for.

    So any voxel of the volume can be the centre of a patch.  A turn by an angle grows a region by at most sqrt(2) in
    the two axes turned; transposes may exchange the axes before the other turn.
    """
    how = recipe.augmentation
    shape = [n + 2 * c for n, c in zip(recipe.shapes.output_vox, label_context_vox(recipe.targets), strict=True)]
    margin = [2 * math.ceil(4 * j) + 2 * how.max_misalign_vox + 4 for j in how.jitter_sigma_vox]
    if how.elastic_probability == 0:
        margin = [0, 0, 0]
    longest = max(shape[1:]) if how.anisotropic else max(shape)
    turned = longest * (math.sqrt(2.0) if how.rotation_max_rad and how.elastic_probability else 1.0) ** 2
    z = (shape[0] if how.anisotropic else turned) + margin[0]
    return math.ceil(z / 2), math.ceil((turned + margin[1]) / 2), math.ceil((turned + margin[2]) / 2)


def label_context_vox(targets: Targets) -> Vox3:
    """Labels needed around the output, each side: 3 sigma for LSDs, 1 for affinities and grown boundaries."""
    z, y, x = 1 + targets.grow_boundary_vox, 1 + targets.grow_boundary_vox, 1 + targets.grow_boundary_vox
    if not targets.lsds:
        return z, y, x
    sizes = zip((z, y, x), targets.sigma_nm, targets.voxel_size_nm, strict=True)
    z, y, x = (around + math.ceil(3 * sigma / size) for around, sigma, size in sizes)
    return z, y, x


def _spec(box: Box, interpolatable: bool) -> gp.ArraySpec:
    return gp.ArraySpec(
        roi=gp.Roi(box.begin_vox, box.shape_vox), voxel_size=gp.Coordinate((1, 1, 1)), interpolatable=interpolatable
    )


def quiet_gunpowder() -> None:
    """Hide gunpowder's notice that ElasticAugment is deprecated: its successor asks for regions outside of volumes."""
    warnings.filterwarnings("ignore", message="ElasticAugment is deprecated", category=DeprecationWarning)
