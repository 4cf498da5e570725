"""Network, losses, gradients and optimizer of TensorFlow say what torch says on the same weights."""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow", reason="make setup-tensorflow installs it")

import torch  # noqa: E402

from lsdflow_contract.checkpoint import UNetSpec  # noqa: E402
from lsdflow_contract.errors import BadData  # noqa: E402
from lsdflow_network.quantise import dequantise_u8 as torch_dequantise  # noqa: E402
from lsdflow_network.quantise import quantise_u8 as torch_quantise  # noqa: E402
from lsdflow_network.unet import UNet as TorchUNet  # noqa: E402
from lsdflow_tensorflow.network import (  # noqa: E402
    UNet,
    dequantise_u8,
    max_pool,
    quantise_u8,
    to_tensorflow,
    to_torch,
    weighted_mse,
)
from lsdflow_training.step import forward_losses, train_step  # noqa: E402
from lsdflow_training.step import weighted_mse as torch_weighted_mse  # noqa: E402

KINDS = ["lsd", "acrlsd", "mtlsd", "affinities"]


def channels_last(values: torch.Tensor) -> np.ndarray:
    return np.moveaxis(values.numpy(), 1, -1)


@pytest.mark.parametrize("shape", [(5, 4, 3, 2, 1), (7,)])
def test_weights_go_to_tensorflow_and_back_bit_for_bit(shape) -> None:
    values = torch.randn(shape)
    there = to_tensorflow(values)
    assert there.shape == ((3, 2, 1, 4, 5) if len(shape) == 5 else shape)
    assert torch.equal(to_torch(there), values)


def test_what_is_no_weight_of_a_3d_convolution_is_refused() -> None:
    with pytest.raises(BadData, match="3-D convolution"):
        to_tensorflow(torch.zeros(3, 3))


@pytest.mark.parametrize(
    ("factors", "variant", "shape"),
    [
        (((2, 2, 2), (3, 3, 3)), {}, (64, 64, 64)),
        (((1, 2, 2), (1, 3, 3)), {}, (22, 64, 58)),
        (((1, 2, 2),), {"upsampling": "keep", "num_fmaps_out": 5, "kernels_down": (((1, 3, 3),), ((3, 3, 3),))},
         (16, 26, 30)),
        (((1, 2, 2),), {"upsampling": "repeat"}, (16, 28, 28)),
    ],
)  # fmt: skip
def test_the_network_answers_as_torchs(factors, variant, shape) -> None:
    torch.manual_seed(1)
    spec = UNetSpec(in_channels=1, num_fmaps=3, fmap_inc_factor=2, downsample_factors=factors, **variant)
    outputs = {"lsds": 10, "affs": 3}
    network = TorchUNet(spec, outputs)
    for parameter in network.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, std=0.3)
    raw = torch.rand(1, 1, *shape) * 2 - 1
    with torch.no_grad():
        wanted = network(raw)
    found = UNet(spec, outputs, network.state_dict())(tf.constant(channels_last(raw)))
    for name in outputs:
        np.testing.assert_allclose(found[name].numpy(), channels_last(wanted[name]), rtol=0, atol=1e-5)
        assert wanted[name].std() > 1e-3


@pytest.mark.parametrize(("factor", "shape"), [((2, 2, 2), (8, 6, 4)), ((1, 3, 3), (2, 9, 6)), ((2, 3, 2), (5, 8, 7))])
def test_the_gradient_of_a_pooled_window_reaches_one_voxel_also_among_equal_ones(factor, shape) -> None:
    values = torch.randint(0, 3, (2, 3, *shape)).float().requires_grad_()
    wanted = torch.nn.functional.max_pool3d(values, factor, factor)
    upstream = torch.rand_like(wanted)
    (wanted * upstream).sum().backward()
    variable = tf.Variable(channels_last(values.detach()))
    for call in (max_pool, tf.function(max_pool)):
        with tf.GradientTape() as tape:
            found = call(variable, factor)
            total = tf.reduce_sum(found * channels_last(upstream))
        np.testing.assert_array_equal(found.numpy(), channels_last(wanted.detach()))
        np.testing.assert_array_equal(tape.gradient(total, variable).numpy(), channels_last(values.grad))


def test_lsds_are_quantised_bit_for_bit_as_by_torch() -> None:
    edges = np.arange(256, dtype=np.float32) / np.float32(255)
    values = np.concatenate(
        [edges, np.nextafter(edges, np.float32(2)), np.nextafter(edges, np.float32(-1)), np.float32([-0.1, 1.1])]
    )
    wanted = torch_quantise(torch.from_numpy(values))
    found = quantise_u8(tf.constant(values))
    assert found.dtype == tf.uint8
    np.testing.assert_array_equal(found.numpy(), wanted.numpy())
    np.testing.assert_array_equal(dequantise_u8(found).numpy(), torch_dequantise(wanted).numpy())


