"""LSD targets in torch: equal to those of the compiled loops, which `test_lsd_targets` holds to the package lsds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

pytest.importorskip("numba")
torch = pytest.importorskip("torch")

from torch.profiler import ProfilerActivity, profile  # noqa: E402

from lsdflow_contract.errors import BadData, UsageError  # noqa: E402
from lsdflow_contract.geometry import Box, Nm3  # noqa: E402
from lsdflow_training.targets import lsd_torch  # noqa: E402
from lsdflow_training.targets.lsd import local_shape_descriptors  # noqa: E402
from lsdflow_training.targets.lsd_torch import lsd_targets_torch  # noqa: E402
from lsdflow_training.testing import thin_labels  # noqa: E402

TOLERANCE = 1e-4
DEVICES = ["cpu", *([pytest.param("cuda", marks=pytest.mark.gpu)] if torch.cuda.is_available() else [])]
SIZE_NM = (8.0, 8.0, 8.0)

on_every_device = pytest.mark.parametrize("device", DEVICES)


# --- generated labels ---------------------------------------------------------------------------------------------


def noise_labels() -> np.ndarray:
    """Many small labels in pieces all over, many of one voxel, with background."""
    return np.random.default_rng(0).integers(0, 60, (11, 14, 27)).astype(np.uint64)


def touching_labels() -> np.ndarray:
    """Oblique slabs without background that touch each other and all borders and cross several tiles."""
    z, y, x = np.indices((20, 22, 41))
    return ((2 * z + y + x) // 13 + 1).astype(np.uint64)


def one_label() -> np.ndarray:
    """All voxels of one label."""
    return np.full((12, 13, 21), 5, dtype=np.uint64)


GENERATED: dict[str, Callable[[], np.ndarray]] = {
    "noise": noise_labels,
    "touching": touching_labels,
    "thin": lambda: thin_labels((18, 19, 30)),
    "one": one_label,
}


def on(device: str, labels: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(labels.astype(np.int64)).to(device)


def by_torch(device: str, labels: np.ndarray, *arguments: object, **options: object) -> np.ndarray:
    return lsd_targets_torch(on(device, labels), *arguments, **options).cpu().numpy()


def assert_equal(found: np.ndarray, wanted: np.ndarray, tolerance: float = TOLERANCE) -> None:
    np.testing.assert_allclose(found, wanted, atol=tolerance, rtol=0)


# --- the same values ----------------------------------------------------------------------------------------------


@on_every_device
@pytest.mark.parametrize("name", GENERATED)
@pytest.mark.parametrize(
    ("sigma_nm", "voxel_size_nm"),
    [
        ((20.0, 20.0, 20.0), SIZE_NM),
        ((50.0, 20.0, 30.0), (40.0, 4.0, 6.5)),
        ((3.0, 1.0, 90.0), (10.0, 8.0, 8.0)),
    ],
    ids=["isotropic", "anisotropic", "window of one voxel in z, y"],
)
def test_equals_the_compiled_loops(device: str, name: str, sigma_nm: Nm3, voxel_size_nm: Nm3) -> None:
    labels = GENERATED[name]()
    found = lsd_targets_torch(on(device, labels), sigma_nm, voxel_size_nm)
    assert found.dtype == torch.float32
    assert found.device.type == device
    wanted = local_shape_descriptors(labels, sigma_nm, voxel_size_nm)
    assert wanted.any()
    assert_equal(found.cpu().numpy(), wanted)


@on_every_device
@pytest.mark.parametrize("name", GENERATED)
@pytest.mark.parametrize("downsample", [1, 2, 3])
def test_equals_the_compiled_loops_in_a_region_of_interest_and_downsampled(
    device: str, name: str, downsample: int
) -> None:
    labels = GENERATED[name]()
    roi = Box((0, 6, downsample), (6, 6, 18))
    arguments = ((40.0, 30.0, 24.0), (10.0, 8.0, 6.0), roi, downsample)
    wanted = local_shape_descriptors(labels, *arguments)
    assert wanted.shape == (10, 6, 6, 18)
    assert_equal(by_torch(device, labels, *arguments), wanted)


@on_every_device
def test_a_batch_is_its_volumes_one_by_one(device: str) -> None:
    volumes = [np.roll(touching_labels(), shift, axis=2) * np.uint64(1 + shift) for shift in range(3)]
    volumes[1][:] = 0
    roi = Box((4, 4, 4), (10, 12, 30))
    found = by_torch(device, np.stack(volumes), 20.0, SIZE_NM, roi)
    assert found.shape == (3, 10, 10, 12, 30)
    assert not found[1].any()
    for one, labels in zip(found, volumes, strict=True):
        assert_equal(one, local_shape_descriptors(labels, 20.0, SIZE_NM, roi))


@on_every_device
def test_background_alone_is_zero(device: str) -> None:
    found = by_torch(device, np.zeros((3, 4, 5)), 20.0, SIZE_NM)
    assert found.shape == (10, 3, 4, 5)
    assert not found.any()


# --- what must not matter -----------------------------------------------------------------------------------------


@on_every_device
def test_ids_and_their_type_do_not_matter(device: str) -> None:
    labels = thin_labels((18, 19, 30))
    wanted = by_torch(device, labels, 20.0, SIZE_NM)
    beyond_int64 = np.where(labels > 0, labels + np.uint64(2**63), 0).astype(np.uint64)
    negative = -labels.astype(np.int64)
    for other in (beyond_int64, negative, labels, labels.astype(np.uint16), labels.astype(np.uint8)):
        found = lsd_targets_torch(torch.from_numpy(other).to(device), 20.0, SIZE_NM)
        assert np.array_equal(found.cpu().numpy(), wanted)


@on_every_device
def test_layout_of_labels_does_not_matter_and_they_stay_as_they_are(device: str) -> None:
    labels = on(device, touching_labels())
    turned = labels.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    assert not turned.is_contiguous()
    before = labels.clone()
    assert torch.equal(lsd_targets_torch(turned, 20.0, SIZE_NM), lsd_targets_torch(labels, 20.0, SIZE_NM))
    assert torch.equal(labels, before)


@on_every_device
@pytest.mark.parametrize("downsample", [1, 2])
def test_the_bound_of_memory_does_not_matter(device: str, downsample: int, monkeypatch: pytest.MonkeyPatch) -> None:
    labels, roi = touching_labels(), Box((0, 2, 4), (18, 20, 36))
    wanted = local_shape_descriptors(labels, 30.0, SIZE_NM, roi, downsample)
    for memory_bytes in (1, 2**22, 2**24, 2**28):
        monkeypatch.setattr(lsd_torch, "CPU_BYTES", memory_bytes)
        monkeypatch.setattr(lsd_torch, "GPU_BYTES", memory_bytes)
        found = by_torch(device, labels, 30.0, SIZE_NM, roi, downsample)
        assert_equal(found, wanted, 1e-5)


@on_every_device
def test_autocast_does_not_matter(device: str) -> None:
    labels = touching_labels()
    wanted = by_torch(device, labels, 20.0, SIZE_NM)
    with torch.autocast(device, torch.bfloat16):
        found = by_torch(device, labels, 20.0, SIZE_NM)
        one = torch.ones((2, 2), device=device)
        assert (one @ one).dtype == torch.bfloat16
    assert np.array_equal(found, wanted)


def precisions_of_products() -> tuple[str, str]:
    return torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision


@on_every_device
def test_products_are_in_full_precision_and_the_setting_is_left_as_it_was(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    product, seen = torch.mm, []

    def observed(*factors: torch.Tensor) -> torch.Tensor:
        seen.append(precisions_of_products())
        return product(*factors)

    monkeypatch.setattr(torch, "mm", observed)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        fast = precisions_of_products()
        by_torch(device, touching_labels(), 20.0, SIZE_NM)
        assert precisions_of_products() == fast
    finally:
        torch.set_float32_matmul_precision(before)
    assert "ieee" not in fast
    assert set(seen) == {("ieee", "ieee")}


# --- memory -------------------------------------------------------------------------------------------------------


def peak_bytes(call: Callable[[], object]) -> int:
    """Most bytes that tensors on the CPU took at a time while `call` ran, beyond those before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        call()
    events = [e for e in recorded.profiler.kineto_results.events() if e.name() == "[memory]"]
    assert events
    return int(np.cumsum([e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())]).max())


