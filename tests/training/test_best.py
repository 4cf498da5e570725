"""best.json names the checkpoint of the lowest validation loss, unless one was chosen by VOI and is still whole."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from lsdflow_contract.checkpoint import (
    WEIGHTS,
    BestCheckpoint,
    Bundle,
    UNetSpec,
    bundle_folder,
    bundle_iterations,
    read_best,
    write_best,
)
from lsdflow_contract.manifest import Writer
from lsdflow_network.bundle import save_bundle
from lsdflow_training.checkpoints import choose_best, keep_best

KEY = "training"


def leave_checkpoint(folder: Path, iteration: int, loss: float) -> Bundle:
    """A checkpoint as a training leaves it, with one weight."""
    shape = (4, 4, 4)
    bundle = Bundle(
        writer=Writer.of("train-acrlsd"),
        kind="affinities",
        iteration=iteration,
        unet=UNetSpec(in_channels=1, num_fmaps=1, fmap_inc_factor=1, downsample_factors=()),
        outputs={"affs": 3},
        train_input_shape_vox=shape,
        train_output_shape_vox=shape,
        predict_input_shape_vox=shape,
        predict_output_shape_vox=shape,
        voxel_size_nm=(8.0, 8.0, 8.0),
        training_key=KEY,
        validation_loss=loss,
    )
    return save_bundle(folder / "checkpoints", bundle, {"weight": torch.tensor([float(iteration)])})


def choose_by_voi(folder: Path, bundle: Bundle) -> BestCheckpoint:
    """best.json as select-checkpoint writes it."""
    best = BestCheckpoint(
        iteration=bundle.iteration, weights_sha256=bundle.weights_sha256, validation_loss=2.0, chosen_by="voi", voi=0.5
    )
    write_best(folder / "best.json", best)
    return best


@pytest.fixture
def bundles(tmp_path: Path) -> dict[int, Bundle]:
    """Checkpoints 10 and 20, of which 10 has the higher loss."""
    return {iteration: leave_checkpoint(tmp_path, iteration, loss) for iteration, loss in ((10, 2.0), (20, 1.0))}


@pytest.mark.proves("TLS-23")
def test_the_checkpoint_with_the_lowest_loss_is_chosen(tmp_path: Path, bundles: dict[int, Bundle]) -> None:
    best = choose_best(tmp_path, KEY)
    assert (best.iteration, best.validation_loss, best.chosen_by) == (20, 1.0, "loss")
    assert best.weights_sha256 == bundles[20].weights_sha256
    assert read_best(tmp_path / "best.json") == best


@pytest.mark.proves("TLS-16", "DDP-16")
def test_the_best_few_by_loss_are_kept_besides_the_newest(tmp_path: Path) -> None:
    losses = {10: 0.5, 20: 0.2, 30: 0.4, 40: 0.3, 50: 0.9}
    for iteration, loss in losses.items():
        leave_checkpoint(tmp_path, iteration, loss)
    left = []
    for best_too in (5, 3, 1):
        assert keep_best(tmp_path, KEY, 1, best_too).iteration == 20
        left.append(bundle_iterations(tmp_path / "checkpoints"))
    assert left == [[10, 20, 30, 40, 50], [20, 30, 40, 50], [20, 50]]


def test_a_choice_by_voi_and_the_best_by_loss_are_both_kept(tmp_path: Path, bundles: dict[int, Bundle]) -> None:
    choose_by_voi(tmp_path, bundles[10])
    for iteration in (30, 40):
        leave_checkpoint(tmp_path, iteration, 3.0)
    assert keep_best(tmp_path, KEY, 1, 1).iteration == 10
    assert bundle_iterations(tmp_path / "checkpoints") == [10, 20, 40]


def test_a_training_that_continues_leaves_a_choice_by_voi_alone(
    tmp_path: Path, bundles: dict[int, Bundle], caplog: pytest.LogCaptureFixture
) -> None:
    by_voi = choose_by_voi(tmp_path, bundles[10])
    leave_checkpoint(tmp_path, 30, 0.1)
    with caplog.at_level("INFO"):
        assert choose_best(tmp_path, KEY) == by_voi == read_best(tmp_path / "best.json")
    assert "stays at iteration 10" in caplog.text


@pytest.mark.parametrize("lost", ["deleted", "damaged", "another"])
def test_a_choice_by_voi_whose_checkpoint_is_lost_gives_way_to_the_loss(
    tmp_path: Path, bundles: dict[int, Bundle], lost: str
) -> None:
    choose_by_voi(tmp_path, bundles[10])
    folder = bundle_folder(tmp_path / "checkpoints", 10)
    if lost == "deleted":
        shutil.rmtree(folder)
    elif lost == "damaged":
        (folder / WEIGHTS).write_bytes(b"other")
    else:
        choose_by_voi(tmp_path, bundles[10].model_copy(update={"weights_sha256": "of another training"}))
    best = choose_best(tmp_path, KEY)
    assert (best.iteration, best.chosen_by) == (20, "loss")
    assert read_best(tmp_path / "best.json") == best
