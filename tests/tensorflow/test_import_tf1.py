"""Checkpoints that TensorFlow's own v1 saver wrote are taken over: the same function as its session gives."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import torch
from typer.testing import CliRunner

from lsdflow_contract.checkpoint import bundle_folder, read_best
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import read_manifest
from lsdflow_network.inference import load_network, load_predictor
from lsdflow_train_acrlsd.cli import app as train_acrlsd
from lsdflow_train_lsd.cli import app as train_lsd
from lsdflow_training.testing import micro_experiment

v1 = tf.compat.v1
ISOTROPIC, ANISOTROPIC = ((2, 2, 2), (3, 3, 3)), ((1, 3, 3), (2, 2, 2))
FLAT, CUBE = (1, 3, 3), (3, 3, 3)
HEADS = {
    "lsd": {"embedding": 10},
    "acrlsd": {"affs": 3},
    "mtlsd": {"lsds": 10, "affs": 3},
    "affinities": {"affs": 3},
}
OUTPUTS = {"embedding": "lsds", "conv_pass": "lsds", "lsds": "lsds", "affs": "affs"}


class Lineage:
    """A graph with the variables and operations of the published networks, channels last as CPUs need it."""

    def __init__(self, kind: str, factors=ISOTROPIC, *, fmaps=3, last=None, flat=False, decoders=False, constant=False):
        self.kind, self.factors, self.fmaps, self.last = kind, factors, fmaps, last or fmaps
        self.decoder: Callable[[int], str] = (lambda n: f"decoder_0_layer_{n}/") if decoders else lambda n: ""
        self.constant = constant
        self.kernels = [(FLAT, FLAT) if flat and n == 0 else (CUBE, CUBE) for n in range(len(factors) + 1)]
        self.channels = 11 if kind == "acrlsd" else 1
        self.heads = HEADS[kind]

    def outputs(self, x):
        """{name: (1, z, y, x, channels)} of (1, z, y, x, channels), in the variable scope of the setup."""
        with v1.variable_scope("setup_of_" + self.kind):
            top = self.level(x, 0, self.fmaps)
            return {name: self.conv(top, (1, 1, 1), n, f"{name}_0", tf.sigmoid) for name, n in self.heads.items()}

    def level(self, x, level: int, fmaps: int):
        for i, kernel in enumerate(self.kernels[level]):
            x = self.conv(x, kernel, fmaps, f"unet_layer_{level}_left_{i}", tf.nn.relu)
        if level == len(self.factors):
            return x
        factor = self.factors[level]
        inner = self.level(tf.nn.max_pool3d(x, factor, factor, "VALID"), level + 1, 4 * fmaps)
        up = self.up(inner, factor, fmaps, level)
        begin = [0, *[(a - b) // 2 for a, b in zip(x.shape[1:4], up.shape[1:4], strict=True)], 0]
        x = tf.concat([tf.slice(x, begin, [1, *up.shape[1:4], fmaps]), up], axis=-1)
        for i, kernel in enumerate(self.kernels[level]):
            name = f"{self.decoder(level)}unet_layer_{level}_right_{i}"
            x = self.conv(x, kernel, self.last if level == 0 else fmaps, name, tf.nn.relu)
        return x

    def conv(self, x, kernel, fmaps: int, name: str, activation):
        shape = (*kernel, x.shape[-1], fmaps)
        weights, bias = v1.get_variable(f"{name}/kernel", shape), v1.get_variable(f"{name}/bias", (fmaps,))
        return activation(tf.nn.conv3d(x, weights, (1,) * 5, "VALID") + bias)

    def up(self, x, factor, fmaps: int, level: int):
        name, entering = f"{self.decoder(level)}unet_up_{level + 1}_to_{level}", x.shape[-1]
        bias = 0
        if self.constant:
            values = v1.get_variable(f"{name}_kernel_variables", (fmaps * entering,))
            kernel = tf.reshape(values, (1, 1, 1, fmaps, entering)) * tf.ones((*factor, 1, 1))
        else:
            kernel = v1.get_variable(f"{name}/kernel", (*factor, fmaps, entering))
            bias = v1.get_variable(f"{name}/bias", (fmaps,))
        shape = (1, *[n * f for n, f in zip(x.shape[1:4], factor, strict=True)], fmaps)
        return tf.nn.relu(tf.nn.conv3d_transpose(x, kernel, shape, (1, *factor, 1), "VALID") + bias)


def saved(folder: Path, network: Lineage, patch: np.ndarray, iteration: int = 300) -> tuple[Path, dict]:
    """The checkpoint of a session, and what the session gives for the patch (channels, z, y, x)."""
    with tf.Graph().as_default(), v1.Session() as session:
        v1.set_random_seed(5)
        with v1.variable_scope("", initializer=v1.random_normal_initializer(stddev=0.15)):
            x = tf.constant(np.moveaxis(patch, 0, -1)[None], tf.float32)
            outputs = network.outputs(x)
            for variable in list(v1.global_variables())[:2]:
                v1.get_variable(variable.op.name + "/Adam", variable.shape)
            v1.get_variable("setup/beta1_power", ())
            v1.get_variable("gunpowder/iteration", (1,))
        session.run(v1.global_variables_initializer())
        folder.mkdir(exist_ok=True)
        path = v1.train.Saver().save(session, str(folder / f"train_net_checkpoint_{iteration}"))
        values = session.run(outputs)
    return Path(path), {OUTPUTS[name]: np.moveaxis(value[0], -1, 0) for name, value in values.items()}


def a_patch(network: Lineage) -> np.ndarray:
    """Of a shape that the network takes: one tile step larger than the smallest along x."""
    shape = (54, 54, 60) if network.factors == ISOTROPIC else (26, 58, 64)
    return np.random.default_rng(0).uniform(-1, 1, (network.channels, *shape)).astype(np.float32)


def call(app, toml: Path, source: Path, *more: str, lengths=("--voxel-size", "8 nm", "--sigma", "24 nm")):
    return CliRunner().invoke(app, ["import-checkpoint", str(toml), "--from", str(source), *lengths, *more])


def bundle_of(toml: Path, stage: str) -> Path:
    layout = ExperimentLayout(toml.parent)
    return bundle_folder(layout.checkpoints(stage), read_best(layout.best_checkpoint(stage)).iteration)


def largest_difference(folder: Path, patch: np.ndarray, wanted: dict) -> float:
    """Between the session and the network of the bundle, as torch runs it and in its form for CPUs."""
    _, network = load_network(folder)
    with torch.inference_mode():
        eager = {name: value[0].numpy() for name, value in network(torch.from_numpy(patch)[None]).items()}
    on_cpu = load_predictor(folder, precision="float32").predict(patch)
    assert set(wanted) == set(eager)
    for values in wanted.values():
        assert values.std() > 1e-3
    return max(float(np.abs(found[name] - wanted[name]).max()) for found in (eager, on_cpu) for name in wanted)


NETWORKS = {
    "lsd": Lineage("lsd"),
    "lsd, anisotropic": Lineage("lsd", ANISOTROPIC, decoders=True),
    "mtlsd, 14 maps out": Lineage("mtlsd", last=14),
    "mtlsd, anisotropic, one weight a kernel": Lineage("mtlsd", ANISOTROPIC, constant=True),
    "affinities": Lineage("affinities"),
    "affinities, flat kernels": Lineage("affinities", ANISOTROPIC, flat=True, decoders=True),
}


@pytest.mark.proves("NET-11")
@pytest.mark.parametrize("name", NETWORKS)
def test_the_imported_network_gives_what_the_session_gives(tmp_path: Path, name: str) -> None:
    network = NETWORKS[name]
    app, stage = (train_lsd, "train-lsd") if network.kind == "lsd" else (train_acrlsd, "train-acrlsd")
    toml = micro_experiment(tmp_path / "exp", "acrlsd" if network.kind == "lsd" else network.kind)
    patch = a_patch(network)
    path, wanted = saved(tmp_path / "foreign", network, patch)
    factors = ("--downsample-factors", "1,3,3; 2,2,2") if network.constant else ()
    result = call(app, toml, path, *factors)
    assert result.exit_code == 0, result.output
    assert largest_difference(bundle_of(toml, stage), patch, wanted) < 1e-5


@pytest.mark.proves("NET-11")
def test_an_acrlsd_network_is_taken_over_after_its_lsd_network(tmp_path: Path) -> None:
    toml, lsd, network = micro_experiment(tmp_path / "exp"), NETWORKS["lsd"], Lineage("acrlsd")
    path, wanted = saved(tmp_path / "acrlsd", network, a_patch(network))
    result = call(train_acrlsd, toml, path, lengths=())
    assert result.exit_code == 66
    assert "train-lsd import-checkpoint" in result.output
    assert call(train_lsd, toml, saved(tmp_path / "lsd", lsd, a_patch(lsd))[0]).exit_code == 0
    (tmp_path / "acrlsd" / "config.json").write_text('{"lsds_setup": "lsd", "lsds_iteration": 300}')
    result = call(train_acrlsd, toml, path, lengths=())
    assert result.exit_code == 0, result.output
    assert largest_difference(bundle_of(toml, "train-acrlsd"), a_patch(network), wanted) < 1e-5
    inputs = read_manifest(ExperimentLayout(toml.parent), "train-acrlsd").inputs
    lsd_weights = read_best(ExperimentLayout(toml.parent).best_checkpoint("train-lsd")).weights_sha256
    assert inputs["lsd_weights"] == lsd_weights


def without_data(path: Path) -> Path:
    path.with_name(path.name + ".data-00000-of-00001").unlink()
    return path


def cut_data(path: Path) -> Path:
    data = path.with_name(path.name + ".data-00000-of-00001")
    data.write_bytes(data.read_bytes()[: data.stat().st_size // 2])
    return path


def flipped_data(path: Path) -> Path:
    data = path.with_name(path.name + ".data-00000-of-00001")
    content = bytearray(data.read_bytes())
    content[-5] ^= 1
    data.write_bytes(content)
    return path


def cut_index(path: Path) -> Path:
    index = path.with_name(path.name + ".index")
    index.write_bytes(index.read_bytes()[: index.stat().st_size // 2])
    return path


def with_variable(folder: Path, name: str, shape: tuple[int, ...]) -> Path:
    """The LSD network and one more variable."""

    class Extended(Lineage):
        def outputs(self, x):
            v1.get_variable(name, shape)
            return super().outputs(x)

    return saved(folder, Extended("lsd", ANISOTROPIC), a_patch(NETWORKS["lsd, anisotropic"]))[0]


@cache
def checkpoint_of(name: str) -> dict[str, bytes]:
    """The files of a network's checkpoint; a graph takes a second."""
    with tempfile.TemporaryDirectory() as folder:
        path, _ = saved(Path(folder), NETWORKS[name], a_patch(NETWORKS[name]))
        return {file.name: file.read_bytes() for file in path.parent.iterdir()}


