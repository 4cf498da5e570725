"""The real gunpowder pipeline on a micro volume: every node is there, and masks, ids and targets are right."""

from __future__ import annotations

import numpy as np
import pytest

gp = pytest.importorskip("gunpowder")

from lsdflow_contract.arrays import MASK, MaskState  # noqa: E402
from lsdflow_contract.errors import BadData, ConfigError  # noqa: E402
from lsdflow_training.data.batches import batch_seed, batch_stream, seeded  # noqa: E402
from lsdflow_training.data.pipeline import (  # noqa: E402
    Keys,
    batch_request,
    labels_padding_vox,
    make_keys,
    training_pipeline,
    validation_pipeline,
)
from lsdflow_training.testing import write_zarr2  # noqa: E402

PUBLISHED = [
    "VolumeSource", "RandomLocation", "RandomProvider", "ElasticAugment",
    "SimpleAugment", "ElasticAugment", "IntensityAugment", "CompactIds", "ApplyBackground", "GrowBoundary",
    "AddLsdTargets", "TrainedVoxels", "AddAffinities", "BalanceLabels", "IntensityScaleShift",
]  # fmt: skip


def node_names(provider) -> list[str]:
    names = [name for upstream in provider.get_upstream_providers()[:1] for name in node_names(upstream)]
    return [*names, type(provider).__name__]


def batches(prepared, count: int, keys: Keys | None = None, first: int = 1, workers: int = 0):
    keys = keys or make_keys()
    settings = prepared.settings
    pipeline = training_pipeline(keys, settings, prepared.sources)
    request = batch_request(keys, settings)
    with batch_stream(pipeline, request, seed=0, first=first, num_workers=workers, cache_size=4) as stream:
        return keys, [next(stream) for _ in range(count)]


def set_mask(prepared, states: np.ndarray) -> None:
    volume = prepared.sources[0].volume
    write_zarr2(volume.path, MASK.dataset, states, volume.voxel_size_nm, (0.0, 0.0, 0.0))


def test_every_node_of_the_published_pipeline_is_there_in_order(prepared) -> None:
    training = prepared("mtlsd")
    pipeline = training_pipeline(make_keys(), training.settings, training.sources)
    with gp.build(pipeline):
        names = node_names(pipeline.output)
    assert [name for name, before in zip(names, ["", *names], strict=False) if name != before] == PUBLISHED


def test_a_batch_has_raw_around_targets(prepared) -> None:
    training = prepared("mtlsd", elastic_probability=1.0)
    keys, (batch,) = batches(training, 1)
    raw, output = training.settings.shapes.raw_vox, training.settings.shapes.output_vox
    assert batch[keys.raw].data.shape == raw
    assert batch[keys.raw].data.dtype == np.float32
    assert -1 <= batch[keys.raw].data.min() < batch[keys.raw].data.max() <= 1
    for key, channels in ((keys.lsds, 10), (keys.lsds_weight, 10), (keys.affs, 3), (keys.affs_weight, 3)):
        assert batch[key].data.shape == (channels, *output)
    assert batch[keys.labels].data.max() < 100, "ids beyond 2^53 came through as small, distinct ids"
    assert 0 < batch[keys.affs].data.mean() < 1


def test_a_batch_is_determined_by_seed_and_number_alone(prepared) -> None:
    training = prepared("mtlsd", elastic_probability=0.5)
    keys, one = batches(training, 3)
    _, other = batches(training, 2, keys, first=2)
    for a, b in zip(one[1:], other, strict=True):
        np.testing.assert_array_equal(a[keys.raw].data, b[keys.raw].data)
        np.testing.assert_array_equal(a[keys.affs_weight].data, b[keys.affs_weight].data)
    assert not np.array_equal(one[0][keys.raw].data, one[1][keys.raw].data)


@pytest.mark.proves("TLS-13")
@pytest.mark.parametrize("workers", [1, 3])
def test_workers_ahead_of_time_make_the_same_batches_in_the_same_order(prepared, workers: int) -> None:
    """gunpowder's own PreCache would send the same seed to each worker, and hand batches out as they arrive."""
    training = prepared("affinities", elastic_probability=0.0)
    keys, here = batches(training, 6, first=5)
    _, there = batches(training, 6, keys, first=5, workers=workers)
    for a, b in zip(here, there, strict=True):
        np.testing.assert_array_equal(a[keys.raw].data, b[keys.raw].data)


def test_ignored_voxels_have_weight_exactly_zero_and_others_do_not(prepared) -> None:
    training = prepared("mtlsd", elastic_probability=0.0)
    states = np.ones((40, 40, 40), np.uint8)
    states[:, :, 20:] = MaskState.IGNORE
    set_mask(training, states)
    keys, found = batches(training, 4)
    for batch in found:
        ignored = batch[keys.mask].data == MaskState.IGNORE
        assert (batch[keys.affs_weight].data[:, ignored] == 0).all()
        assert (batch[keys.lsds_weight].data[:, ignored] == 0).all()
    assert any((batch[keys.affs_weight].data > 0).any() for batch in found)
    assert any((batch[keys.mask].data == 0).any() for batch in found)


