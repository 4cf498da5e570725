"""The moving average of weights: its formula, what it swaps, what it restores."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from lsdflow_training.step import AveragedWeights  # noqa: E402


def network(value: float) -> torch.nn.Conv3d:
    made = torch.nn.Conv3d(1, 2, 1)
    torch.nn.init.constant_(made.weight, value)
    torch.nn.init.constant_(made.bias, value)
    return made


def test_the_average_follows_its_formula_with_a_decay_that_grows_to_the_given_one() -> None:
    one = network(0.0)
    averaged, expected = AveragedWeights(one, 0.5), 0.0
    for iteration in range(1, 15):
        torch.nn.init.constant_(one.weight, float(iteration))
        averaged.update(iteration)
        decay = min(0.5, (1 + iteration) / (10 + iteration))
        expected = decay * expected + (1 - decay) * iteration
    with averaged.in_use():
        assert torch.allclose(one.weight, torch.full((2, 1, 1, 1, 1), expected))
        assert torch.equal(one.bias, torch.zeros(2))


def test_the_network_has_the_average_within_the_block_alone_also_after_an_error() -> None:
    one = network(1.0)
    averaged = AveragedWeights(one, 0.9)
    torch.nn.init.constant_(one.weight, 3.0)
    seen = []

    def validate() -> None:
        with averaged.in_use():
            seen.append(one.weight.detach().clone())
            raise RuntimeError

    with pytest.raises(RuntimeError):
        validate()
    assert torch.equal(seen[0], torch.full_like(one.weight, 1.0))
    assert torch.equal(one.weight.detach(), torch.full_like(one.weight, 3.0))
    assert one.weight.requires_grad


def test_an_average_that_begins_again_forgets_earlier_weights() -> None:
    one = network(1.0)
    averaged = AveragedWeights(one, 0.9)
    torch.nn.init.constant_(one.weight, 5.0)
    averaged.begin()
    torch.nn.init.constant_(one.weight, 7.0)
    with averaged.in_use():
        assert torch.equal(one.weight.detach(), torch.full_like(one.weight, 5.0))
