"""LSD targets: equal to a plain reference in double precision, to the package lsds, and to its authors' own file."""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba")
zarr = pytest.importorskip("zarr")

from lsdflow_contract.errors import BadData, UsageError  # noqa: E402
from lsdflow_contract.geometry import Box, Nm3  # noqa: E402
from lsdflow_training.targets import label_moments, lsd, lsd_cpu  # noqa: E402
from lsdflow_training.targets.lsd import context_vox, local_shape_descriptors  # noqa: E402
from lsdflow_training.targets.lsd_cpu import warm_up  # noqa: E402
from lsdflow_training.testing import thin_labels  # noqa: E402

TOLERANCE = 1e-4


# --- references ---------------------------------------------------------------------------------------------------


def reference(labels: np.ndarray, sigma_nm: Nm3, voxel_size_nm: Nm3) -> np.ndarray:
    """Slow and plain: for each voxel, the weighted moments of all voxels of its label in the window, float64."""
    out = np.zeros((10, *labels.shape))
    sigma, size = np.array(sigma_nm), np.array(voxel_size_nm)
    radius = (3 * sigma / size + 0.5).astype(int)
    norm = [
        np.exp(-0.5 * (np.arange(-r, r + 1) * v / s) ** 2).sum() for r, v, s in zip(radius, size, sigma, strict=True)
    ]
    for voxel in itertools.product(*map(range, labels.shape)):
        if labels[voxel] == 0:
            continue
        offsets = np.argwhere(labels == labels[voxel]) - voxel
        offsets = offsets[(np.abs(offsets) <= radius).all(axis=1)]
        d = offsets * size
        weight = np.exp(-0.5 * ((d / sigma) ** 2).sum(axis=1)) / np.prod(norm)
        mean = (weight[:, None] * d).sum(axis=0) / weight.sum()
        covariance = (d - mean).T @ (weight[:, None] * (d - mean)) / weight.sum()
        variance = np.maximum(np.diag(covariance), 1e-3)
        pearson = [covariance[i, j] / np.sqrt(variance[i] * variance[j]) for i, j in ((0, 1), (0, 2), (1, 2))]
        channels = [*(mean / sigma * 0.5 + 0.5), *(variance / sigma**2), *(np.array(pearson) * 0.5 + 0.5)]
        out[(slice(None), *voxel)] = [*channels, weight.sum()]
    return np.clip(out, 0, 1)


@pytest.fixture
def lsds() -> types.ModuleType:
    return pytest.importorskip("lsd.train.local_shape_descriptor")


