"""The gunpowder node of the LSD targets: context, weights by mask state, engines, worker processes."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba")
gp = pytest.importorskip("gunpowder")

from lsdflow_contract.arrays import MaskState  # noqa: E402
from lsdflow_contract.errors import BadData, ConfigError  # noqa: E402
from lsdflow_contract.geometry import Box  # noqa: E402
from lsdflow_training.data.batches import NumberedPreCache  # noqa: E402
from lsdflow_training.targets.lsd import local_shape_descriptors  # noqa: E402
from lsdflow_training.targets.lsd_node import AddLsdTargets, lsd_weights  # noqa: E402

SIGMA_NM = 20.0
VOXEL_SIZE_NM = (8.5, 8.0, 8.0)
SHAPE = (40, 40, 40)
OUTPUT = Box((12, 14, 16), (8, 6, 10))

LABELS, MASK, LSDS, WEIGHTS = gp.ArrayKey("LABELS"), gp.ArrayKey("MASK"), gp.ArrayKey("LSDS"), gp.ArrayKey("WEIGHTS")


class Given(gp.BatchProvider):
    """Source of given arrays on a grid of `voxel` world units, starting at 0."""

    def __init__(self, arrays: dict[gp.ArrayKey, np.ndarray], voxel: tuple[int, int, int] = (1, 1, 1)) -> None:
        self.given, self.voxel = arrays, gp.Coordinate(voxel)

    def setup(self) -> None:
        for key, data in self.given.items():
            roi = gp.Roi((0, 0, 0), gp.Coordinate(data.shape) * self.voxel)
            self.provides(key, gp.ArraySpec(roi=roi, voxel_size=self.voxel, dtype=data.dtype, interpolatable=False))

    def provide(self, request: gp.BatchRequest) -> gp.Batch:
        batch = gp.Batch()
        for key, asked in request.array_specs.items():
            spec = self.spec[key].copy()
            spec.roi = asked.roi
            batch[key] = gp.Array(self.given[key][(asked.roi / self.voxel).to_slices()].copy(), spec)
        return batch


@pytest.fixture
def labels() -> np.ndarray:
    """Blocks of 5 voxels, with background, ids beyond 2^53."""
    coarse = np.random.default_rng(0).integers(0, 5, (8, 8, 8)).astype(np.uint64)
    coarse[coarse > 0] += np.uint64(2**60)
    return np.kron(coarse, np.ones((5, 5, 5), np.uint64))


@pytest.fixture
def states() -> np.ndarray:
    """All three mask states, in slabs along x through the output."""
    mask = np.full(SHAPE, MaskState.TRAIN, dtype=np.uint8)
    mask[..., 19:22] = MaskState.BACKGROUND
    mask[..., 23:] = MaskState.IGNORE
    return mask


def node(mask: gp.ArrayKey | None = MASK, **options: object) -> AddLsdTargets:
    return AddLsdTargets(
        LABELS, LSDS, WEIGHTS, mask, **{"sigma_nm": SIGMA_NM, "voxel_size_nm": VOXEL_SIZE_NM} | options
    )


def request_of(keys: list[gp.ArrayKey], box: Box = OUTPUT, voxel: tuple[int, int, int] = (1, 1, 1)) -> gp.BatchRequest:
    request = gp.BatchRequest()
    for key in keys:
        request[key] = gp.ArraySpec(roi=gp.Roi(box.begin_vox, box.shape_vox) * gp.Coordinate(voxel))
    return request


def get(pipeline: gp.Pipeline, request: gp.BatchRequest) -> gp.Batch:
    with gp.build(pipeline):
        return pipeline.request_batch(request)


def test_delivers_the_descriptors_of_the_requested_region_with_full_context(labels: np.ndarray) -> None:
    batch = get(Given({LABELS: labels}) + node(None), request_of([LSDS, WEIGHTS]))
    wanted = local_shape_descriptors(labels, SIGMA_NM, VOXEL_SIZE_NM, OUTPUT)
    assert batch[LSDS].data.dtype == np.float32
    assert np.array_equal(batch[LSDS].data, wanted)
    assert batch[LSDS].spec.roi == gp.Roi(OUTPUT.begin_vox, OUTPUT.shape_vox)
    assert batch[WEIGHTS].data.shape == wanted.shape
    assert LABELS not in batch


@pytest.mark.proves("TLS-10")
def test_world_units_of_the_source_do_not_matter(labels: np.ndarray) -> None:
    voxel = (40, 8, 4)
    batch = get(Given({LABELS: labels}, voxel) + node(None), request_of([LSDS, WEIGHTS], voxel=voxel))
    assert np.array_equal(batch[LSDS].data, local_shape_descriptors(labels, SIGMA_NM, VOXEL_SIZE_NM, OUTPUT))


def test_a_larger_request_of_labels_changes_nothing(labels: np.ndarray) -> None:
    request = request_of([LSDS, WEIGHTS])
    request[LABELS] = gp.ArraySpec(roi=gp.Roi((1, 0, 3), (38, 39, 37)))
    batch = get(Given({LABELS: labels}) + node(None, downsample=2), request)
    assert np.array_equal(batch[LSDS].data, local_shape_descriptors(labels, SIGMA_NM, VOXEL_SIZE_NM, OUTPUT, 2))
    assert batch[LABELS].data.shape == (38, 39, 37)


def test_weights_follow_the_mask_states(labels: np.ndarray, states: np.ndarray) -> None:
    batch = get(Given({LABELS: labels, MASK: states}) + node(), request_of([LSDS, WEIGHTS]))
    weights, descriptors = batch[WEIGHTS].data, batch[LSDS].data
    inner_labels, inner_states = labels[OUTPUT.slices()], states[OUTPUT.slices()]
    ignore, background, train = (inner_states == s for s in (0, 2, 1))
    assert ignore.any()
    assert background.any()
    assert (inner_labels[train] == 0).any()
    assert (inner_labels[background] != 0).any()
    assert not weights[:, ignore].any()
    assert (weights[:, background] == 1).all()
    assert not descriptors[:, background].any()
    assert not weights[:, train & (inner_labels == 0)].any()
    assert (weights[:, train & (inner_labels != 0)] == 1).all()


@pytest.mark.proves("TLS-11")
def test_train_background_trains_label_0_but_never_what_is_ignored(labels: np.ndarray, states: np.ndarray) -> None:
    batch = get(Given({LABELS: labels, MASK: states}) + node(train_background=True), request_of([LSDS, WEIGHTS]))
    weights, inner_states = batch[WEIGHTS].data, states[OUTPUT.slices()]
    assert np.array_equal(weights[0], (inner_states != MaskState.IGNORE).astype(np.float32))
    assert not batch[LSDS].data[:, labels[OUTPUT.slices()] == 0].any()


def test_background_state_is_background_for_its_neighbours_too(labels: np.ndarray, states: np.ndarray) -> None:
    batch = get(Given({LABELS: labels, MASK: states}) + node(), request_of([LSDS, WEIGHTS]))
    cut = np.where(states == MaskState.BACKGROUND, 0, labels).astype(np.uint64)
    assert np.array_equal(batch[LSDS].data, local_shape_descriptors(cut, SIGMA_NM, VOXEL_SIZE_NM, OUTPUT))


def test_weights_are_a_function_of_label_and_state() -> None:
    labels = np.array([[[0, 5]] * 3], dtype=np.uint64)
    states = np.array([[[0, 0], [1, 1], [2, 2]]], dtype=np.uint8)
    assert lsd_weights(labels, states, train_background=False)[4].tolist() == [[[0, 0], [0, 1], [1, 1]]]
    assert lsd_weights(labels, states, train_background=True)[4].tolist() == [[[0, 0], [1, 1], [1, 1]]]


def test_does_nothing_when_not_requested(labels: np.ndarray) -> None:
    everything = gp.Roi((0, 0, 0), SHAPE)
    request = gp.BatchRequest()
    request[LABELS] = gp.ArraySpec(roi=everything)
    batch = get(Given({LABELS: labels}) + node(None), request)
    assert LSDS not in batch
    assert np.array_equal(batch[LABELS].data, labels)


def test_worker_processes_deliver_the_same(labels: np.ndarray, states: np.ndarray) -> None:
    source = Given({LABELS: labels, MASK: states})
    request = request_of([LSDS, WEIGHTS])
    wanted = get(source + node(), request)
    pipeline = (
        Given({LABELS: labels, MASK: states}) + node() + NumberedPreCache(seed=0, first=0, cache_size=4, num_workers=2)
    )
    with gp.build(pipeline):
        for _ in range(4):
            batch = pipeline.request_batch(request)
            assert np.array_equal(batch[LSDS].data, wanted[LSDS].data)
            assert np.array_equal(batch[WEIGHTS].data, wanted[WEIGHTS].data)


@pytest.mark.parametrize("downsample", [1, 2])
def test_engines_agree(labels: np.ndarray, downsample: int) -> None:
    pytest.importorskip("lsd.train.local_shape_descriptor")
    options = {"voxel_size_nm": (10.0, 8.0, 8.0), "downsample": downsample}
    own = get(Given({LABELS: labels}) + node(None, **options), request_of([LSDS, WEIGHTS]))
    expected = get(Given({LABELS: labels}) + node(None, engine="lsds", **options), request_of([LSDS, WEIGHTS]))
    np.testing.assert_allclose(own[LSDS].data, expected[LSDS].data, atol=1e-4, rtol=0)


def test_refuses_unfit_engines() -> None:
    with pytest.raises(ConfigError, match="engine"):
        node(engine="fast")
    pytest.importorskip("lsd.train.local_shape_descriptor")
    with pytest.raises(ConfigError, match="whole"):
        node(engine="lsds", voxel_size_nm=(8.5, 8.0, 8.0))


def test_refuses_masks_with_other_values(labels: np.ndarray) -> None:
    source = Given({LABELS: labels, MASK: np.full(SHAPE, 255, dtype=np.uint8)})
    with pytest.raises(Exception, match="mask states") as caught:
        get(source + node(), request_of([LSDS, WEIGHTS]))
    error: BaseException | None = caught.value
    while error is not None and not isinstance(error, BadData):
        error = error.__cause__ or error.__context__
    assert isinstance(error, BadData)
