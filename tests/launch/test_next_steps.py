"""Messages name the next command: without arguments, in a wrong folder, after a run; the commands are real ones."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from lsdflow_contract.errors import MissingInput
from lsdflow_contract.experiment import load_experiment
from lsdflow_launch.cli import app
from lsdflow_launch.images.container import ContainerOptions
from lsdflow_launch.output import next_line
from lsdflow_launch.run import FIRST_STEPS, RunOptions, next_steps


def is_typed_right(step: str) -> bool:
    """Whether the command line, up to its comment, is one of lsdflow's verbs with options that it has."""
    program, verb, *rest = shlex.split(step, comments=True)
    commands = getattr(get_command(app), "commands")  # noqa: B009
    options = {option for parameter in commands[verb].params for option in parameter.opts}
    return program == "lsdflow" and {word for word in rest if word.startswith("--")} <= options


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    folder = tmp_path / "my exp"
    folder.mkdir()
    (folder / "experiment.toml").write_text("")
    return folder


@pytest.mark.parametrize(
    ("code", "first"),
    [
        (0, "lsdflow view"),
        (2, "lsdflow status"),
        (65, "lsdflow status"),
        (73, "lsdflow status"),
        (75, "lsdflow run"),
        (143, "lsdflow run"),
        (78, "lsdflow validate"),
        (79, "lsdflow status"),
    ],
)
def test_after_a_run_the_next_commands_are_right(experiment: Path, code: int, first: str) -> None:
    steps = next_steps(load_experiment(experiment, ["compute.workers=3"]), code)
    assert steps[0].startswith(first)
    assert all(is_typed_right(step) for step in steps)
    assert all(str(experiment) in shlex.split(step, comments=True) for step in steps)
    assert all("--set compute.workers=3" in step for step in steps if step.startswith("lsdflow run"))


@pytest.mark.parametrize(
    ("typed", "printed"),
    [
        ("bin/lsdflow", "bin/lsdflow"),
        ("/a folder/lsdflow", "'/a folder/lsdflow'"),
        ("{found}", "lsdflow"),
        ("pytest", "lsdflow"),
    ],
)
def test_the_next_command_begins_as_the_last_one_was_typed(
    typed: str, printed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = tmp_path / "lsdflow"
    found.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.argv", [typed.format(found=found)])
    assert next_line("lsdflow run lsdflow\n      lsdflow view x") == (
        f"next: {printed} run lsdflow\n      {printed} view x"
    )
    assert next_line("docker compose up") == "next: docker compose up"


def test_a_full_disk_is_checked_first(experiment: Path) -> None:
    check_disk, again = next_steps(load_experiment(experiment), 74)
    assert check_disk.startswith("df -h ")
    assert is_typed_right(again)


def last_run_of(experiment: Path, code: int, options: RunOptions) -> list[str]:
    """The words of the run that is offered, after the folder."""
    steps = next_steps(load_experiment(experiment, ["compute.workers=3"]), code, options)
    assert is_typed_right(steps[-1])
    program, verb, folder, *rest = shlex.split(steps[-1], comments=True)
    assert (program, verb, folder) == ("lsdflow", "run", str(experiment))
    return rest


@pytest.mark.parametrize("code", [75, 79, 65, 74, 78])
def test_the_options_of_the_run_are_repeated(experiment: Path, code: int) -> None:
    options = RunOptions(
        "container", "predict", "segment", containers=ContainerOptions("podman", Path("my sifs"), "none")
    )
    wanted = "--backend container --from predict --to segment --engine podman --images 'my sifs' --network none"
    assert last_run_of(experiment, code, options) == shlex.split(f"{wanted} --set compute.workers=3")


def test_with_the_usual_options_none_is_repeated(experiment: Path) -> None:
    assert last_run_of(experiment, 75, RunOptions()) == ["--set", "compute.workers=3"]


def test_settings_are_validated_as_they_were_run(experiment: Path) -> None:
    validate, _ = next_steps(load_experiment(experiment, ["compute.workers=3"]), 78)
    assert "--set compute.workers=3" in validate
    assert is_typed_right(validate)


def test_without_arguments_the_first_steps_are_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    output = " ".join(CliRunner().invoke(app, []).output.split())
    assert all(part.strip() in output for part in FIRST_STEPS)


def first_fix(path: Path) -> str:
    with pytest.raises(MissingInput) as caught:
        load_experiment(path)
    return caught.value.fix


def test_in_an_empty_folder_the_first_command_is_printed(tmp_path: Path) -> None:
    assert f"lsdflow init {tmp_path} --volume" in first_fix(tmp_path)
    assert f"lsdflow demo {tmp_path}" in first_fix(tmp_path)


@pytest.mark.parametrize("mark", [".zarray", "zarr.json", "attributes.json", "info"])
def test_a_volume_in_place_of_an_experiment_is_distinguished_from_one(tmp_path: Path, mark: str) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / mark).touch()
    assert f"lsdflow init exp --volume {tmp_path / 'raw'}" in first_fix(tmp_path / "raw")


def test_experiments_below_or_of_nearly_that_name_are_offered(experiment: Path) -> None:
    assert first_fix(experiment.parent) == f"there is an experiment in it: {experiment}"
    assert first_fix(experiment.parent / "my-exp") == f"did you mean {experiment}?"
