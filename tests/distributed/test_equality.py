"""Several processes train what one process trains with as many patches a step; each resumes from the other."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from disturbances import be_unable_to_write  # noqa: E402


def largest_difference(one, other) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name].double() - other[name].double()).abs().max()) for name in one)


# What shares its weights also shares their average, and decides together whether to stop.
STEERED = {"average_decay": 0.5, "patience_iterations": 1000}


@pytest.mark.proves("DDP-04", "DDP-14")
@pytest.mark.parametrize(("strategy", "patches", "options"), [("ddp", 2, {}), ("fsdp", 1, STEERED)])
def test_two_processes_learn_what_one_learns_with_twice_as_many_patches(
    training, strategy: str, patches: int, options: dict
) -> None:
    """And each resumes from the checkpoint of the other: what shared its weights loads whole, what was whole is cut.

    Only the first process writes: the second is unable to.
    """
    alone, shared = (training(name, validation_fraction=0.3, **options) for name in ("alone", "shared"))
    how = (f"strategy={strategy}", "fsdp_min_num_params=100", f"accumulate={patches}")
    twice = f"accumulate={2 * patches}"
    assert alone.live(1, twice) == [0], alone.errors
    assert shared.live(2, *how, before=[None, be_unable_to_write]) == [0, 0], shared.errors
    mine, expected = shared.losses(), alone.losses()
    assert list(mine) == list(expected) == [1, 2, 3]
    for number in mine:
        assert float(mine[number]) == pytest.approx(float(expected[number]), rel=1e-5)
    assert largest_difference(shared.weights(3), alone.weights(3)) < 1e-5
    assert shared.bundle(3).validation_loss == pytest.approx(alone.bundle(3).validation_loss, rel=1e-5)
    assert shared.bundle(3).training_key == alone.bundle(3).training_key

    assert alone.live(2, *how, "max_iteration=4") == [0, 0], alone.errors
    assert shared.live(1, twice, "max_iteration=4") == [0], shared.errors
    assert largest_difference(shared.weights(4), alone.weights(4)) < 1e-5
    assert float(shared.losses()[4]) == pytest.approx(float(alone.losses()[4]), rel=1e-5)


def test_four_processes_learn_what_one_learns_with_four_patches_a_step(training) -> None:
    """The sum over four goes another way round the ring than that over two; the losses are of all four."""
    alone, shared = training("alone"), training("shared")
    assert alone.live(1, "accumulate=4", "max_iteration=2") == [0], alone.errors
    assert shared.live(4, "strategy=ddp", "max_iteration=2") == [0, 0, 0, 0], shared.errors
    mine, expected = shared.losses(), alone.losses()
    assert list(mine) == list(expected) == [1, 2]
    for number in mine:
        assert float(mine[number]) == pytest.approx(float(expected[number]), rel=1e-5)
    assert largest_difference(shared.weights(2), alone.weights(2)) < 1e-5


def test_the_lsd_network_before_it_is_whole_in_every_process(training) -> None:
    one, two = training("one", "acrlsd"), training("two", "acrlsd")
    for made in (one, two):
        assert made.live(1, stage="train-lsd") == [0], made.errors
    assert one.live(1, "accumulate=2") == [0], one.errors
    assert two.live(2, "strategy=fsdp", "fsdp_reshard=grad_op") == [0, 0], two.errors
    assert largest_difference(one.weights(3), two.weights(3)) < 1e-5