def test_background_is_trained_as_background_whatever_the_label(prepared) -> None:
    training = prepared("mtlsd", elastic_probability=0.0)
    set_mask(training, np.full((40, 40, 40), MaskState.BACKGROUND, np.uint8))
    keys, (batch,) = batches(training, 1)
    inside = batch[keys.mask].data == MaskState.BACKGROUND
    assert inside.any()
    assert (batch[keys.affs].data == 0).all()
    assert (batch[keys.lsds].data == 0).all()
    assert (batch[keys.lsds_weight].data[:, inside] == 1).all()


@pytest.mark.proves("TAC-04")
def test_balanced_weights_give_both_classes_the_same_share(prepared) -> None:
    keys, (batch,) = batches(prepared("affinities", elastic_probability=0.0), 1)
    weight, target = batch[keys.affs_weight].data, batch[keys.affs].data
    assert weight[target == 1].sum() == pytest.approx(weight[target == 0].sum(), rel=1e-3)


def test_without_balancing_trained_affinities_have_weight_one(prepared) -> None:
    training = prepared("affinities", elastic_probability=0.0, balance_labels=False)
    states = np.ones((40, 40, 40), np.uint8)
    states[:, :, 20:] = MaskState.IGNORE
    set_mask(training, states)
    keys, found = batches(training, 4)
    for batch in found:
        weight, trained = batch[keys.affs_weight].data, batch[keys.mask].data > 0
        assert set(np.unique(weight)) <= {0, 1}
        assert (weight[:, ~trained] == 0).all()
        assert (weight[0, 1:][trained[1:] & trained[:-1]] == 1).all()


FAR = [[-1, 0, 0], [0, -1, 0], [0, 0, -1], [-5, 0, 0], [0, 4, -3], [0, 0, -9]]


def affinities_with_masks(labels: np.ndarray, trained: np.ndarray, offsets: list[list[int]]):
    """Slow reference over a whole volume: same label > 0; counted where both voxels are there and trained."""
    affs, counted = np.zeros((2, len(offsets), *labels.shape), bool)
    for number, offset in enumerate(offsets):
        for voxel in np.ndindex(labels.shape):
            end = tuple(v + o for v, o in zip(voxel, offset, strict=True))
            if all(0 <= e < n for e, n in zip(end, labels.shape, strict=True)):
                affs[(number, *voxel)] = labels[voxel] == labels[end] != 0
                counted[(number, *voxel)] = trained[voxel] and trained[end]
    return affs, counted


def test_far_affinities_are_those_of_the_labels_and_do_not_count_across_masks_and_faces(prepared) -> None:
    """At a corner of the volume: offsets lead out of it, into ignored voxels, and into the patch's surroundings."""
    import zarr

    options = {"elastic_probability": 0.0, "balance_labels": False, "grow_boundary_vox": 0}
    training = prepared("affinities", **options, neighborhood=FAR)
    states = np.ones((40, 40, 40), np.uint8)
    states[:, :, 12:18] = MaskState.IGNORE
    set_mask(training, states)
    labels = zarr.open(str(training.sources[0].volume.path), mode="r")["volumes/labels/neuron_ids"][:]
    assert training.settings.outputs == {"affs": 6}
    affs, counted = affinities_with_masks(labels, states == 1, FAR)
    keys = make_keys()
    size = training.settings.shapes.output_vox
    for begin in ((0, 0, 0), (40 - size[0], 40 - size[1], 40 - size[2]), (11, 3, 8)):
        pipeline = validation_pipeline(keys, training.settings, training.sources[0])
        with gp.build(pipeline):
            batch = pipeline.request_batch(seeded(batch_request(keys, training.settings, begin), 1))
        box = (slice(None), *(slice(b, b + n) for b, n in zip(begin, size, strict=True)))
        assert np.array_equal(batch[keys.affs_weight].data > 0, counted[box])
        assert np.array_equal(batch[keys.affs].data[counted[box]] > 0, affs[box][counted[box]])
        assert counted[box].any(axis=(1, 2, 3)).all()


def test_far_affinities_are_balanced_apart_from_near_ones(prepared) -> None:
    training = prepared("affinities", elastic_probability=0.0, neighborhood=FAR)
    keys, found = batches(training, 8)
    mixed = 0
    for batch in found:
        for some in (slice(0, 3), slice(3, 6)):
            weight, target = batch[keys.affs_weight].data[some], batch[keys.affs].data[some]
            share = target[weight > 0].mean()
            if 0.05 < share < 0.95:
                mixed += 1
                assert weight[target == 1].sum() == pytest.approx(weight[target == 0].sum(), rel=1e-3)
    assert mixed > 2


def test_padding_reaches_as_far_as_the_longest_offset(prepared) -> None:
    training = prepared("affinities", elastic_probability=0.0, neighborhood=FAR)
    output, grown = training.settings.shapes.output_vox[0], training.settings.targets.grow_boundary_vox
    assert labels_padding_vox(training.settings) == (int(np.ceil((output + 2 * (9 + grown)) / 2)),) * 3