def with_elu(folder: Path) -> Path:
    """The LSD network with another activation: its weights do not show it."""

    class Smooth(Lineage):
        def conv(self, x, kernel, fmaps: int, name: str, activation):
            return super().conv(x, kernel, fmaps, name, tf.nn.elu if activation is tf.nn.relu else activation)

    return saved(folder, Smooth("lsd", ANISOTROPIC), a_patch(NETWORKS["lsd, anisotropic"]))[0]


def of(name: str, folder: Path) -> Path:
    folder.mkdir()
    for file, content in checkpoint_of(name).items():
        (folder / file).write_bytes(content)
    return folder / "train_net_checkpoint_300"


ANY = "lsd, anisotropic"
BAD = {
    "no data": (lambda f: without_data(of(ANY, f)), (), 66, ".data-00000-of-00001"),
    "cut data": (lambda f: cut_data(of(ANY, f)), (), 65, "damaged or cut short"),
    "flipped data": (lambda f: flipped_data(of(ANY, f)), (), 65, "damaged or cut short"),
    "cut index": (lambda f: cut_index(of(ANY, f)), (), 65, "damaged or cut short"),
    "kind": (lambda f: of("affinities, flat kernels", f), (), 76, "another kind of network"),
    "unknown": (lambda f: with_variable(f, "setup_of_lsd/norm/gamma", (3,)), (), 65, "setup_of_lsd/norm/gamma"),
    "second head": (lambda f: with_variable(f, "setup_of_lsd/embedding_1/kernel", (1, 1, 1, 10, 10)), (), 65,
                    "embedding_1"),
    "two networks": (lambda f: with_variable(f, "other/unet_layer_0_left_0/kernel", CUBE), (), 65, "one U-Net"),
    "activation": (with_elu, (), 65, "Elu"),
    "other factors": (lambda f: of("mtlsd, anisotropic, one weight a kernel", f),
                      ("--downsample-factors", "1,3,3; 2,2,1"), 65, "[2, 2, 2]"),
    "no factors": (lambda f: of("mtlsd, anisotropic, one weight a kernel", f), (), 2, "--downsample-factors"),
    "no voxel size": (lambda f: of(ANY, f), None, 2, "--voxel-size"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_reported_in_one_message_and_nothing_is_written(tmp_path: Path, name: str) -> None:
    make, options, code, said = BAD[name]
    toml = micro_experiment(tmp_path / "exp")
    before = sorted((tmp_path / "exp").rglob("*"))
    source = make(tmp_path / "foreign")
    result = call(train_lsd, toml, source, lengths=()) if options is None else call(train_lsd, toml, source, *options)
    assert result.exit_code == code, result.output
    assert said in result.output
    assert len(re.findall(r"^error: ", result.output, re.MULTILINE)) == 1
    assert sorted((tmp_path / "exp").rglob("*")) == before


def test_the_json_beside_it_gives_the_shapes_and_must_describe_this_network(tmp_path: Path) -> None:
    toml, path = micro_experiment(tmp_path / "exp"), of("lsd", tmp_path / "foreign")
    beside = tmp_path / "foreign" / "config.json"
    beside.write_text('{"input_shape": [60, 60, 54], "output_shape": [11, 12, 6]}')
    result = call(train_lsd, toml, path)
    assert result.exit_code == 65
    assert "[12, 12, 6]" in result.output
    beside.write_text('{"input_shape": [60, 60, 54], "output_shape": [12, 12, 6], "raw": "lsd/Placeholder:0"}')
    result = call(train_lsd, toml, path)
    assert result.exit_code == 0, result.output
    assert load_network(bundle_of(toml, "train-lsd"))[0].predict_input_shape_vox == (60, 60, 54)
