"""The loss of an answer that ignores the image, and when the loss of a network is implausible; pictures of a step."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("gunpowder")
torch = pytest.importorskip("torch")

from lsdflow_training.data.patch import Patch  # noqa: E402
from lsdflow_training.snapshots import pictures  # noqa: E402
from lsdflow_training.step import StepResult, total_loss  # noqa: E402
from lsdflow_training.validation import constant_answer_loss, implausible  # noqa: E402


def patch(seed: int, shape: tuple[int, ...] = (1, 3, 4, 5, 6)) -> Patch:
    made = torch.Generator().manual_seed(seed)
    weight = torch.rand(shape, generator=made) * (torch.rand(shape, generator=made) > 0.3)
    return Patch(
        raw=2 * torch.rand((1, 1, 8, 9, 10), generator=made) - 1,
        targets={"affs": torch.rand(shape, generator=made)},
        weights={"affs": weight},
    )


def loss_of(patches: list[Patch], constant: torch.Tensor) -> float:
    answers = [{"affs": constant.expand(p.targets["affs"].shape).float()} for p in patches]
    losses = [total_loss(a, p.targets, p.weights)[0] for a, p in zip(answers, patches, strict=True)]
    return float(torch.stack(losses).mean())


def test_no_constant_answer_has_a_lower_loss() -> None:
    patches = [patch(seed) for seed in range(3)]
    least = constant_answer_loss(patches)
    generator = torch.Generator().manual_seed(9)
    for _ in range(200):
        assert loss_of(patches, torch.rand((1, 3, 1, 1, 1), generator=generator)) >= least - 1e-6
    grid = [loss_of([patches[0]], torch.full((1, 3, 1, 1, 1), value / 100)) for value in range(101)]
    assert min(grid) == pytest.approx(constant_answer_loss([patches[0]]), rel=0.05)


@pytest.mark.proves("TLS-24", "TRB-02")
def test_the_loss_of_a_network_that_has_learnt_nothing_is_implausible_after_some_iterations() -> None:
    assert implausible(0.2, 0.2, 100) == ""
    assert implausible(0.1, 0.2, 1000) == ""
    assert "0.2" in implausible(0.2, 0.2, 1000)
    assert implausible(0.2, constant_answer_loss([]), 1000) == ""


def test_pictures_show_the_middle_section_of_raw_targets_predictions_and_weights() -> None:
    one = patch(1)
    result = StepResult(torch.zeros(()), {}, {"affs": torch.full((1, 3, 4, 5, 6), 0.5)})
    drawn = pictures(one, result)
    assert {name: picture.shape for name, picture in drawn.items()} == {
        "raw": (9, 10, 3),
        "affs/target": (5, 6, 3),
        "affs/prediction": (5, 6, 3),
        "affs/weight": (5, 6, 3),
    }
    assert np.all(drawn["affs/prediction"] == 128)
    assert drawn["affs/target"][2, 3, 1] == round(float(one.targets["affs"][0, 1, 2, 2, 3]) * 255)
    assert drawn["raw"][4, 5, 0] == round(float(one.raw[0, 0, 4, 4, 5] + 1) / 2 * 255)
    heaviest = one.weights["affs"][0].amax(0)
    assert drawn["affs/weight"][1, 4, 2] == round(float(heaviest[2, 1, 4] / heaviest.max()) * 255)