@pytest.mark.parametrize(
    "offsets",
    [FAR[3:], [FAR[1], FAR[0], FAR[2]], [*FAR, [5, 0, 0]], [*FAR, [0, 0, 0]], FAR[:2]],
)
def test_a_neighborhood_without_the_nearest_first_or_with_a_voxel_twice_is_refused(prepared, offsets) -> None:
    with pytest.raises(ConfigError, match="neighborhood"):
        prepared("affinities", neighborhood=offsets)


@pytest.mark.proves("DAT-13")
def test_non_integer_anisotropic_voxel_sizes_train(prepared) -> None:
    training = prepared("mtlsd", voxel_size_nm=(40.5, 7.3, 7.3), elastic_probability=1.0)
    assert training.settings.augmentation.anisotropic
    keys, (batch,) = batches(training, 1)
    assert batch[keys.lsds].data.max() > 0


def test_probabilities_choose_the_volume(prepared) -> None:
    """Raw patches of a volume that is drawn with probability 0 never come up."""
    from lsdflow_training.data.volumes import Source, open_training_volume
    from lsdflow_training.testing import micro_volume

    training = prepared("affinities", elastic_probability=0.0)
    first = training.sources[0]
    other = first.volume.path.with_name("other.zarr")
    micro_volume(other, mask=np.full((40, 40, 40), 2, np.uint8))
    keys, settings = make_keys(), training.settings
    sources = [Source(open_training_volume(other), 0.0, None), Source(first.volume, 1.0, None)]
    pipeline = training_pipeline(keys, settings, sources)
    with gp.build(pipeline):
        for number in range(4):
            batch = pipeline.request_batch(seeded(batch_request(keys, settings), batch_seed(0, number)))
            assert 2 not in batch[keys.mask].data


def test_the_validation_slab_is_never_trained_and_alone_validated(prepared) -> None:
    training = prepared("affinities", elastic_probability=0.0, validation_fraction=0.5)
    source = training.sources[0]
    assert source.validation.begin_vox == (20, 0, 0)
    states = np.ones((40, 40, 40), np.uint8)
    states[20:] = MaskState.BACKGROUND
    set_mask(training, states)
    keys = make_keys()
    pipeline = validation_pipeline(keys, training.settings, source)
    size = training.settings.shapes.output_vox[0]
    with gp.build(pipeline):
        batch = pipeline.request_batch(seeded(batch_request(keys, training.settings, (20 - size // 2, 10, 10)), 1))
    used = batch[keys.affs_weight].data.any(axis=(0, 2, 3))
    assert not used[: size // 2].any()
    assert used[size // 2 + 1 :].all()
    trained_keys, found = batches(training, 5)
    for trained in found:
        assert MaskState.BACKGROUND not in trained[trained_keys.mask].data


@pytest.mark.proves("TLS-03")
def test_padding_lets_any_voxel_be_a_patch_centre(prepared) -> None:
    training = prepared("mtlsd", elastic_probability=0.0)
    output = training.settings.shapes.output_vox[0]
    context = 2 + int(np.ceil(3 * 24 / 8))
    assert labels_padding_vox(training.settings) == (int(np.ceil((output + 2 * context) / 2)),) * 3


@pytest.mark.proves("TLS-04")
def test_a_volume_without_enough_trained_voxels_is_refused_instead_of_searched_for_ever(prepared, monkeypatch) -> None:
    from lsdflow_training.data import random_location

    monkeypatch.setattr(random_location, "MAX_TRIES", 50)
    training = prepared("affinities", elastic_probability=0.0)
    states = np.zeros((40, 40, 40), np.uint8)
    states[0, 0, 0] = 1
    set_mask(training, states)
    for workers in (0, 1):
        with pytest.raises(BadData, match="no place found"):
            batches(training, 1, workers=workers)


def test_box_sums_are_those_of_the_array() -> None:
    from lsdflow_training.data.trained_places import box_sum

    array = np.random.default_rng(0).integers(0, 5, (4, 5, 6))
    integral = array.cumsum(0).cumsum(1).cumsum(2)
    for begin, end in (([0, 0, 0], [4, 5, 6]), ([1, 2, 3], [3, 5, 4]), ([-2, 3, 0], [2, 9, 6]), ([5, 0, 0], [7, 2, 2])):
        clipped = tuple(slice(max(b, 0), max(e, 0)) for b, e in zip(begin, end, strict=True))
        assert box_sum(integral, begin, end) == array[clipped].sum()


@pytest.mark.proves("DDP-05")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stride_takes_every_nth_batch_with_and_without_workers(prepared, workers: int) -> None:
    training = prepared("affinities", elastic_probability=0.0)
    keys, whole = batches(training, 5)
    pipeline = training_pipeline(keys, training.settings, training.sources)
    request = batch_request(keys, training.settings)
    with batch_stream(pipeline, request, seed=0, first=1, num_workers=workers, cache_size=4, stride=2) as stream:
        strided = [next(stream)[keys.raw].data for _ in range(3)]
    for mine, number in zip(strided, (1, 3, 5), strict=True):
        assert np.array_equal(mine, whole[number - 1][keys.raw].data)
