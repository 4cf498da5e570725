"""Ignore adds exactly 0: to the loss, and to every gradient."""

import pytest

torch = pytest.importorskip("torch")

from lsdflow_training.step import total_loss, weighted_mse  # noqa: E402


def values(seed: int) -> "torch.Tensor":
    return torch.rand(1, 3, 4, 4, 4, generator=torch.Generator().manual_seed(seed))


@pytest.mark.proves("TLS-14")
def test_it_is_the_weighted_mean_over_counted_voxels() -> None:
    prediction, target, weight = values(0), values(1), values(2).round()
    expected = sum(
        float(w * (p - t) ** 2)
        for p, t, w in zip(prediction.ravel(), target.ravel(), weight.ravel(), strict=True)
        if w > 0
    ) / int((weight > 0).sum())
    assert float(weighted_mse(prediction, target, weight)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.proves("DAT-04")
@pytest.mark.parametrize("rubbish", [7.0, float("nan"), float("inf")])
def test_ignored_voxels_change_neither_loss_nor_gradient(rubbish: float) -> None:
    weight = values(2).round()
    results = []
    for ignored in (0.0, rubbish):
        leaf = values(0).requires_grad_(True)
        prediction = torch.where(weight > 0, leaf, leaf + ignored if ignored == 7.0 else leaf)
        target = torch.where(weight > 0, values(1), torch.full_like(weight, ignored))
        loss = weighted_mse(prediction, target, weight)
        loss.backward()
        results.append((loss.detach(), leaf.grad))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])
    assert (results[1][1][weight == 0] == 0).all()


def test_nan_predictions_in_ignored_voxels_do_not_reach_the_loss() -> None:
    weight = values(2).round()
    prediction = torch.where(weight > 0, values(0), torch.tensor(float("nan")))
    assert torch.isfinite(weighted_mse(prediction, values(1), weight))


def test_all_ignored_is_zero_not_nan() -> None:
    assert float(weighted_mse(values(0), values(1), torch.zeros(1, 3, 4, 4, 4))) == 0.0


def test_a_trained_voxel_does_change_the_loss() -> None:
    weight = torch.zeros(1, 3, 4, 4, 4)
    weight[0, 0, 0, 0, 0] = 1
    target = values(1)
    before = weighted_mse(values(0), target, weight)
    target[0, 0, 0, 0, 0] += 1
    assert weighted_mse(values(0), target, weight) != before


def test_the_total_is_the_sum_of_the_outputs() -> None:
    predictions, targets = {"lsds": values(0), "affs": values(1)}, {"lsds": values(2), "affs": values(3)}
    weights = {"lsds": torch.ones(1, 3, 4, 4, 4), "affs": torch.ones(1, 3, 4, 4, 4)}
    total, each = total_loss(predictions, targets, weights)
    assert float(total) == pytest.approx(each["lsds"] + each["affs"])
