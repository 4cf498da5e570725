"""`lsdflow init`: it inspects, proposes with reasons, finds labels by itself, and writes nothing when it should not."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lsdflow_contract.errors import BadData, InternalError, MissingInput, NoVoxelSize
from lsdflow_contract.experiment import load_experiment
from lsdflow_launch.cli import app
from lsdflow_launch.init import cli as start_cli
from lsdflow_launch.init import draft, inspect
from lsdflow_launch.init.template import experiment_text
from lsdflow_launch.planning.evidence import gpu_lines

TABLES = {
    "experiment": {"properties": {"profile": {"enum": ["tiny", "standard"]}, "mode": {"enum": ["acrlsd", "mtlsd"]}}},
    "compute": {"properties": {"workers": {"default": 2, "description": "worker processes"}}},
    "prepare": {"properties": {"training": {"type": "array"}, "target": {"$ref": "#/$defs/T"}}, "$defs": {"T": {}}},
    "train-lsd": {"properties": {"sigma": {}}},
    "train-acrlsd": {"properties": {"sigma": {}}},
    "watershed": {"properties": {"block_shape": {}}},
}
FACTS = {"shape_vox": [50, 100, 200], "voxel_size_nm": [10.0, 10.0, 10.0], "dtype": "uint8", "grey": [3.0, 250.0]}
LABELS = {"where": "a", "neurons": 9, "labelled_fraction": 1.0, "trained_fraction": 1.0}
TRAINING = {**FACTS, "labels": LABELS, "labels_beside": False}
TARGET = {**FACTS, "labels": None, "labels_beside": False}


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What prepare will answer; what it was asked is put in as "table"."""
    answer: dict[str, Any] = {"volumes": {"training/a": TRAINING, "target": TARGET}, "problems": []}

    def ask(tables: Mapping[str, Any]) -> dict[str, Any]:
        answer["table"] = tables["prepare"]
        return answer

    monkeypatch.setattr(inspect, "_ask", ask)
    monkeypatch.setattr(inspect, "network_to_start_from", lambda *_wanted: None)
    monkeypatch.setattr(draft, "table_schemas", lambda _stages: TABLES)
    monkeypatch.setattr(draft, "images_text", lambda _stages, _sifs: "WATERSHED_IMAGE=lsdflow/watershed:0.1.0\n")
    monkeypatch.setattr(start_cli, "problems_of", lambda _experiment: {})
    return answer


def init(root: Path, *more: str, code: int = 0) -> Any:
    (root / "raw.zarr").mkdir(exist_ok=True)
    done = CliRunner().invoke(app, ["init", str(root / "exp"), "--volume", str(root / "raw.zarr"), *more])
    assert done.exit_code == code, done.output
    return done


def drafted(root: Path, *more: str) -> dict[str, Any]:
    text = init(root, "--dry-run", *more).stdout
    assert text.startswith("#:schema ./experiment.schema.json\n")
    return tomllib.loads(text)


def test_a_dry_run_shows_the_file_with_reasons_and_writes_nothing(seen: dict[str, Any], tmp_path: Path) -> None:
    output = init(tmp_path, "--train", str(tmp_path / "raw.zarr"), "--dry-run").stdout
    assert "# why: nearly isotropic voxels; 1.0 million labelled voxels in 50 sections" in output
    assert tomllib.loads(output)["train-lsd"]["sigma"] == "100 nm"
    assert not (tmp_path / "exp").exists()


def test_what_is_written_is_what_the_dry_run_printed_and_the_schema_is_next_to_it(
    seen: dict[str, Any], tmp_path: Path
) -> None:
    output = init(tmp_path, "--dry-run").stdout
    answer = json.loads(init(tmp_path, "--json").stdout)
    assert (tmp_path / "exp" / "experiment.toml").read_text() == output
    assert json.loads((tmp_path / "exp" / "experiment.schema.json").read_text())["type"] == "object"
    assert {"experiment.profile", "compute.workers", "watershed.block_shape"} <= {c["key"] for c in answer["proposed"]}
    assert answer["next"] == f"lsdflow run {tmp_path / 'exp'}"


def test_labels_in_the_container_of_the_volume_train_and_are_its_truth(seen: dict[str, Any], tmp_path: Path) -> None:
    seen["volumes"]["target"] = {**TARGET, "labels_beside": True}
    prepare = drafted(tmp_path)["prepare"]
    assert prepare["training"][0]["raw"] == prepare["target"]["raw"] == prepare["target"]["truth"] == "../raw.zarr"
    assert "the scores flatter" in init(tmp_path, "--dry-run").stdout.replace("\n#   ", " ")