@pytest.mark.parametrize("downsample", [1, 2])
@pytest.mark.parametrize("name", ["noise", "one"])
def test_working_memory_stays_below_its_bound(name: str, downsample: int, monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.tile(GENERATED[name](), (1, 2, 2))[:, :24, :36]
    roi = Box((0, 0, 0), (10, 24, 36))
    volume = on("cpu", labels)
    bound = 2**24
    monkeypatch.setattr(lsd_torch, "CPU_BYTES", bound)
    peak = peak_bytes(lambda: lsd_targets_torch(volume, 40.0, SIZE_NM, roi, downsample))
    result = 10 * roi.size * 4
    assert peak < bound + result + 4 * volume.nbytes


# --- errors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "labels",
    [
        torch.ones(3, 3, dtype=torch.int64),
        torch.ones(1, 1, 3, 3, 3, dtype=torch.int64),
        torch.ones(3, 3, 3),
        torch.ones(3, 3, 3, dtype=torch.bool),
    ],
)
def test_refuses_what_is_no_volume_of_labels(labels: torch.Tensor) -> None:
    with pytest.raises(BadData, match="integers"):
        lsd_targets_torch(labels, 20.0, SIZE_NM)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"roi": Box((0, 0, 0), (5, 4, 4))}, "roi"),
        ({"roi": Box((-1, 0, 0), (2, 2, 2))}, "roi"),
        ({"roi": Box((0, 0, 0), (2, 0, 2))}, "roi"),
        ({"downsample": 0}, "downsample"),
        ({"downsample": 3}, "downsample"),
        ({"sigma_nm": (20.0, 0.0, 20.0)}, "sigma_nm"),
        ({"voxel_size_nm": (8.0, float("nan"), 8.0)}, "voxel_size_nm"),
    ],
)
def test_refuses_numbers_that_do_not_fit(options: dict[str, object], named: str) -> None:
    arguments = {"sigma_nm": 20.0, "voxel_size_nm": SIZE_NM} | options
    with pytest.raises(UsageError, match=named):
        lsd_targets_torch(torch.ones(4, 4, 4, dtype=torch.int64), **arguments)


def test_the_place_of_the_labels_decides_what_describes_them() -> None:
    labels = GENERATED["thin"]()
    tensor, how = torch.from_numpy(labels.astype(np.int64)), (24.0, SIZE_NM, Box((4, 4, 4), (8, 8, 8)), 2)
    by_tensor = local_shape_descriptors(tensor, *how)
    assert torch.equal(by_tensor, lsd_targets_torch(tensor, *how))
    assert np.allclose(by_tensor.numpy(), local_shape_descriptors(labels, *how), atol=TOLERANCE)
