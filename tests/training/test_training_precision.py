"""precision = "auto" in a training, and what scaled losses leave in the pictures of a step."""

from __future__ import annotations

import dataclasses

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("gunpowder")

from lsdflow_contract.checkpoint import UNetSpec  # noqa: E402
from lsdflow_network.unet import UNet  # noqa: E402
from lsdflow_training import build  # noqa: E402
from lsdflow_training.build import build_network, training_precision  # noqa: E402
from lsdflow_training.data.patch import Patch  # noqa: E402
from lsdflow_training.processes.collectives import Group  # noqa: E402
from lsdflow_training.processes.ranks import Ranks  # noqa: E402
from lsdflow_training.step import Gradients, train_step  # noqa: E402

GPU, CPU = torch.device("cuda"), torch.device("cpu")
SPEC = UNetSpec(in_channels=1, num_fmaps=2, fmap_inc_factor=2, downsample_factors=((2, 2, 2),))


class OneWithoutBf16(Group):
    """This process and another one, whose GPU has no bf16."""

    def gather(self, values):
        return [list(values), [0.0]]


@pytest.fixture
def settings_for(prepared):
    """settings_for("fsdp") -> a training that leaves its precision open."""

    def make(strategy="ddp", precision="auto"):
        found = prepared("affinities").settings
        distribution = dataclasses.replace(found.distribution, strategy=strategy)
        return dataclasses.replace(found, precision=precision, distribution=distribution)

    return make


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_auto_without_bf16_is_fp16_on_gpus_and_float32_on_cpus(settings_for, monkeypatch, strategy) -> None:
    monkeypatch.setattr(build, "choose_precision", lambda *_: "float32")
    assert training_precision(settings_for(strategy), Group(), GPU) == "fp16"
    assert training_precision(settings_for(strategy), Group(), CPU) == "float32"


def test_all_processes_train_at_the_precision_that_all_devices_have(settings_for, monkeypatch) -> None:
    monkeypatch.setattr(build, "choose_precision", lambda *_: "bf16")
    assert training_precision(settings_for(), Group(), GPU) == "bf16"
    mixed = OneWithoutBf16(Ranks(world_size=2, local_world_size=2))
    assert training_precision(settings_for(), mixed, GPU) == "fp16"
    assert training_precision(settings_for("fsdp"), mixed, GPU) == "fp16"


def test_a_precision_that_is_asked_for_is_used(settings_for, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    for wanted in ("float32", "bf16", "fp16"):
        assert training_precision(settings_for(precision=wanted), Group(), GPU) == wanted


@pytest.mark.parametrize(("precision", "scaled"), [("fp16", True), ("float32", False), ("bf16", False)])
def test_losses_are_scaled_by_the_precision_that_was_found_not_by_the_one_asked_for(
    settings_for, precision, scaled
) -> None:
    how = settings_for()
    _, gradients = build_network(how, UNet(how.unet, how.outputs), None, Group(), CPU, precision)
    assert (gradients.scaler is not None) == scaled


def test_gradients_that_a_snapshot_keeps_are_those_of_the_loss_not_of_the_scaled_loss() -> None:
    draw = torch.Generator().manual_seed(0)
    target = torch.rand((1, 3, 4, 4, 4), generator=draw)
    patch = Patch(torch.rand((1, 1, 20, 20, 20), generator=draw), {"affs": target}, {"affs": torch.ones_like(target)})
    kept = []
    for scaler in (None, torch.amp.GradScaler("cpu", init_scale=2.0**10)):
        torch.manual_seed(0)
        network = UNet(SPEC, {"affs": 3})
        optimizer = torch.optim.SGD(network.parameters(), lr=0.0)
        how = Gradients(scaler=scaler)
        kept.append(
            train_step(network, optimizer, [patch], "float32", keep_gradients=True, gradients=how).predictions["affs"]
        )
    assert kept[0].grad.abs().max() > 0
    torch.testing.assert_close(kept[1].grad, kept[0].grad)