def test_labels_of_the_target_are_its_truth_when_something_else_is_trained_on(
    seen: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "train.zarr").mkdir()
    more = ("--train", str(tmp_path / "train.zarr"))
    assert "truth" not in drafted(tmp_path, *more)["prepare"]["target"]
    seen["volumes"]["target"] = {**TARGET, "labels_beside": True}
    assert drafted(tmp_path, *more)["prepare"]["target"]["truth"] == "../raw.zarr"
    assert "flatter" not in init(tmp_path, *more, "--dry-run").stdout


def test_a_volume_without_labels_needs_train(seen: dict[str, Any], tmp_path: Path) -> None:
    del seen["volumes"]["training/a"]
    seen["problems"] = [{**MissingInput("no such dataset").as_dict()}]
    output = init(tmp_path, code=2).stderr
    assert "no labels to train on" in output
    assert "--train LABELLED.zarr" in output
    assert not (tmp_path / "exp").exists()


def test_a_missing_voxel_size_is_one_message_with_the_option_that_gives_it(
    seen: dict[str, Any], tmp_path: Path
) -> None:
    problem = NoVoxelSize("the volume does not say its voxel size", where="raw.zarr").as_dict()
    seen.update(volumes={}, problems=[problem, problem])
    output = init(tmp_path, code=65).stderr
    assert output.count("voxel size") == 1
    assert '--voxel-size "40, 8, 8 nm"' in output
    assert not (tmp_path / "exp").exists()


def test_the_voxel_size_that_is_given_holds_for_all_volumes(seen: dict[str, Any], tmp_path: Path) -> None:
    prepare = drafted(tmp_path, "--voxel-size", "40, 8, 8 nm")["prepare"]
    assert prepare["training"][0]["voxel_size"] == prepare["target"]["voxel_size"] == "40, 8, 8 nm"
    assert seen["table"]["target"]["voxel_size"] == "40, 8, 8 nm"
    assert "a length needs its unit" in init(tmp_path, "--voxel-size", "40 8 8", code=2).stderr


def test_what_the_user_sets_is_not_proposed(seen: dict[str, Any], tmp_path: Path) -> None:
    text = init(tmp_path, "--set", "compute.workers=7", "--profile", "standard", "--dry-run").stdout
    assert tomllib.loads(text)["compute"]["workers"] == 7
    assert "# worker processes\nworkers = 7" in text
    assert tomllib.loads(text)["experiment"]["profile"] == "standard"


def test_grey_values_and_voxels_are_proposed_for_every_training_volume(seen: dict[str, Any], tmp_path: Path) -> None:
    sixteen = {"dtype": "uint16", "grey": [10.0, 900.0]}
    seen["volumes"] = {"training/a": {**TRAINING, **sixteen}, "target": {**TARGET, **sixteen}}
    one = str(tmp_path / "raw.zarr")
    prepare = drafted(tmp_path, "--train", one, "--train", one)["prepare"]
    assert [volume["raw_range"] for volume in (*prepare["training"], prepare["target"])] == [[10.0, 900.0]] * 3


@pytest.mark.parametrize("wrong", [("--profile", "tinny", "did you mean 'tiny'"), ("--mode", "mtlds", "'mtlsd'")])
def test_a_word_that_there_is_not_is_refused_with_the_nearest(
    seen: dict[str, Any], tmp_path: Path, wrong: tuple[str, str, str]
) -> None:
    option, word, expected = wrong
    assert expected in init(tmp_path, option, word, code=78).stderr
    assert not (tmp_path / "exp").exists()


@pytest.mark.parametrize("place", ["vol.zarr", "vol.zarr/volumes/exp", "other.zarr", "other.n5/deep/exp", "pre/exp"])
def test_a_folder_in_a_volume_is_refused_and_the_volume_stays_as_it_is(
    seen: dict[str, Any], tmp_path: Path, place: str
) -> None:
    for name, file in {"vol.zarr": ".zgroup", "other.zarr": "zarr.json", "other.n5": "attributes.json"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text('{"n5": "2.0.0"}')
    (tmp_path / "pre").mkdir()
    (tmp_path / "pre" / "info").write_text('{"scales": [], "data_type": "uint8"}')
    before = sorted(tmp_path.rglob("*"))
    done = CliRunner().invoke(app, ["init", str(tmp_path / place), "--volume", str(tmp_path / "vol.zarr")])
    assert done.exit_code == 2, done.output
    assert "an experiment cannot be in a volume" in done.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_of_data_that_is_no_volume_may_hold_the_experiment(seen: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "exp" / "input" / "vol.zarr").mkdir(parents=True)
    made = ["init", str(tmp_path / "exp"), "--volume", str(tmp_path / "exp/input/vol.zarr"), "--json"]
    done = CliRunner().invoke(app, made)
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), OSError(28, "No space left on device"), MissingInput("x")])
@pytest.mark.parametrize("moment", ["write", "check"])
def test_a_failed_or_interrupted_init_leaves_nothing_behind(
    seen: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException, moment: str
) -> None:
    def fails(*_: object) -> Any:
        raise failure

    if moment == "check":
        monkeypatch.setattr(start_cli, "load_experiment", fails)
    else:
        write = draft._write
        monkeypatch.setattr(
            draft, "_write", lambda path, text: fails() if path.suffix == ".toml" else write(path, text)
        )
    (tmp_path / "raw.zarr").mkdir()
    wanted = sorted(tmp_path.rglob("*"))
    made = ["init", str(tmp_path / "deep" / "exp"), "--volume", str(tmp_path / "raw.zarr"), "--json"]
    assert CliRunner().invoke(app, made).exit_code != 0
    assert sorted(tmp_path.rglob("*")) == wanted


