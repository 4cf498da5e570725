"""How gradients become a step: mean of the patches, clipped, the learning rate scaled, levels computed again."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("gunpowder")

from lsdflow_contract.checkpoint import UNetSpec  # noqa: E402
from lsdflow_contract.errors import ConfigError  # noqa: E402
from lsdflow_network.unet import UNet  # noqa: E402
from lsdflow_training.config import TrainingConfig  # noqa: E402
from lsdflow_training.data.patch import Patch  # noqa: E402
from lsdflow_training.processes.ranks import Ranks  # noqa: E402
from lsdflow_training.processes.sharding import compute_again  # noqa: E402
from lsdflow_training.resolve import resolve_distribution  # noqa: E402
from lsdflow_training.settings import StepOptions  # noqa: E402
from lsdflow_training.step import Gradients, train_step  # noqa: E402

SPEC = UNetSpec(in_channels=1, num_fmaps=2, fmap_inc_factor=2, downsample_factors=((2, 2, 2),))


def network() -> UNet:
    torch.manual_seed(0)
    return UNet(SPEC, {"affs": 3})


def patch(seed: int, counted: float = 1.0) -> Patch:
    """counted: the share of voxels that count."""
    draw = torch.Generator().manual_seed(seed)
    target = torch.rand((1, 3, 4, 4, 4), generator=draw)
    raw = torch.rand((1, 1, 20, 20, 20), generator=draw)
    return Patch(raw, {"affs": target}, {"affs": (torch.rand(target.shape, generator=draw) < counted).float()})


def gradient_of(patches: list[Patch], net: UNet | None = None, **how) -> torch.Tensor:
    """What a step of plain descent at rate 1 subtracts from the weights."""
    net = net or network()
    before = torch.cat([p.detach().flatten() for p in net.parameters()])
    train_step(net, torch.optim.SGD(net.parameters(), lr=1.0), patches, "float32", gradients=Gradients(**how))
    return before - torch.cat([p.detach().flatten() for p in net.parameters()])


@pytest.mark.proves("DDP-10")
def test_the_gradient_of_a_step_is_the_mean_over_its_patches() -> None:
    one, other = gradient_of([patch(1)]), gradient_of([patch(2)])
    assert torch.allclose(gradient_of([patch(1), patch(2)]), (one + other) / 2, atol=1e-6)
    assert not torch.allclose(one, other, atol=1e-4)


@pytest.mark.proves("DDP-10")
@pytest.mark.parametrize("batch_size", [2, 3, 5])
def test_patches_of_one_forward_pass_have_the_gradient_of_as_many_passes(batch_size: int) -> None:
    """Also if the last pass has fewer, and if patches differ in how many of their voxels count."""
    patches = [patch(seed, counted) for seed, counted in enumerate((1.0, 0.5, 0.02, 0.9, 0.0))]
    one_by_one = gradient_of(patches)
    passes = []
    net = network()
    net.register_forward_hook(lambda _net, given, _out: passes.append(len(given[0])))
    torch.testing.assert_close(gradient_of(patches, net, batch_size=batch_size), one_by_one, rtol=1e-4, atol=1e-7)
    assert passes == {2: [2, 2, 1], 3: [3, 2], 5: [5]}[batch_size]


def test_a_snapshot_shows_the_last_patch_of_a_forward_pass_with_its_own_gradient() -> None:
    patches, kept = [patch(1), patch(2, 0.5)], []
    for batch_size in (1, 2):
        net, how = network(), Gradients(batch_size=batch_size)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
        kept.append(
            train_step(net, optimizer, patches, "float32", keep_gradients=True, gradients=how).predictions["affs"]
        )
    assert kept[1].shape == patches[1].targets["affs"].shape
    torch.testing.assert_close(kept[1], kept[0])
    assert kept[0].grad.abs().max() > 0
    torch.testing.assert_close(kept[1].grad, kept[0].grad)


def test_exchange_is_on_for_the_last_forward_pass_only() -> None:
    switched: list[bool] = []
    gradient_of([patch(seed) for seed in range(5)], batch_size=2, exchange=switched.append)
    assert switched == [False, False, True]


def test_a_step_reports_the_mean_losses_of_its_patches() -> None:
    losses = [
        train_step(net := network(), torch.optim.SGD(net.parameters(), lr=0.0), patches, "float32").losses["affs"]
        for patches in ([patch(1)], [patch(2)], [patch(1), patch(2)])
    ]
    assert losses[2] == pytest.approx((losses[0] + losses[1]) / 2)


@pytest.mark.proves("DDP-11")
def test_a_clipped_gradient_has_the_given_norm_and_the_same_direction() -> None:
    free = gradient_of([patch(1)])
    limit = float(free.norm()) / 10
    assert torch.allclose(gradient_of([patch(1)], clip=limit), free / 10, atol=1e-6)
    assert torch.allclose(gradient_of([patch(1)], clip=1e6), free)


@pytest.mark.proves("DDP-08")
def test_levels_that_are_computed_again_give_equal_gradients_and_the_same_names() -> None:
    usual, again = network(), network()
    compute_again(again)
    calls = []
    again.down[0].convs[0].register_forward_hook(lambda *_: calls.append(1))
    assert torch.equal(gradient_of([patch(1)], again), gradient_of([patch(1)], usual))
    assert len(calls) == 2
    assert again.state_dict().keys() == usual.state_dict().keys()


def test_the_key_of_a_training_knows_patches_per_step_not_who_makes_them() -> None:
    assert StepOptions().parameters() == {}
    assert StepOptions(accumulate=4, effective_batch=4).parameters() == {"effective_batch": 4}
    assert StepOptions(accumulate=2, effective_batch=4).parameters() == {"effective_batch": 4}
    assert StepOptions(batch_size=4, effective_batch=4).parameters() == {"effective_batch": 4}
    assert StepOptions(checkpoint_activations=True).parameters() == {}
    assert StepOptions(clip_gradient=1.0, optimizer="adamw", weight_decay=0.1).parameters() == {
        "clip_gradient": 1.0,
        "optimizer": "adamw",
        "weight_decay": 0.1,
    }


@pytest.mark.parametrize("options", [{"precision": "fp16"}, {"fsdp_cpu_offload": True}])
def test_what_needs_a_gpu_is_refused_without(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="GPU"):
        resolve_distribution(TrainingConfig(**options), "cpu", Ranks())


def test_auto_is_one_process_where_there_is_no_gpu_and_a_started_process_starts_no_others() -> None:
    assert resolve_distribution(TrainingConfig(processes="auto"), "cpu", Ranks()).processes == 1
    started = Ranks(world_size=2, local_world_size=2, started_locally=True)
    assert resolve_distribution(TrainingConfig(processes=2), "cpu", started).processes == 1
    assert resolve_distribution(TrainingConfig(processes=2), "cpu", Ranks()).processes == 2
