"""The gunpowder pipeline of LSD and affinity training: from volumes to one augmented patch with its targets.

    per volume:  VolumeSource - RandomLocation
    then:        RandomProvider - ElasticAugment 1 - SimpleAugment - ElasticAugment 2
                 - (Blur - Gamma) - IntensityAugment - (NoiseAugment - DamagedSections)
                 - CompactIds - ApplyBackground - GrowBoundary - AddLsdTargets
                 - TrainedVoxels - AddAffinities - BalanceLabels - IntensityScaleShift - PreCache

Nodes in parentheses are present only if an option requires them.

All regions are in voxels, because gunpowder's coordinates are integers and voxel sizes (for example after expansion)
may be fractions.  Only one node needs the true voxel size, AddLsdTargets, and gets it as an argument.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import gunpowder as gp

from lsdflow_contract.geometry import Vox3
from lsdflow_training.augmentation.nodes import elastic_augment, intensity_nodes
from lsdflow_training.data.nodes import ApplyBackground, CompactIds, GrowBoundary, TrainedVoxels, VolumeSource
from lsdflow_training.data.random_location import Places, RandomLocation
from lsdflow_training.data.volume_arrays import Name, VolumeArrays, open_arrays
from lsdflow_training.data.volumes import Source
from lsdflow_training.settings import Augmentation, Targets, TrainingSettings
from lsdflow_training.targets.lsd_node import AddLsdTargets


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

    @property
    def read(self) -> dict[gp.ArrayKey, Name]:
        """The arrays that are read, by their names in a volume."""
        return {self.raw: "raw", self.labels: "labels", self.mask: "mask"}


def make_keys() -> Keys:
    """The keys, with the names that appear in gunpowder's messages."""
    names = ("RAW", "NEURON_IDS", "LABELS_MASK", "TRAINED", "GT_LSDS", "LSDS_WEIGHT", "GT_AFFS", "AFFS_MASK",
             "AFFS_WEIGHT")  # fmt: skip
    return Keys(*(gp.ArrayKey(name) for name in names))


def batch_request(keys: Keys, settings: TrainingSettings, at_vox: Vox3 | None = None) -> gp.BatchRequest:
    """Request for one patch: raw of full size, all other arrays of the output size, centred.

    at_vox: begin of the output in the volume (validation); None for a random location.
    """
    raw, output = gp.Coordinate(settings.shapes.raw_vox), gp.Coordinate(settings.shapes.output_vox)
    request = gp.BatchRequest()
    wanted = [keys.labels, keys.mask]
    wanted += [keys.lsds, keys.lsds_weight] if settings.targets.lsds else []
    wanted += [keys.affs, keys.affs_weight] if settings.targets.affinities else []
    begin = gp.Coordinate((0, 0, 0) if at_vox is None else at_vox)
    request[keys.raw] = gp.ArraySpec(roi=gp.Roi(begin - (raw - output) / 2, raw))
    for key in wanted:
        request[key] = gp.ArraySpec(roi=gp.Roi(begin, output))
    return request


def training_pipeline(keys: Keys, settings: TrainingSettings, sources: Sequence[Source]) -> gp.Pipeline:
    """Random augmented patches from all volumes, of which those that fit are read into memory now."""
    padding = labels_padding_vox(settings)
    branches = tuple(
        VolumeSource(keys.read, arrays, padding)
        + RandomLocation(
            Places(arrays, padding, settings.min_masked, settings.shapes.output_vox, settings.targets.sparse_labels),
            keys.mask,
        )
        for arrays in open_arrays(sources, settings.targets)
    )
    pipeline = branches + gp.RandomProvider(probabilities=[source.probability for source in sources])
    for node in augmentation_nodes(keys, settings.augmentation):
        pipeline += node
    return target_nodes(pipeline, keys, settings.targets, settings.augmentation.anisotropic)


def validation_pipeline(keys: Keys, settings: TrainingSettings, source: Source) -> gp.Pipeline:
    """Patches of one volume at given places, not augmented; everything outside the validation slab is masked out."""
    arrays = VolumeArrays(source.volume, settings.targets, inside=source.validation)
    pipeline = gp.Pipeline(VolumeSource(keys.read, arrays, None))
    return target_nodes(pipeline, keys, settings.targets, settings.augmentation.anisotropic)


def augmentation_nodes(keys: Keys, augmentation: Augmentation) -> list[gp.BatchFilter]:
    """The four published augmentations in their order, and those that are enabled."""
    return [
        elastic_augment(augmentation, jitter=False),
        gp.SimpleAugment(transpose_only=[1, 2] if augmentation.anisotropic else None),
        elastic_augment(augmentation, jitter=True),
        *intensity_nodes(keys.raw, augmentation),
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
            # Far neighbours differ more often than near ones: balance three channels at a time, as published.
            slab = (3, -1, -1, -1) if len(targets.neighborhood) > 3 else None
            pipeline += gp.BalanceLabels(keys.affs, keys.affs_weight, mask=keys.affs_mask, slab=slab)
    return pipeline + gp.IntensityScaleShift(keys.raw, 2, -1)


def labels_padding_vox(settings: TrainingSettings) -> Vox3:
    """Padding of labels and mask: half the largest region of labels that augmentation can request.

    So any voxel of the volume can be the centre of a patch.  A rotation enlarges a region by at most sqrt(2) in its two
    axes; a transpose may exchange the axes before the second rotation.
    """
    augmentation = settings.augmentation
    shape = [n + 2 * c for n, c in zip(settings.shapes.output_vox, label_context_vox(settings.targets), strict=True)]
    far = misalignment_vox(augmentation, max(shape))
    aside = (min(far, 1), far, far)  # sections do not move along z; the 1 keeps the places of earlier trainings
    margin = [2 * math.ceil(4 * j) + 2 * a + 4 for j, a in zip(augmentation.jitter_sigma_vox, aside, strict=True)]
    if augmentation.elastic_probability == 0:
        margin = [0, 0, 0]
    longest = max(shape[1:]) if augmentation.anisotropic else max(shape)
    rotated = augmentation.rotation_max_rad and augmentation.elastic_probability
    turned = longest * (math.sqrt(2.0) if rotated else 1.0) ** 2
    z = (shape[0] if augmentation.anisotropic else turned) + margin[0]
    return math.ceil(z / 2), math.ceil((turned + margin[1]) / 2), math.ceil((turned + margin[2]) / 2)


def misalignment_vox(augmentation: Augmentation, sections: int) -> int:
    """How far sections can be displaced: shifts add up as a random walk, of which five sigma are sufficient."""
    if augmentation.max_misalign_vox <= 1:
        return augmentation.max_misalign_vox
    walk = augmentation.max_misalign_vox * math.sqrt(augmentation.shift_probability * sections / 3)
    return augmentation.max_misalign_vox + math.ceil(5 * walk)


def label_context_vox(targets: Targets) -> Vox3:
    """Labels needed on each side of the output: 3 sigma for LSDs, the longest offset for affinities, and boundaries."""
    offsets = targets.neighborhood if targets.affinities else ()
    reach = [max([1, *(abs(offset[axis]) for offset in offsets)]) for axis in range(3)]
    lsds = [1, 1, 1]
    if targets.lsds:
        sizes = zip(targets.sigma_nm, targets.voxel_size_nm, strict=True)
        lsds = [1 + math.ceil(3 * sigma / size) for sigma, size in sizes]
    z, y, x = (targets.grow_boundary_vox + max(far, wide) for far, wide in zip(reach, lsds, strict=True))
    return z, y, x