@pytest.fixture
def lsds_double(lsds: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """lsds' own code computing in double precision: its Pearson coefficients of thin objects are float32 noise."""

    class DoubleNumpy:
        float32 = np.float64

        def __getattr__(self, name: str) -> object:
            return getattr(np, name)

    monkeypatch.setattr(lsds, "np", DoubleNumpy())
    return lsds


def by_lsds(
    module: types.ModuleType, labels: np.ndarray, sigma_nm: Nm3, voxel_size_nm: Nm3, roi: Box, downsample: int = 1
) -> np.ndarray:
    import gunpowder as gp

    return module.get_local_shape_descriptors(
        labels,
        sigma_nm,
        voxel_size=tuple(int(v) for v in voxel_size_nm),
        roi=gp.Roi(roi.begin_vox, roi.shape_vox),
        downsample=downsample,
    )


def whole(labels: np.ndarray) -> Box:
    return Box((0, 0, 0), labels.shape)


# --- generated labels ---------------------------------------------------------------------------------------------


def noise_labels() -> np.ndarray:
    """Many small labels in pieces all over, many of one voxel, with background."""
    return np.random.default_rng(0).integers(0, 60, (7, 9, 19)).astype(np.uint64)


def thick_labels() -> np.ndarray:
    """Slabs that touch all borders and are wider than a tile along x."""
    z, y, x = np.indices((7, 8, 37))
    return ((z + y + x) // 13 + 1).astype(np.uint64)


GENERATED: dict[str, Callable[[], np.ndarray]] = {
    "noise": noise_labels,
    "thick": thick_labels,
    "thin": lambda: thin_labels((12, 13, 20)),
}


@pytest.mark.parametrize("name", GENERATED)
@pytest.mark.parametrize(
    ("sigma_nm", "voxel_size_nm"),
    [
        ((20.0, 20.0, 20.0), (8.0, 8.0, 8.0)),
        ((50.0, 20.0, 30.0), (40.0, 4.0, 6.5)),
        ((3.0, 1.0, 90.0), (10.0, 8.0, 8.0)),
    ],
    ids=["isotropic", "anisotropic", "window of one voxel in z, y"],
)
def test_equals_the_plain_reference(name: str, sigma_nm: Nm3, voxel_size_nm: Nm3) -> None:
    labels = GENERATED[name]()
    found = local_shape_descriptors(labels, sigma_nm, voxel_size_nm)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, reference(labels, sigma_nm, voxel_size_nm), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", GENERATED)
@pytest.mark.parametrize("downsample", [1, 2, 3])
def test_equals_lsds_in_double_precision_on_generated_labels(
    lsds_double: types.ModuleType, name: str, downsample: int
) -> None:
    labels = GENERATED[name]()
    roi = Box((0, 0, downsample), (6, 6, 12))
    arguments = (labels, (40.0, 30.0, 24.0), (10.0, 8.0, 6.0), roi, downsample)
    found, wanted = local_shape_descriptors(*arguments), by_lsds(lsds_double, *arguments)
    np.testing.assert_allclose(found, wanted, atol=TOLERANCE, rtol=0)


# --- real labels --------------------------------------------------------------------------------------------------


@pytest.fixture
def fib25(shared_data: Path) -> np.ndarray:
    """FIB-25, 10 nm, a crop with 18 labels in its centre."""
    return zarr.open(str(shared_data / "fib25/trvol-250-2.zarr/volumes/labels/neuron_ids"), "r")[60:108, 60:108, 60:108]


@pytest.fixture
def snemi3d(shared_data: Path) -> np.ndarray:
    """SNEMI3D, 30 x 6 x 6 nm, with background."""
    return zarr.open(str(shared_data / "snemi3d/ac4-train.zarr/volumes/labels/neuron_ids"), "r")[
        10:30, 100:204, 100:204
    ]


REAL = [
    ("fib25", (40.0, 40.0, 40.0), (10.0, 10.0, 10.0), Box((12, 12, 12), (24, 24, 24)), 1),
    ("fib25", (40.0, 40.0, 40.0), (10.0, 10.0, 10.0), Box((12, 12, 12), (24, 24, 24)), 2),
    ("fib25", (80.0, 80.0, 80.0), (10.0, 10.0, 10.0), Box((0, 26, 8), (16, 16, 16)), 1),
    ("snemi3d", (80.0, 80.0, 80.0), (30.0, 6.0, 6.0), Box((8, 40, 40), (4, 24, 24)), 1),
]


@pytest.mark.proves("TLS-10")
@pytest.mark.parametrize(("volume", "sigma_nm", "voxel_size_nm", "roi", "downsample"), REAL)
def test_equals_lsds_in_double_precision_on_real_labels(
    request: pytest.FixtureRequest,
    lsds_double: types.ModuleType,
    volume: str,
    sigma_nm: Nm3,
    voxel_size_nm: Nm3,
    roi: Box,
    downsample: int,
) -> None:
    labels = request.getfixturevalue(volume)
    assert np.unique(labels[roi.slices()]).size > 3
    arguments = (labels, sigma_nm, voxel_size_nm, roi, downsample)
    np.testing.assert_allclose(
        local_shape_descriptors(*arguments), by_lsds(lsds_double, *arguments), atol=TOLERANCE, rtol=0
    )


def test_equals_lsds_as_it_is_wherever_its_rounding_allows(fib25: np.ndarray, lsds: types.ModuleType) -> None:
    roi = Box((12, 12, 12), (24, 24, 24))
    arguments = (fib25, (40.0, 40.0, 40.0), (10.0, 10.0, 10.0), roi)
    found, wanted = local_shape_descriptors(*arguments), by_lsds(lsds, *arguments)
    np.testing.assert_allclose(found[[0, 1, 2, 3, 4, 5, 9]], wanted[[0, 1, 2, 3, 4, 5, 9]], atol=TOLERANCE, rtol=0)
    compact = (wanted[3:6] > 0.1).all(axis=0)
    assert compact.mean() > 0.5
    np.testing.assert_allclose(found[6:9, compact], wanted[6:9, compact], atol=TOLERANCE, rtol=0)


def test_reproduces_the_descriptors_published_by_the_authors(shared_data: Path) -> None:
    published = zarr.open(str(shared_data / "lsd_reference/fib.zarr"), "r")
    centre = Box((30, 30, 30), (32, 32, 32))  # 22 voxels from the labels to gt_lsds, 8 more that miss no context
    found = local_shape_descriptors(published["labels"][:], 80.0, (8.0, 8.0, 8.0), centre, downsample=2)
    np.testing.assert_allclose(found, published["gt_lsds"][:, 8:40, 8:40, 8:40], atol=1.4e-4, rtol=0)


# --- what must not matter -----------------------------------------------------------------------------------------


@pytest.mark.proves("TLS-10")
def test_context_of_three_sigma_is_all_that_matters() -> None:
    labels = np.random.default_rng(1).integers(0, 4, (40, 40, 40)).astype(np.uint64)
    context = context_vox((20.0, 16.0, 24.0), (8.0, 8.0, 8.0))
    assert context == (8, 6, 9)
    inner = Box((15, 15, 15), (5, 6, 7))
    cut = inner.grow(context)
    shifted = inner.translate(tuple(-b for b in cut.begin_vox))
    from_all = local_shape_descriptors(labels, (20.0, 16.0, 24.0), (8.0, 8.0, 8.0), inner)
    from_cut = local_shape_descriptors(labels[cut.slices()], (20.0, 16.0, 24.0), (8.0, 8.0, 8.0), shifted)
    assert np.array_equal(from_all, from_cut)
    too_small = labels[inner.grow((7, 5, 8)).slices()]
    from_less = local_shape_descriptors(too_small, (20.0, 16.0, 24.0), (8.0, 8.0, 8.0), Box((7, 5, 8), (5, 6, 7)))
    assert not np.array_equal(from_all, from_less)


def test_ids_and_their_order_do_not_matter() -> None:
    labels = noise_labels()
    ids = np.random.default_rng(2).permutation(np.arange(60, dtype=np.uint64) * 3 + 5)
    ids[0] = 0
    wanted = local_shape_descriptors(labels, 20.0, (8.0, 8.0, 8.0))
    assert np.array_equal(local_shape_descriptors(ids[labels], 20.0, (8.0, 8.0, 8.0)), wanted)


def test_ids_beyond_53_bits_stay_apart() -> None:
    labels = thick_labels()
    large = labels + np.uint64(2**63)
    wanted = local_shape_descriptors(labels, 20.0, (8.0, 8.0, 8.0))
    assert np.array_equal(local_shape_descriptors(large, 20.0, (8.0, 8.0, 8.0)), wanted)


def test_a_label_does_not_feel_the_others() -> None:
    labels = noise_labels()
    alone = np.where(labels == 7, labels, 0)
    together = local_shape_descriptors(labels, 20.0, (8.0, 8.0, 8.0))
    assert np.array_equal(local_shape_descriptors(alone, 20.0, (8.0, 8.0, 8.0)), together * (labels == 7))


@pytest.mark.proves("NET-02")
def test_background_is_zero_and_all_values_are_in_0_1() -> None:
    labels = thin_labels((12, 13, 20))
    found = local_shape_descriptors(labels, (100.0, 5.0, 20.0), (8.0, 8.0, 8.0))
    assert not found[:, labels == 0].any()
    assert found.min() >= 0
    assert found.max() <= 1
    assert not local_shape_descriptors(np.zeros((3, 4, 5), np.uint64), 20.0, (8.0, 8.0, 8.0)).any()


def test_dtype_and_layout_of_labels_do_not_matter() -> None:
    labels = noise_labels()
    wanted = local_shape_descriptors(labels, 20.0, (8.0, 8.0, 8.0))
    for other in (labels.astype(np.uint8), labels.astype(">u8"), np.asfortranarray(labels)):
        assert np.array_equal(local_shape_descriptors(other, 20.0, (8.0, 8.0, 8.0)), wanted)


def test_axes_are_z_y_x() -> None:
    labels = noise_labels()
    turned = local_shape_descriptors(labels.transpose(2, 0, 1), (30.0, 10.0, 20.0), (6.0, 8.0, 7.0))
    wanted = local_shape_descriptors(labels, (10.0, 20.0, 30.0), (8.0, 7.0, 6.0))
    moved = turned[[1, 2, 0, 4, 5, 3, 8, 6, 7, 9]].transpose(0, 2, 3, 1)
    np.testing.assert_allclose(moved, wanted, atol=1e-5, rtol=0)


def test_everything_is_compiled_after_warm_up() -> None:
    warm_up()
    functions = (label_moments.runs_by_y, label_moments.runs_by_z, lsd_cpu.describe)
    before = [len(f.signatures) for f in functions]
    labels = noise_labels()
    labels.flags.writeable = False
    local_shape_descriptors(labels, 20.0, (8.0, 8.0, 8.0))
    local_shape_descriptors(labels[::-1], (20.0, 20.0, 10.0), (8.0, 8.0, 8.0), Box((0, 2, 4), (2, 2, 2)), 2)
    assert [len(f.signatures) for f in functions] == before


# --- errors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("labels", [np.ones((3, 3), np.uint64), np.ones((3, 3, 3), np.int64), np.ones((3, 3, 3))])
def test_refuses_what_is_no_volume_of_labels(labels: np.ndarray) -> None:
    with pytest.raises(BadData, match="unsigned"):
        local_shape_descriptors(labels, 20.0, (8.0, 8.0, 8.0))


@pytest.mark.parametrize(
    ("roi", "downsample", "named"),
    [
        (Box((0, 0, 0), (5, 4, 4)), 1, "roi"),
        (Box((-1, 0, 0), (2, 2, 2)), 1, "roi"),
        (Box((0, 0, 0), (0, 2, 2)), 1, "roi"),
        (Box((1, 0, 0), (2, 2, 2)), 2, "downsample"),
        (Box((0, 0, 0), (2, 3, 2)), 2, "downsample"),
        (Box((0, 0, 0), (2, 2, 2)), 0, "downsample"),
    ],
)
def test_refuses_regions_that_do_not_fit(roi: Box, downsample: int, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        local_shape_descriptors(np.ones((4, 4, 4), np.uint64), 20.0, (8.0, 8.0, 8.0), roi, downsample)


@pytest.mark.parametrize("bad", [0.0, -8.0, float("nan"), float("inf")])
def test_refuses_sizes_that_are_not_positive(bad: float) -> None:
    labels = np.ones((4, 4, 4), np.uint64)
    with pytest.raises(UsageError, match="sigma_nm"):
        local_shape_descriptors(labels, bad, (8.0, 8.0, 8.0))
    with pytest.raises(UsageError, match="voxel_size_nm"):
        local_shape_descriptors(labels, 20.0, (8.0, bad, 8.0))


def test_the_engine_lsds_calls_that_package(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def described(*given: object, **more: object) -> np.ndarray:
        calls.append((given, more))
        return np.ones((10, 2, 4, 4), np.float32)

    monkeypatch.setattr(lsd, "_lsds_function", lambda: described)
    labels, roi = np.ones((8, 8, 8), np.uint64), Box((2, 0, 4), (2, 4, 4))
    found = local_shape_descriptors(labels, 30.0, (10.0, 10.0, 10.0), roi, 2, engine="lsds")
    assert (found == 1).all()
    ((given, more),) = calls
    assert given[0] is labels
    assert (more["sigma"], more["voxel_size"], more["downsample"]) == ((30.0,) * 3, (10, 10, 10), 2)
    assert (tuple(more["roi"].offset), tuple(more["roi"].shape)) == ((2, 0, 4), (2, 4, 4))
