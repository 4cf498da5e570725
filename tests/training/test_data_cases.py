"""Training data as labs have it: sparse, with glia, masked, small, of odd voxel sizes, in several volumes."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

gp = pytest.importorskip("gunpowder")

import torch  # noqa: E402

from lsdflow_contract.arrays import LABELS, MASK, RAW, MaskState  # noqa: E402
from lsdflow_contract.errors import ConfigError  # noqa: E402
from lsdflow_contract.testing import membrane_raw, voronoi_labels  # noqa: E402
from lsdflow_network.unet import UNet  # noqa: E402
from lsdflow_training.augmentation.description import GLOBAL_DICE  # noqa: E402
from lsdflow_training.data import random_location  # noqa: E402
from lsdflow_training.data.batches import batch_seed, seeded  # noqa: E402
from lsdflow_training.data.patch import to_patch  # noqa: E402
from lsdflow_training.data.pipeline import batch_request, make_keys, training_pipeline  # noqa: E402
from lsdflow_training.data.trained_places import box_sum, has_place, integral_image, random_place  # noqa: E402
from lsdflow_training.data.volume_arrays import states_of_labels  # noqa: E402
from lsdflow_training.data.volumes import Source, open_training_volume  # noqa: E402
from lsdflow_training.settings import training_parameters  # noqa: E402
from lsdflow_training.step import forward_losses  # noqa: E402
from lsdflow_training.testing import write_zarr2  # noqa: E402

ORIGIN = (0.0, 0.0, 0.0)
STILL = {"elastic_probability": 0.0}
KEYS = make_keys()
GLIA = 2**64 - 3


def labels_of(shape=(40, 40, 40), cells: int = 8) -> np.ndarray:
    return voronoi_labels(shape, cells, 0).astype(np.uint64)


def rewrite(training, labels: np.ndarray | None = None, states: np.ndarray | None = None) -> None:
    """Other labels or another mask, of the same shape, in the training volume."""
    volume = training.sources[0].volume
    for spec, array in ((LABELS, labels), (MASK, states)):
        if array is not None:
            write_zarr2(volume.path, spec.dataset, array, volume.voxel_size_nm, ORIGIN)


def replaced(training, labels: np.ndarray) -> None:
    """Another volume, of any shape, all of it trained."""
    volume = training.sources[0].volume
    rewrite(training, labels, np.ones(labels.shape, np.uint8))
    write_zarr2(volume.path, RAW.dataset, membrane_raw(labels, 0), volume.voxel_size_nm, ORIGIN)
    training.sources[0] = Source(open_training_volume(volume.path), 1.0, None)


def batches(training, count: int) -> list[gp.Batch]:
    pipeline = training_pipeline(KEYS, training.settings, training.sources)
    request = batch_request(KEYS, training.settings)
    with gp.build(pipeline):
        return [pipeline.request_batch(seeded(request, batch_seed(0, number))) for number in range(count)]


def weights_of(batch: gp.Batch) -> list[np.ndarray]:
    return [batch[key].data for key in (KEYS.lsds_weight, KEYS.affs_weight) if key in batch.arrays]


def learnt(batch: gp.Batch) -> list[np.ndarray]:
    """What a loss sees of the truth: weights, and targets where there is weight."""
    pairs = ((KEYS.lsds, KEYS.lsds_weight), (KEYS.affs, KEYS.affs_weight))
    pairs = [(batch[t].data, batch[w].data) for t, w in pairs if t in batch.arrays]
    return [array for target, weight in pairs for array in (weight, np.where(weight > 0, target, 0))]


def gradient(training, batch: gp.Batch) -> list[torch.Tensor]:
    torch.manual_seed(0)
    network = UNet(training.settings.unet, training.settings.outputs)
    forward_losses(network, [to_patch(batch, KEYS, torch.device("cpu"))], "float32")[0].loss.backward()
    return [parameter.grad for parameter in network.parameters()]


def assert_the_same_targets(one: list[gp.Batch], other: list[gp.Batch]) -> None:
    for a, b in zip(one, other, strict=True):
        for left, right in zip(learnt(a), learnt(b), strict=True):
            np.testing.assert_array_equal(left, right)


def assert_the_same_is_learnt(training, one: list[gp.Batch], other: list[gp.Batch]) -> None:
    assert_the_same_targets(one, other)
    for left, right in zip(gradient(training, one[0]), gradient(training, other[0]), strict=True):
        assert torch.equal(left, right)
    assert any(g.abs().sum() > 0 for g in gradient(training, one[0]))


def half_ignored() -> np.ndarray:
    states = np.ones((40, 40, 40), np.uint8)
    states[:, :, 20:] = MaskState.IGNORE
    return states


def test_labels_under_the_mask_change_nothing_but_the_shape_of_objects_that_reach_out_of_it(prepared) -> None:
    """As published: a neuron that continues under the mask has its true shape, so its id stays; others may change."""
    training = prepared("mtlsd", **STILL)
    states, labels = half_ignored(), labels_of()
    rewrite(training, labels, states)
    one = batches(training, 3)
    inside_only = (states == 0) & ~np.isin(labels, np.unique(labels[states > 0]))
    labels[:, :, 22:][labels[:, :, 22:] == 0] = 77
    rewrite(training, np.where(inside_only, 99, labels))
    assert_the_same_is_learnt(training, one, batches(training, 3))


def test_affinities_do_not_depend_on_any_label_under_the_mask(prepared) -> None:
    training = prepared("affinities", elastic_probability=1.0)
    rewrite(training, labels_of(), half_ignored())
    one = batches(training, 3)
    noise = np.random.default_rng(0).integers(0, 9, (40, 40, 40)).astype(np.uint64)
    rewrite(training, np.where(half_ignored() == 0, noise, labels_of()))
    assert_the_same_is_learnt(training, one, batches(training, 3))


@pytest.mark.proves("DAT-04")
def test_targets_under_the_mask_change_no_gradient_even_if_they_are_not_numbers(prepared) -> None:
    training = prepared("mtlsd", **STILL)
    rewrite(training, labels_of(), half_ignored())
    (batch,) = batches(training, 1)
    before = gradient(training, batch)
    for target, weight in ((KEYS.lsds, KEYS.lsds_weight), (KEYS.affs, KEYS.affs_weight)):
        ignored = np.broadcast_to(batch[KEYS.mask].data == MaskState.IGNORE, batch[weight].data.shape)
        assert (batch[weight].data[ignored] == 0).all()
        batch[target].data = np.where(ignored, np.float32(np.nan), batch[target].data)
    for left, right in zip(before, gradient(training, batch), strict=True):
        assert torch.equal(left, right)


@pytest.mark.proves("TAC-04")
def test_ignored_ids_have_no_weight_and_do_not_count_when_affinities_are_balanced(prepared) -> None:
    training = prepared("mtlsd", ignore_ids=[GLIA], **STILL)
    labels = labels_of()
    glia = labels == np.bincount(labels[labels > 0].astype(int)).argmax()
    rewrite(training, np.where(glia, np.uint64(GLIA), labels))
    one = batches(training, 4)
    assert any((batch[KEYS.mask].data == MaskState.IGNORE).any() for batch in one)
    balanced = 0
    for batch in one:
        ignored = batch[KEYS.mask].data == MaskState.IGNORE
        assert all((weight[:, ignored] == 0).all() for weight in weights_of(batch))
        weight, target = batch[KEYS.affs_weight].data, batch[KEYS.affs].data
        if 0.05 < target[weight > 0].mean() < 0.95:
            balanced += 1
            assert weight[target == 1].sum() == pytest.approx(weight[target == 0].sum(), rel=1e-3)
    assert balanced
    prepared_again = prepared("mtlsd", **STILL)
    rewrite(prepared_again, np.where(glia, 0, labels), np.where(glia, MaskState.IGNORE, 1).astype(np.uint8))
    assert_the_same_targets(one, batches(prepared_again, 4))


@pytest.mark.parametrize(
    ("ids", "says"), [([-1], "ignore_ids are labels"), ([0], "ignore_ids are labels"), ([2**64], "more than 64 bits")]
)
def test_ids_that_are_no_labels_are_refused(prepared, ids: list[int], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        prepared("mtlsd", ignore_ids=ids)


def test_the_table_of_label_states() -> None:
    labels, states = (
        np.array(row).reshape(2, 1, 5) for row in ([0, 0, 0, 5, 5, 7, 7, 7, 3, 3], [0, 1, 2, 1, 2, 0, 1, 2, 1, 0])
    )
    labels, states = labels.astype(np.uint64), states.astype(np.uint8)
    dense = states_of_labels(labels, states, (7,), sparse=False).ravel()
    assert dense.tolist() == [0, 1, 2, 1, 2, 0, 0, 0, 1, 0]
    sparse = states_of_labels(labels, states, (), sparse=True).ravel()
    assert sparse.tolist() == [0, 0, 2, 1, 2, 0, 1, 2, 1, 0]


def sparse_labels() -> np.ndarray:
    labels = np.zeros((40, 40, 40), np.uint64)
    labels[30:33, 5:8, 20:22] = 11
    labels[30:33, 5:8, 22:24] = 12
    return labels


def test_few_labelled_voxels_are_found_at_once_and_nothing_else_is_trained(prepared, monkeypatch) -> None:
    training = prepared("mtlsd", sparse_labels=True, elastic_probability=1.0)
    rewrite(training, sparse_labels())
    monkeypatch.setattr(random_location, "MAX_TRIES", 3)
    found = batches(training, 6)
    for batch in found:
        trained = batch[KEYS.mask].data == MaskState.TRAIN
        assert all((weight[:, ~trained] == 0).all() for weight in weights_of(batch))
        assert trained.sum() < 200
        assert not batch[KEYS.labels].data[~trained].any()
    assert all(weight.any() for weight in weights_of(found[0]))
    assert len({batch[KEYS.raw].data.tobytes() for batch in found}) == len(found)


def test_sparse_labels_without_any_label_are_refused(prepared) -> None:
    training = prepared("affinities", sparse_labels=True, **STILL)
    rewrite(training, np.zeros((40, 40, 40), np.uint64))
    with pytest.raises(gp.PipelineRequestError, match="no place found"):
        batches(training, 1)


def test_a_rare_place_is_found_by_looking_at_all(prepared, monkeypatch) -> None:
    training = prepared("affinities", min_masked=0.9, **STILL)
    states = np.zeros((40, 40, 40), np.uint8)
    states[20:32, 9:21, 3:15] = 1
    rewrite(training, labels_of(), states)
    monkeypatch.setattr(random_location, "MAX_TRIES", 2)
    for batch in batches(training, 3):
        assert (batch[KEYS.mask].data > 0).mean() >= 0.8, "0.9 before mirroring, which moves a patch by a voxel"


@pytest.mark.proves("TLS-01")
def test_a_place_is_drawn_from_all_that_qualify() -> None:
    rng = np.random.default_rng(0)
    trained = rng.random((6, 7, 8)) < 0.4
    integral, patch, first, end = integral_image(trained), (3, 2, 4), (-2, -1, -3), (6, 7, 8)
    boxes = {}
    for begin in np.ndindex(*(e - f for f, e in zip(first, end, strict=True))):
        at = [f + b for f, b in zip(first, begin, strict=True)]
        boxes[tuple(at)] = box_sum(integral, at, [a + n for a, n in zip(at, patch, strict=True)])
    fitting = {at for at, count in boxes.items() if count >= 13}
    assert 3 < len(fitting) < 200
    assert {random_place(integral, patch, first, end, 13, GLOBAL_DICE) for _ in range(60 * len(fitting))} == fitting
    assert random_place(integral, patch, first, end, 25, GLOBAL_DICE) is None
    most = max(boxes.values())
    assert has_place(trained, patch, most)
    assert not has_place(trained, patch, most + 1)


@pytest.mark.parametrize("corner", list(itertools.product((slice(None, 2), slice(-2, None)), repeat=3)))
def test_a_place_in_any_corner_of_the_volume_is_found(corner: tuple[slice, ...]) -> None:
    trained = np.zeros((5, 6, 7), np.bool_)
    trained[corner] = True
    assert has_place(trained, (2, 2, 2), 8)


def test_a_patch_that_is_longer_than_the_volume_holds_all_of_it() -> None:
    trained = np.random.default_rng(0).random((3, 8, 5)) < 0.5
    assert has_place(trained, (4, 9, 7), trained.sum())
    assert not has_place(trained, (4, 9, 7), trained.sum() + 1)


def test_volumes_smaller_than_the_patch_train_on_all_they_have(prepared) -> None:
    """Raw, labels and mask are padded: with black, and with voxels that are ignored."""
    training = prepared("mtlsd", min_masked=0.1, elastic_probability=1.0)
    assert training.settings.shapes.output_vox == (12, 12, 12)
    replaced(training, labels_of((8, 9, 10), 3))
    for batch in batches(training, 4):
        trained = batch[KEYS.mask].data == MaskState.TRAIN
        assert 0 < trained.sum() <= 8 * 9 * 10 * 1.2
        assert all((weight[:, ~trained] == 0).all() and weight.any() for weight in weights_of(batch))
        assert (batch[KEYS.raw].data == batch[KEYS.raw].data[0, 0, 0]).mean() > 0.5


def test_without_min_masked_a_patch_may_lie_wholly_outside_of_a_small_volume(prepared) -> None:
    training = prepared("affinities", min_masked=0.0, elastic_probability=0.5)
    replaced(training, labels_of((8, 9, 10), 3))
    found = batches(training, 12)
    assert all(np.isfinite(batch[KEYS.affs_weight].data).all() for batch in found)


def test_an_expansion_factor_scales_voxels_sigma_and_context_alike(prepared) -> None:
    """prepare divides voxel sizes by the expansion factor: the same voxels lead to the same batch."""
    from lsdflow_training.data.pipeline import label_context_vox

    plain = prepared("mtlsd", voxel_size_nm=(40.0, 9.0, 9.0), sigma="36 nm", **STILL)
    one = batches(plain, 2)
    expanded = prepared("mtlsd", voxel_size_nm=(40.0 / 4.5, 2.0, 2.0), sigma="8 nm", **STILL)
    assert expanded.settings.augmentation.anisotropic
    assert label_context_vox(plain.settings.targets) == label_context_vox(expanded.settings.targets)
    for a, b in zip(one, batches(expanded, 2), strict=True):
        np.testing.assert_array_equal(a[KEYS.raw].data, b[KEYS.raw].data)
        np.testing.assert_allclose(a[KEYS.lsds].data, b[KEYS.lsds].data, atol=1e-5)


@pytest.mark.proves("DAT-12", "TLS-01")
def test_several_volumes_are_drawn_as_often_as_their_probabilities_say(prepared, tmp_path: Path) -> None:
    training = prepared("affinities", **STILL)
    first = training.sources[0].volume
    other = first.path.with_name("other.zarr")
    for spec, array in (
        (RAW, np.full((40,) * 3, 255, np.uint8)),
        (LABELS, labels_of()),
        (MASK, np.ones((40,) * 3, np.uint8)),
    ):
        write_zarr2(other, spec.dataset, array, first.voxel_size_nm, ORIGIN)
    training.sources[:] = [Source(first, 0.25, None), Source(open_training_volume(other), 0.75, None)]
    white = [batch[KEYS.raw].data.max() == batch[KEYS.raw].data[14, 14, 14] for batch in batches(training, 40)]
    assert 0.5 < np.mean(white) < 0.95


def test_options_at_their_defaults_leave_the_key_of_a_training_as_it_was(prepared) -> None:
    """Checkpoints and resumed trainings are named by it."""
    parameters = training_parameters(prepared("mtlsd").settings)
    assert set(parameters["augmentation"]) == {
        "elastic_probability", "control_point_spacing_vox", "jitter_sigma_vox", "rotation_max_rad", "slip_probability",
        "shift_probability", "max_misalign_vox", "subsample", "intensity_scale", "intensity_shift", "anisotropic",
    }  # fmt: skip
    assert set(parameters["targets"]) == {
        "lsds", "affinities", "sigma_nm", "voxel_size_nm", "lsd_downsample", "lsd_engine", "neighborhood",
        "grow_boundary_vox", "train_background", "balance_labels",
    }  # fmt: skip
    other = training_parameters(prepared("mtlsd", gamma=[0.5, 2.0], ignore_ids=[4], sparse_labels=True).settings)
    assert other["augmentation"]["gamma"] == (0.5, 2.0)
    assert (other["targets"]["ignore_ids"], other["targets"]["sparse_labels"]) == ((4,), True)
