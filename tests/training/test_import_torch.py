"""A checkpoint of gunpowder with torch is taken over: the same function, or one clear message and nothing written."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from lsdflow_contract.checkpoint import bundle_folder, read_best, read_bundle
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import read_kept_manifest, read_manifest
from lsdflow_network import shapes
from lsdflow_network.inference import load_network, load_predictor
from lsdflow_network.unet import crop_centre
from lsdflow_train_acrlsd.cli import app as train_acrlsd
from lsdflow_train_lsd.cli import app as train_lsd
from lsdflow_training.testing import micro_experiment

ISOTROPIC, ANISOTROPIC = ((2, 2, 2), (3, 3, 3)), ((1, 3, 3), (2, 2, 2))
FLAT, CUBE = (1, 3, 3), (3, 3, 3)


class Passes(nn.Module):
    """Convolutions and ReLUs in turn, or one convolution and a sigmoid, under the names of the lineage."""

    def __init__(self, entering: int, fmaps: int, kernels, last: type[nn.Module] = nn.ReLU) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for i, kernel in enumerate(kernels):
            layers += [nn.Conv3d(fmaps if i else entering, fmaps, kernel), last()]
        self.conv_pass = nn.Sequential(*layers)


class Up(nn.Module):
    def __init__(self, fmaps: int, factor, repeats: bool) -> None:
        super().__init__()
        self.up = nn.Upsample(scale_factor=factor) if repeats else nn.ConvTranspose3d(fmaps, fmaps, factor, factor)


class LineageUNet(nn.Module):
    """Keeps the channels on the way up, no ReLU there; as the lineage has it, with one decoder."""

    def __init__(self, channels: int, factors, repeats: bool, last: int, flat: bool, crops: bool) -> None:
        super().__init__()
        fmaps = [3 * 2**level for level in range(len(factors) + 1)]
        self.kernels = [(FLAT, FLAT) if flat and level == 0 else (CUBE, CUBE) for level in range(len(fmaps))]
        self.factors, self.crops = factors, crops
        self.l_conv = nn.ModuleList(
            Passes(fmaps[n - 1] if n else channels, f, self.kernels[n]) for n, f in enumerate(fmaps)
        )
        self.r_up = nn.ModuleList([nn.ModuleList(Up(fmaps[n + 1], f, repeats) for n, f in enumerate(factors))])
        self.r_conv = nn.ModuleList(
            [
                nn.ModuleList(
                    Passes(fmaps[n] + fmaps[n + 1], last if n == 0 else fmaps[n], self.kernels[n])
                    for n in range(len(factors))
                )
            ]
        )

    def forward(self, x: Tensor, level: int = 0) -> Tensor:
        left = self.l_conv[level].conv_pass(x)
        if level == len(self.factors):
            return left
        inner = self(nn.functional.max_pool3d(left, self.factors[level], self.factors[level]), level + 1)
        up = self.r_up[0][level].up(inner)
        up = crop_centre(up, self._kept(up.shape[2:], level)) if self.crops else up
        return self.r_conv[0][level].conv_pass(torch.cat([crop_centre(left, up.shape[2:]), up], dim=1))

    def _kept(self, shape, level: int) -> tuple[int, ...]:
        """What is left after the convolutions is a multiple of the factors from here down."""
        kept = []
        for axis, size in enumerate(shape):
            eaten = sum(kernel[axis] - 1 for kernel in self.kernels[level])
            step = torch.tensor([f[axis] for f in self.factors[level:]]).prod().item()
            kept.append((size - eaten) // step * step + eaten)
        return tuple(kept)


class Model(nn.Module):
    """The U-Net and its outputs, as labs write them."""

    def __init__(self, kind: str, factors=ISOTROPIC, repeats=False, last=3, flat=False, crops=False) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.unet = LineageUNet(11 if kind == "acrlsd" else 1, factors, repeats, last, flat, crops)
        if kind in ("lsd", "mtlsd"):
            self.lsd_head = Passes(last, 10, [(1, 1, 1)], nn.Sigmoid)
        if kind != "lsd":
            self.aff_head = Passes(last, 3, [(1, 1, 1)], nn.Sigmoid)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        z = self.unet(x)
        heads = {"lsds": getattr(self, "lsd_head", None), "affs": getattr(self, "aff_head", None)}
        return {name: head.conv_pass(z) for name, head in heads.items() if head is not None}


def saved(folder: Path, model: nn.Module, name: str = "model_checkpoint_700") -> Path:
    moments = {0: {"step": torch.tensor(700.0), "exp_avg": torch.zeros(3), "exp_avg_sq": torch.zeros(3)}}
    optimizer = {"state": moments, "param_groups": [{"lr": 1e-4, "betas": (0.95, 0.999), "params": [0]}]}
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    torch.save({"model_state_dict": model.state_dict(), "optimizer_state_dict": optimizer}, path)
    return path


def call(app, toml: Path, source: Path, *more: str):
    lengths = () if "--voxel-size" in more or "bare" in more else ("--voxel-size", "8 nm", "--sigma", "24 nm")
    options = [word for word in more if word != "bare"]
    return CliRunner().invoke(app, ["import-checkpoint", str(toml), "--from", str(source), *lengths, *options])


def with_lsd_network(tmp_path: Path) -> Path:
    """An experiment of mode acrlsd that has an imported LSD network."""
    toml = micro_experiment(tmp_path / "exp")
    assert call(train_lsd, toml, saved(tmp_path / "lsd", Model("lsd", factors=((2, 2, 2),)))).exit_code == 0
    return toml


def largest_difference(toml: Path, stage: str, model: Model) -> float:
    """Between the network of the bundle (and its form for CPUs) and the model, where the model has values."""
    layout = ExperimentLayout(toml.parent)
    folder = bundle_folder(layout.checkpoints(stage), read_best(layout.best_checkpoint(stage)).iteration)
    bundle, network = load_network(folder)
    shape = shapes.nearest_valid_input_shapes(bundle.unet, (70, 70, 70))[1]
    x = torch.rand(1, bundle.unet.in_channels, *shape, generator=torch.Generator().manual_seed(1)) * 2 - 1
    with torch.inference_mode():
        wanted, found = model.eval()(x), network(x)
    on_cpu = load_predictor(folder, precision="float32").predict(x[0].numpy())
    differences = []
    assert set(wanted) == set(found) == set(bundle.outputs)
    for name, values in wanted.items():
        assert float(values.std()) > 1e-4
        for own in (found[name], torch.from_numpy(on_cpu[name])[None]):
            differences.append(float((crop_centre(own, values.shape[2:]) - values).abs().max()))
    return max(differences)


FORMS = {
    "lsd": {"factors": ANISOTROPIC},
    "mtlsd": {"repeats": True, "last": 14},
    "affinities": {"factors": ANISOTROPIC, "flat": True, "repeats": True},
}


@pytest.mark.parametrize("kind", FORMS)
def test_the_imported_network_gives_what_the_model_gives(tmp_path: Path, kind: str) -> None:
    app, stage, mode = (train_lsd, "train-lsd", "acrlsd") if kind == "lsd" else (train_acrlsd, "train-acrlsd", kind)
    toml, model = micro_experiment(tmp_path / "exp", mode), Model(kind, **FORMS[kind])
    factors = "; ".join(",".join(map(str, f)) for f in model.unet.factors)
    more = ("--downsample-factors", factors) if FORMS[kind].get("repeats") else ()
    result = call(app, toml, saved(tmp_path / "foreign", model), *more)
    assert result.exit_code == 0, result.output
    assert largest_difference(toml, stage, model) < 1e-5


def test_an_acrlsd_network_names_the_lsd_network_before_it(tmp_path: Path) -> None:
    toml, model = with_lsd_network(tmp_path), Model("acrlsd")
    result = call(train_acrlsd, toml, saved(tmp_path / "foreign", model), "bare")
    assert result.exit_code == 0, result.output
    assert largest_difference(toml, "train-acrlsd", model) < 1e-5
    layout = ExperimentLayout(toml.parent)
    bundle = read_bundle(bundle_folder(layout.checkpoints("train-acrlsd"), 700))
    assert bundle.lsd_bundle_sha256 == read_best(layout.best_checkpoint("train-lsd")).weights_sha256
    assert (bundle.voxel_size_nm, bundle.sigma_nm) == ((8, 8, 8), (24, 24, 24))


def test_a_network_that_crops_on_its_way_up_has_the_same_values_where_it_has_any(tmp_path: Path) -> None:
    toml, model = micro_experiment(tmp_path / "exp", "affinities"), Model("affinities", crops=True)
    assert call(train_acrlsd, toml, saved(tmp_path / "foreign", model)).exit_code == 0
    assert largest_difference(toml, "train-acrlsd", model) < 1e-5


def test_the_stage_is_finished_then_and_nothing_is_trained_over_it(tmp_path: Path, caplog) -> None:
    toml = with_lsd_network(tmp_path)
    layout = ExperimentLayout(toml.parent)
    before = layout.manifest("train-lsd").read_bytes()
    for verb in ("validate", "status", "plan", "verify", "run"):
        with caplog.at_level("INFO"):
            result = CliRunner().invoke(train_lsd, [verb, "--experiment", str(toml)])
        assert result.exit_code == 0, result.output
    assert "nothing to do, the network of iteration 700 was imported" in caplog.text
    assert layout.manifest("train-lsd").read_bytes() == before
    # the affinity network is trained behind it
    assert CliRunner().invoke(train_acrlsd, ["validate", "--experiment", str(toml)]).exit_code == 0


def test_the_same_import_again_changes_nothing_and_another_one_is_stored_beside_it(tmp_path: Path) -> None:
    toml = with_lsd_network(tmp_path)
    layout = ExperimentLayout(toml.parent)
    first = read_manifest(layout, "train-lsd")
    assert call(train_lsd, toml, tmp_path / "lsd" / "model_checkpoint_700").exit_code == 0
    assert read_manifest(layout, "train-lsd") == first
    other = saved(tmp_path / "other", Model("lsd", factors=ANISOTROPIC), "model_checkpoint_900")
    assert call(train_lsd, toml, other).exit_code == 0
    assert [p.name for p in layout.checkpoints("train-lsd").iterdir()] == ["00000900"]
    assert read_kept_manifest(layout, "train-lsd", first.key) == first


def test_without_its_link_an_imported_network_is_not_used_and_stays_in_the_results(tmp_path: Path) -> None:
    toml = with_lsd_network(tmp_path)
    layout = ExperimentLayout(toml.parent)
    layout.train_dir("train-lsd").unlink()
    planned = CliRunner().invoke(train_lsd, ["plan", "--experiment", str(toml), "--json"])
    assert planned.exit_code == 0, planned.output
    assert "nothing_to_do" not in planned.output
    assert read_kept_manifest(layout, "train-lsd", read_manifest(layout, "train-lsd").key)


class Code:
    """What runs when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, (str(self.trap),)


