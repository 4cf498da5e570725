"""Each profile trains on the volumes that `lsdflow init` proposes it for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("gunpowder")

from lsdflow_contract.checkpoint import Bundle, Kind, read_bundle
from lsdflow_contract.experiment import load_experiment
from lsdflow_contract.geometry import Box, Vox3
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import Writer, read_manifest
from lsdflow_network.shapes import context_vox
from lsdflow_train_lsd.cli import app as train_lsd
from lsdflow_training import run
from lsdflow_training.config import AffinityTrainingConfig
from lsdflow_training.data.volumes import Source, TrainingVolume, source_problems
from lsdflow_training.resolve import resolve_settings
from lsdflow_training.settings import TrainingSettings
from lsdflow_training.testing import micro_experiment, micro_volume

THIN: Vox3 = (20, 512, 512)
THICK_NM = (30.0, 6.0, 6.0)


def settings_of(
    folder: Path, kind: Kind, table: str = "", lsd: Bundle | None = None, profile: str = "tiny-anisotropic"
) -> TrainingSettings:
    toml = folder / "experiment.toml"
    toml.write_text(f'[experiment]\nprofile = "{profile}"\n[compute]\ndevice = "cpu"\n[train-acrlsd]\n{table}')
    experiment = load_experiment(toml)
    config = experiment.table("train-acrlsd", AffinityTrainingConfig)
    return resolve_settings(experiment, config, "train-acrlsd", kind, voxel_size_nm=THICK_NM, lsd=lsd)


def bundle_of(settings: TrainingSettings) -> Bundle:
    shape = settings.shapes.output_vox
    return Bundle(
        writer=Writer(stage="train-lsd", version="0"), kind="lsd", iteration=1, unet=settings.unet,
        outputs={"lsds": 10},
        train_input_shape_vox=shape, train_output_shape_vox=shape, predict_input_shape_vox=shape,
        predict_output_shape_vox=shape, voxel_size_nm=THICK_NM, sigma_nm=(60.0, 60.0, 60.0),
    )  # fmt: skip


@pytest.mark.parametrize("profile", ["tiny-anisotropic", "general-anisotropic"])
@pytest.mark.parametrize("kind", ["lsd", "mtlsd", "affinities", "acrlsd"])
def test_twenty_sections_are_enough_for_flat_kernels(tmp_path: Path, kind: Kind, profile: str) -> None:
    lsd = bundle_of(settings_of(tmp_path, "lsd", profile=profile)) if kind == "acrlsd" else None
    settings = settings_of(tmp_path, kind, lsd=lsd, profile=profile)
    box = Box((0, 0, 0), THIN)
    volume = TrainingVolume("a", tmp_path, THICK_NM, raw=box, labels=box, mask=None)
    assert source_problems([Source(volume, 1.0, None)], settings) == []
    assert settings.shapes.network_input_vox[0] <= THIN[0]
    assert context_vox(settings.unet)[0] < context_vox(settings.unet)[1] / 3


def test_kernels_of_the_profile_belong_to_its_own_levels(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, "mtlsd", "downsample_factors = [[1, 2, 2]]\ninput_shape_vox = [20, 60, 60]\n")
    assert settings.unet.kernels_down is None
    assert settings_of(tmp_path, "mtlsd").unet.kernels_before(0) == ((1, 3, 3), (1, 3, 3))


def test_general_is_the_recipe_of_the_networks_that_come_with_lsdflow(tmp_path: Path) -> None:
    """Not those of a moving average: see benchmarks/README.md."""
    shipped = Path(__file__).resolve().parents[2] / "stages" / "predict" / "src" / "lsdflow_predict" / "networks"
    for profile, name in (("general", "fib-sem"), ("general-anisotropic", "serial-sections")):
        settings, bundle = settings_of(tmp_path, "mtlsd", profile=profile), read_bundle(shipped / name)
        assert settings.unet == bundle.unet
        assert settings.shapes.network_input_vox == bundle.train_input_shape_vox
        assert settings.predict_input_vox == bundle.predict_input_shape_vox
        assert settings.average_decay is None
        assert settings.validation_fraction > 0


@pytest.mark.parametrize(
    ("profile", "sections", "option", "labelled", "held_out"),
    [
        ("tiny", 160, "", 1.0, 16),
        ("tiny", 150, "", 1.0, 0),
        ("tiny", 40, "", 1.0, 0),
        ("tiny", 40, "train-lsd.validation_fraction=0.1", 1.0, 4),
        ("tiny", 160, "train-lsd.validation_fraction=0", 1.0, 0),
        ("tiny", 160, "train-lsd.input_shape_vox=[172,28,28]", 1.0, 0),
        ("tiny", 160, "", 0.4, 0),
        ("general", 40, "", 1.0, 4),
    ],
)
def test_sections_are_held_out_where_a_volume_is_deep_enough_and_the_rest_can_be_trained(
    tmp_path: Path, profile: str, sections: int, option: str, labelled: float, held_out: int
) -> None:
    toml, layout = micro_experiment(tmp_path), ExperimentLayout(tmp_path)
    micro_volume(layout.training_volume("micro"), (sections, 24, 24))
    prepared = read_manifest(layout, "prepare")
    prepared.facts["volumes"]["training/micro"]["trained_fraction"] = labelled
    prepared.write(layout)
    words = ["--experiment", str(toml), "--json", "--set", f"experiment.profile={profile}"]
    words += ["--set", option] if option else []
    plan = json.loads(CliRunner().invoke(train_lsd, ["plan", *words]).stdout)
    assert plan["regions"]["micro"]["held_out_sections"] == held_out
    assert json.loads(CliRunner().invoke(train_lsd, ["validate", *words]).stdout) == []


def test_a_training_says_that_nothing_is_held_out_of_a_thin_volume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    fractions: list[float] = []
    monkeypatch.setattr(run.LOG, "info", lambda text, *values: lines.append(text % values))
    monkeypatch.setattr(run, "_train_with_torch", lambda t, *_: fractions.append(t.settings.validation_fraction))
    CliRunner().invoke(train_lsd, ["run", "--experiment", str(micro_experiment(tmp_path))])
    assert fractions == [0]
    assert "nothing is held out" in lines[0]