def test_an_ignored_voxel_adds_nothing_to_loss_and_gradient_not_even_nan() -> None:
    prediction, target = np.float32([0.2, np.nan, 0.7]), np.float32([0.5, 0.1, np.inf])
    weight = np.float32([0.5, 0, 0])
    prediction_tf = tf.Variable(prediction)
    with tf.GradientTape() as tape:
        loss = weighted_mse(prediction_tf, tf.constant(target), tf.constant(weight))
    assert float(loss) == float(torch_weighted_mse(*(torch.from_numpy(a) for a in (prediction, target, weight))))
    np.testing.assert_allclose(tape.gradient(loss, prediction_tf).numpy(), [-0.3, 0, 0], rtol=1e-6)
    assert float(weighted_mse(prediction_tf, tf.constant(target), tf.zeros(3))) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_loss_and_gradients_are_torchs(torch_side, kind) -> None:
    made = torch_side(kind)
    (patch,) = made.patches
    (wanted,) = forward_losses(made.network, [patch], "float32")
    for name in patch.targets:
        wanted.predictions[name].retain_grad()
    wanted.loss.backward()
    engine = made.engine()
    assert engine.loss(patch) == pytest.approx(float(wanted.loss.detach()), rel=1e-5)
    result = engine.inspect(patch)
    assert result.losses == pytest.approx(wanted.losses, rel=1e-5)
    for name in patch.targets:
        torch.testing.assert_close(result.predictions[name], wanted.predictions[name].detach(), rtol=0, atol=1e-4)
        torch.testing.assert_close(result.predictions[name].grad, wanted.predictions[name].grad, rtol=1e-3, atol=1e-8)
    if kind == "acrlsd":
        levels = result.predictions["lsds_u8"].int() - wanted.predictions["lsds_u8"].int()
        assert levels.abs().max() <= 1
        assert (levels != 0).float().mean() < 1e-3


def test_three_steps_leave_the_weights_and_moments_that_torch_has(torch_side, monkeypatch: pytest.MonkeyPatch) -> None:
    # In two slabs (see tests/network) torch sums in another order; Adam enlarges that where gradients are near 0.
    monkeypatch.setattr("lsdflow_network.unet._torch_avoids_onednn", lambda x: False)
    made = torch_side("acrlsd", patches=3)
    before = {name: value.clone() for name, value in made.trained.state_dict().items()}
    engine = made.engine()
    losses = [engine.step([patch], number, 1e-3).losses for number, patch in enumerate(made.patches, 1)]
    given = TorchUNet(made.settings.unet, made.settings.outputs)
    optimizer = torch.optim.Adam(given.parameters())
    engine.export(given, optimizer)
    for patch, found in zip(made.patches, losses, strict=True):
        wanted = train_step(made.network, made.optimizer, [patch], "float32")
        assert found == pytest.approx(wanted.losses, rel=1e-4)
    for name, value in made.trained.state_dict().items():
        torch.testing.assert_close(given.state_dict()[name], value, rtol=0, atol=2e-5)
        assert (value - before[name]).abs().max() > 5e-4
    pairs = zip(optimizer.state_dict()["state"].values(), made.optimizer.state_dict()["state"].values(), strict=True)
    for found, wanted in pairs:
        assert found["step"] == wanted["step"] == 3
        for moment in ("exp_avg", "exp_avg_sq"):
            torch.testing.assert_close(found[moment], wanted[moment], rtol=1e-2, atol=1e-7)


def test_torch_resumes_from_what_tensorflow_left_as_tensorflow_does(torch_side) -> None:
    made = torch_side("affinities", patches=3)
    engine = made.engine()
    for number in (1, 2):
        engine.step([made.patches[number]], number, 1e-3)
    engine.export(made.trained, made.optimizer)
    wanted = engine.step([made.patches[0]], 3, 1e-3)
    found = train_step(made.network, made.optimizer, [made.patches[0]], "float32")
    assert found.losses == pytest.approx(wanted.losses, rel=1e-5)
    given = TorchUNet(made.settings.unet, made.settings.outputs)
    engine.export(given, torch.optim.Adam(given.parameters()))
    for name, value in made.trained.state_dict().items():
        torch.testing.assert_close(given.state_dict()[name], value, rtol=0, atol=1e-5)