def pickled(path: Path) -> Path:
    code = Code()
    code.trap = path.with_name("ran")
    torch.save({"model_state_dict": Model("lsd").state_dict(), "extra": code}, path)
    return path


def cut(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return path


def flipped(path: Path) -> Path:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    return path


def changed(folder: Path, **weights) -> Path:
    model = Model("lsd")
    state = {**model.state_dict(), **weights}
    torch.save({"model_state_dict": {k: v for k, v in state.items() if v is not None}}, folder / "model_checkpoint_1")
    return folder / "model_checkpoint_1"


def with_json(path: Path, **content) -> Path:
    (path.parent / "config.json").write_text(json.dumps(content))
    return path


NAN = torch.full((10,), float("nan"))
NORM = torch.zeros(3)
BAD = {
    "absent": (lambda f: f / "model_checkpoint_5", (), 66, "no such checkpoint"),
    "folder": (lambda f: saved(f, Model("lsd")).parent, (), 66, "model_checkpoint_700"),
    "code": (lambda f: pickled(f / "model_checkpoint_1"), (), 65, "could run code"),
    "cut": (lambda f: cut(saved(f, Model("lsd"))), (), 65, "damaged"),
    "flipped": (lambda f: flipped(saved(f, Model("lsd"))), (), 65, "damaged"),
    "kind": (lambda f: saved(f, Model("affinities")), (), 76, "affinities: 1 channels in"),
    "said kind": (lambda f: saved(f, Model("lsd")), ("--kind", "mtlsd"), 76, "another kind"),
    "unknown": (lambda f: changed(f, **{"unet.norm.weight": NORM, "unet.norm.bias": NORM}), (), 65, "unet.norm"),
    "lost": (lambda f: changed(f, **{"unet.l_conv.1.conv_pass.2.weight": None}), (), 65, "l_conv.1.conv_pass.2"),
    "two heads": (lambda f: changed(f, **{"unet.r_up.1.0.up.weight": torch.zeros(6, 6, 2, 2, 2),
                                          "unet.r_up.1.0.up.bias": torch.zeros(6)}), (), 65, "one decoder"),
    "narrow": (lambda f: changed(f, **{"unet.l_conv.1.conv_pass.2.weight": torch.zeros(6, 5, 3, 3, 3)}),
               (), 65, "[6, 6, 3, 3, 3]"),
    "nan": (lambda f: changed(f, **{"lsd_head.conv_pass.0.bias": NAN}), (), 65, "NaN"),
    "no factors": (lambda f: saved(f, Model("lsd", repeats=True)), (), 2, "--downsample-factors"),
    "other factors": (lambda f: saved(f, Model("lsd")), ("--downsample-factors", "2,2,2; 2,2,2"), 78, "[3, 3, 3]"),
    "no voxel size": (lambda f: saved(f, Model("lsd")), ("bare",), 2, "--voxel-size"),
    "no sigma": (lambda f: with_json(saved(f, Model("lsd")), voxel_size=8), ("bare",), 2, "--sigma"),
    "no iteration": (lambda f: saved(f, Model("lsd"), "model"), (), 2, "--iteration"),
    "wrong json": (lambda f: with_json(saved(f, Model("lsd")), input_shape="large"), (), 65, "found: input_shape: "),
    "other json": (lambda f: with_json(saved(f, Model("lsd")), input_shape=[60] * 3, output_shape=[14] * 3),
                   (), 65, "another network"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_reported_in_one_message_and_nothing_is_written(tmp_path: Path, name: str) -> None:
    make, options, code, said = BAD[name]
    toml = micro_experiment(tmp_path / "exp")
    (tmp_path / "foreign").mkdir()
    before = sorted(tmp_path.joinpath("exp").rglob("*"))
    result = call(train_lsd, toml, make(tmp_path / "foreign"), *options)
    assert result.exit_code == code, result.output
    assert said in result.output
    assert len(re.findall(r"^error: ", result.output, re.MULTILINE)) == 1
    assert sorted(tmp_path.joinpath("exp").rglob("*")) == before
    assert not (tmp_path / "foreign" / "ran").exists()


def test_an_acrlsd_network_without_its_lsd_network_is_refused(tmp_path: Path) -> None:
    toml, expected = micro_experiment(tmp_path / "exp"), saved(tmp_path / "foreign", Model("acrlsd"))
    result = call(train_acrlsd, toml, expected)
    assert result.exit_code == 66
    assert "train-lsd import-checkpoint" in result.output
    assert call(train_lsd, toml, saved(tmp_path / "lsd", Model("lsd"))).exit_code == 0
    with_json(expected, lsds_iteration=300000)
    result = call(train_acrlsd, toml, expected)
    assert result.exit_code == 76
    assert "iteration 300000" in result.output
    assert not (toml.parent / "train" / "train-acrlsd").exists()


def test_a_checkpoint_of_tensorflow_asks_for_tensorflow_where_there_is_none(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("lsdflow_importers.checkpoints._TENSORFLOW_READER", "no_such_reader")
    (tmp_path / "train_net_checkpoint_9.index").touch()
    result = call(train_lsd, micro_experiment(tmp_path / "exp"), tmp_path / "train_net_checkpoint_9")
    assert result.exit_code == 78
    assert "make setup-tensorflow" in result.output