def test_a_volume_that_cannot_be_used_is_the_error_of_init_and_can_be_helped_by_settings(
    seen: dict[str, Any], tmp_path: Path
) -> None:
    seen["problems"] = [BadData("no volume format is recognised", where="raw.zarr", fix="name the container").as_dict()]
    output = init(tmp_path, "--train", str(tmp_path / "raw.zarr"), code=65).stderr
    assert "no volume format is recognised" in output
    assert "--set prepare.training.KEY=VALUE" in output
    assert not (tmp_path / "exp").exists()
    seen["problems"] = []
    settings = ("--set", "prepare.training.raw_dataset=volumes/em", "--set", "prepare.target.raw_dataset=em")
    prepare = drafted(tmp_path, "--train", str(tmp_path / "raw.zarr"), *settings)["prepare"]
    assert seen["table"]["training"][0]["raw_dataset"] == prepare["training"][0]["raw_dataset"] == "volumes/em"
    assert prepare["target"]["raw_dataset"] == "em"


def test_a_failed_init_takes_only_its_own_files_out_of_a_folder_that_was_there(
    seen: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "exp").mkdir()
    (tmp_path / "exp" / "notes.txt").write_text("mine")
    monkeypatch.setattr(start_cli, "load_experiment", lambda _folder: (_ for _ in ()).throw(KeyboardInterrupt))
    (tmp_path / "raw.zarr").mkdir()
    made = ["init", str(tmp_path / "exp"), "--volume", str(tmp_path / "raw.zarr"), "--json"]
    assert CliRunner().invoke(app, made).exit_code != 0
    assert [path.name for path in (tmp_path / "exp").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("mode=mtlsd", "did you mean experiment.mode=mtlsd, or --mode mtlsd?"),
        ("workers=3", "did you mean compute.workers=3?"),
        ("sigma=60 nm", "did you mean train-lsd.sigma=60 nm or train-acrlsd.sigma=60 nm?"),
    ],
)
def test_a_setting_without_its_table_is_refused_with_the_table(
    seen: dict[str, Any], tmp_path: Path, override: str, expected: str
) -> None:
    assert expected in init(tmp_path, "--set", override, code=78).stderr.replace("\n", " ")


def test_if_volumes_cannot_be_read_there_is_still_an_experiment(
    seen: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_tables: Mapping[str, Any]) -> dict[str, Any]:
        raise InternalError("prepare look gave no answer")

    monkeypatch.setattr(inspect, "_ask", fails)
    assert drafted(tmp_path)["experiment"]["profile"] == "standard"


def test_the_keys_of_a_volume_are_explained_in_the_table_of_the_first() -> None:
    keys = {"raw": {"description": "path"}, "sparse": {"description": "zeros, not lost", "default": False}}
    text = experiment_text(
        {
            "prepare": {
                "properties": {
                    "training": {"type": "array", "items": {"$ref": "#/$defs/Volume"}},
                    "target": {"anyOf": [{"$ref": "#/$defs/Volume"}, {"type": "null"}], "default": None},
                },
                "$defs": {"Volume": {"properties": keys}},
            }
        },
        {"prepare": {"training": [{"raw": "a"}, {"raw": "b"}], "target": {"raw": "c", "sparse": True}}},
    )
    *_, first, second, target = text.split("\n\n[")
    assert first == '[prepare.training]]\nraw = "a"\n# zeros, not lost\n# sparse = false'
    assert second == '[prepare.training]]\nraw = "b"'
    assert target.strip() == 'prepare.target]\nraw = "c"\nsparse = true'


