"""When a training ends by itself, and what counts as an improvement."""

from __future__ import annotations

import pytest

from lsdflow_training.settings import Steering
from lsdflow_training.validation import verdict

RULES = Steering(patience=300, min_improvement=0.01)


def curve(*values: float) -> dict[int, float]:
    return {100 * (number + 1): value for number, value in enumerate(values)}


FALLING = curve(*(1.0 / n for n in range(1, 12)))
FLAT = curve(*[0.5] * 11)


@pytest.mark.parametrize(
    ("validations", "losses", "wanted"),
    [
        (curve(1.0, 0.8, 0.6, 0.5, 0.4), FALLING, "continue"),
        (curve(1.0, 0.5, 0.499, 0.498, 0.497), FALLING, "plateau"),
        (curve(1.0, 0.5, 0.6, 0.7, 0.8), FALLING, "overfit"),
        (curve(1.0, 0.5, 0.6, 0.7, 0.8), FLAT, "plateau"),
        (curve(1.0, 0.5, 0.6, 0.7, 0.49), FALLING, "continue"),
        (curve(1.0, 1.0, 1.0), FALLING, "continue"),
        ({}, FALLING, "continue"),
    ],
)
def test_a_training_ends_when_no_validation_within_the_patience_is_better(validations, losses, wanted) -> None:
    assert verdict(validations, losses, RULES) == wanted


def test_without_patience_a_training_continues_whatever_its_curve() -> None:
    assert verdict(curve(*[1.0] * 50), FALLING, Steering(None, 0.0)) == "continue"


def test_the_verdict_does_not_depend_on_the_order_in_which_the_curve_was_read() -> None:
    validations = curve(1.0, 0.5, 0.6, 0.7, 0.8)
    assert verdict(dict(reversed(validations.items())), FALLING, RULES) == verdict(validations, FALLING, RULES)
