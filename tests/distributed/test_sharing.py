"""FSDP in all its forms learns what one process learns, and resumes to the same bits."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from disturbances import be_asked_to_stop, overflow_in_the_first_step, train_in_fp16  # noqa: E402
from worlds import Training  # noqa: E402

from lsdflow_contract.checkpoint import RESUME, UNetSpec, bundle_folder  # noqa: E402
from lsdflow_network.bundle import tensors_equal  # noqa: E402
from lsdflow_network.unet import UNet  # noqa: E402
from lsdflow_training.checkpoints import read_state  # noqa: E402
from lsdflow_training.processes import drawn_shares  # noqa: E402
from lsdflow_training.processes.drawn_shares import draw_shares, is_empty  # noqa: E402

SHARED = ("strategy=fsdp", "fsdp_min_num_params=100")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """One process with two patches a step, to iteration 2."""
    one = Training.made(tmp_path_factory.mktemp("alone"), "affinities", max_iteration=2)
    assert one.live(1, "accumulate=2") == [0], one.errors
    return one


@pytest.mark.proves("DDP-07")
@pytest.mark.parametrize("piece", [16, 48, 1 << 20])
def test_weights_drawn_in_pieces_are_those_of_a_process_alone(monkeypatch, piece: int) -> None:
    spec = UNetSpec(in_channels=1, num_fmaps=3, fmap_inc_factor=2, downsample_factors=((2, 2, 2), (1, 2, 2)))
    torch.manual_seed(5)
    alone, drawn = UNet(spec, {"affs": 3, "lsds": 10}), torch.get_rng_state()
    with torch.device("meta"):
        empty = UNet(spec, {"affs": 3, "lsds": 10})
    assert is_empty(empty)
    assert not is_empty(alone)
    monkeypatch.setattr(drawn_shares, "PIECE", piece)
    torch.manual_seed(5)
    draw_shares(empty, "cpu")
    assert tensors_equal(empty.state_dict(), alone.state_dict())
    assert torch.equal(torch.get_rng_state(), drawn)


def test_shared_weights_begin_with_the_given_ones(training, alone) -> None:
    given = bundle_folder(alone.folder / "checkpoints", 2)
    one, two = (training(name, "affinities", max_iteration=1, initial_weights=str(given)) for name in ("one", "two"))
    assert one.live(1, "accumulate=2") == [0], one.errors
    assert two.live(2, *SHARED) == [0, 0], two.errors
    for name, value in one.weights(1).items():
        torch.testing.assert_close(two.weights(1)[name], value, rtol=0, atol=1e-5)
    assert two.bundle(1).training_key == one.bundle(1).training_key


@pytest.mark.parametrize(("reshard", "nodes"), [("hybrid", 2), ("none", 1)])
def test_what_is_copied_to_each_node_or_to_each_process_learns_what_one_learns(
    training, alone, reshard: str, nodes: int
) -> None:
    two = training("two", "affinities", max_iteration=2)
    assert two.live(2, *SHARED, f"fsdp_reshard={reshard}", nodes=nodes) == [0, 0], two.errors
    found, wanted = two.weights(2), alone.weights(2)
    assert found.keys() == wanted.keys()
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name], rtol=0, atol=1e-5)
    assert [float(loss) for loss in two.losses().values()] == pytest.approx(
        [float(loss) for loss in alone.losses().values()], rel=1e-5
    )


def test_shared_weights_resume_after_a_signal_to_the_same_bits(training) -> None:
    whole, cut = (training(name, "affinities", max_iteration=4) for name in ("whole", "cut"))
    assert whole.live(2, *SHARED) == [0, 0], whole.errors
    assert cut.live(2, *SHARED, before=[None, be_asked_to_stop]) == [75, 75]
    assert cut.iterations() == [2]
    assert cut.live(2, *SHARED) == [0, 0], cut.errors
    assert tensors_equal(cut.weights(4), whole.weights(4))
    assert list(whole.losses()) == [1, 2, 3, 4]
    assert cut.losses() == whole.losses()


def scale_after(one: Training, iteration: int) -> float:
    """What losses are multiplied by after an iteration."""
    return read_state(bundle_folder(one.folder / "checkpoints", iteration) / RESUME).scaler["scale"]


@pytest.mark.proves("DDP-09")
def test_a_step_that_overflows_in_one_share_is_left_out_by_all(training) -> None:
    """In fp16 (on GPUs before Ampere; here on a CPU): scaled losses work with shared weights as with whole ones."""
    alone, two = (training(name, "affinities", max_iteration=2, checkpoint_every=1) for name in ("alone", "two"))
    assert alone.live(1, "accumulate=2", before=[overflow_in_the_first_step]) == [0], alone.errors
    assert two.live(2, *SHARED, before=[train_in_fp16, overflow_in_the_first_step]) == [0, 0], two.errors
    assert [scale_after(two, 1), scale_after(two, 2)] == [scale_after(alone, 1), scale_after(alone, 2)] == [2.0**15] * 2
    first, second = two.weights(1), two.weights(2)
    assert not tensors_equal(first, second)
    assert tensors_equal(first, alone.weights(1))
    for name, value in alone.weights(2).items():
        torch.testing.assert_close(second[name], value, rtol=0, atol=2e-3)
    assert [float(loss) for loss in two.losses().values()] == pytest.approx(
        [float(loss) for loss in alone.losses().values()], rel=1e-3
    )