def test_any_path_gives_valid_names_and_a_dataset_of_a_file_may_be_named(seen: dict[str, Any], tmp_path: Path) -> None:
    for name in ("Zell\u00e9 1 (\u00b5m).h5", "\u8133.h5"):
        (tmp_path / name).touch()
    first, second = (str(tmp_path / name) for name in ("Zell\u00e9 1 (\u00b5m).h5/em/raw", "\u8133.h5"))
    labels = ("--labels", f"{tmp_path / chr(0x8133)}.h5/em/ids")
    text = init(tmp_path, "--train", first, "--train", second, *labels, "--dry-run").stdout
    one, two = tomllib.loads(text)["prepare"]["training"]
    assert (one["name"], two["name"]) == ("Zelle_1_m-0", "volume-1")
    assert (one["raw"], one["raw_dataset"]) == ("../Zell\u00e9 1 (\u00b5m).h5", "em/raw")
    assert (two["labels"], two["labels_dataset"]) == ("../\u8133.h5", "em/ids")


def test_all_problems_are_said_at_once_an_address_with_what_to_do(seen: dict[str, Any], tmp_path: Path) -> None:
    more = ("--train", "s3://bucket/a.zarr", "--truth", str(tmp_path / "gone.h5"), "--profile", "tinny")
    output = init(tmp_path, *more, "--set", "workers=3", code=78).stderr
    for words in ("s3://bucket/a.zarr", "mount the volume", "gone.h5", "'tiny'", "compute.workers=3"):
        assert words in output
    seen["problems"] = [BadData("no format", where=name).as_dict() for name in ("a.zarr", "b.zarr")]
    output = init(tmp_path, "--train", str(tmp_path / "raw.zarr"), code=65).stderr
    assert "a.zarr" in output
    assert "b.zarr" in output
    assert not (tmp_path / "exp").exists()


@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_settings_that_cannot_be_used_leave_no_folder(
    seen: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_json: tuple[str, ...]
) -> None:
    problem = BadData("the truth is empty", where="raw.zarr").as_dict()
    monkeypatch.setattr(start_cli, "problems_of", lambda _experiment: {"prepare": [problem]})
    monkeypatch.setattr("lsdflow_launch.preflight.problems_of", lambda *_: {"prepare": [problem]})
    assert "the truth is empty" in init(tmp_path, *as_json, code=65).output
    assert not (tmp_path / "exp").exists()


def test_the_expansion_factor_holds_for_all_volumes(seen: dict[str, Any], tmp_path: Path) -> None:
    prepare = drafted(tmp_path, "--expansion-factor", "16")["prepare"]
    assert prepare["training"][0]["expansion_factor"] == prepare["target"]["expansion_factor"] == 16
    assert "--expansion-factor" in init(tmp_path, "--expansion-factor", "0", code=2).stderr


def test_a_path_from_the_home_folder_is_found(
    seen: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "raw.zarr").mkdir()
    made = ["init", "~/exp", "--volume", "~/raw.zarr", "--dry-run"]
    done = CliRunner().invoke(app, made)
    assert done.exit_code == 0, done.output
    assert tomllib.loads(done.stdout)["prepare"]["target"]["raw"] == "../raw.zarr"


@pytest.fixture
def fine(seen: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is drafted has no problems."""
    monkeypatch.setattr("lsdflow_launch.preflight.problems_of", lambda *_: {})


@pytest.fixture
def a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """nvidia-smi lists two GPUs."""
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nprintf 'NVIDIA A40\\nNVIDIA A40\\n'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)


def test_it_says_what_the_gpus_of_this_machine_will_do(fine: None, a_gpu: None, tmp_path: Path) -> None:
    lines = init(tmp_path, "--train", str(tmp_path / "raw.zarr")).stdout.splitlines()
    (number,) = (i for i, line in enumerate(lines) if line.startswith("GPU here"))
    assert lines[number] == "GPU here: 2 x NVIDIA A40: predict in fp16, trainings in bf16 (before Ampere: fp16)"
    assert lines[number + 1].startswith("  measured on NVIDIA H100 80GB: predict, 56 Mvoxel/s")


def test_of_gpus_that_are_not_there_or_not_used_it_says_nothing(
    fine: None, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    assert "GPU" not in init(tmp_path, "--train", str(tmp_path / "raw.zarr")).stdout
    request.getfixturevalue("a_gpu")
    assert [*gpu_lines(load_experiment(tmp_path / "exp", ['compute.device="cpu"']))] == []
    precise = load_experiment(tmp_path / "exp", ['predict.precision="tf32"'])
    assert "predict in tf32" in next(gpu_lines(precise))
