"""`lsdflow run` calls the stages in order, stops at the first failure with its code, and still makes a report."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lsdflow_contract.experiment import STAGES, load_experiment
from lsdflow_launch.integrity import Checked
from lsdflow_launch.slurm.table import cluster_of

FAKE = """#!{python}
import json, os, sys, time
from pathlib import Path
here = Path({folder!r})
stage = Path(sys.argv[0]).name
with (here / "calls").open("a") as calls:
    calls.write(json.dumps([stage, *sys.argv[1:]]) + "\\n")
verb = sys.argv[1]
if verb == "--version":
    print(stage, "0.1.0", "(contract 2.0.0)")
elif verb == "schema":
    print(json.dumps({{"properties": {{"size": {{"default": 3, "description": "how big"}}}}}}))
elif verb in ("validate", "describe", "plan", "status"):
    answer = here / f"{{verb}}-{{stage}}"
    print(answer.read_text() if answer.exists() else "[]" if verb == "validate" else "{{}}")
elif (here / f"sleep-{{stage}}").exists():
    time.sleep(30)
elif (here / f"fail-{{stage}}").exists():
    code = int((here / f"fail-{{stage}}").read_text())
    if "--json" in sys.argv:
        print(json.dumps({{"what": f"{{stage}} is damaged", "exit_code": code}}))
    sys.exit(code)
elif "--json" in sys.argv:
    print(json.dumps({{"blocks": 3, "broken": 0}}))
"""


@pytest.fixture
def stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    for stage in STAGES:
        command = folder / stage
        command.write_text(FAKE.format(python=sys.executable, folder=str(folder)))
        command.chmod(0o755)
    monkeypatch.setenv("LSDFLOW_BIN", str(folder))
    return folder


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    folder = tmp_path / "experiment"
    folder.mkdir()
    (folder / "experiment.toml").write_text('[experiment]\nmode = "acrlsd"\n')
    return folder


def _lsdflow(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = "from lsdflow_launch.cli import main; main()"
    return subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)


def _calls(stages: Path, verb: str = "run") -> list[str]:
    lines = (stages / "calls").read_text().splitlines() if (stages / "calls").exists() else []
    return [call[0] for call in map(json.loads, lines) if call[1] == verb]


def test_repair_calls_prepare_and_the_finished_stages_of_blocks_and_stops_at_a_failure(
    stages: Path, experiment: Path
) -> None:
    refused = _lsdflow("repair", str(experiment))
    assert (refused.returncode, _calls(stages, "repair")) == (66, [])
    (experiment / "manifests").mkdir()
    for stage in ("prepare", "predict", "watershed", "segment"):
        (experiment / "manifests" / f"{stage}.json").write_text("{}")
    assert _lsdflow("repair", str(experiment)).returncode == 0
    assert _calls(stages, "repair") == ["prepare", "predict", "watershed", "segment"]
    (stages / "fail-watershed").write_text("65")
    assert _lsdflow("repair", str(experiment)).returncode == 65
    assert _calls(stages, "repair")[4:] == ["prepare", "predict", "watershed"]
    assert _calls(stages) == []


def test_verify_checks_every_finished_stage_also_after_a_damaged_one_and_names_the_repair(
    stages: Path, experiment: Path
) -> None:
    assert _lsdflow("verify", str(experiment)).returncode == 66
    (experiment / "manifests").mkdir()
    for stage in ("prepare", "train-lsd", "watershed", "segment"):
        (experiment / "manifests" / f"{stage}.json").write_text("{}")
    (stages / "fail-train-lsd").write_text("65")
    (stages / "fail-watershed").write_text("73")
    done = _lsdflow("verify", str(experiment))
    assert (done.returncode, _calls(stages, "verify")) == (65, ["prepare", "train-lsd", "watershed", "segment"])
    assert [line.split() for line in done.stdout.splitlines()[:5]] == [
        ["stage", "blocks", "damaged"],
        ["prepare", "3", "correct"],
        ["train-lsd", "train-lsd", "is", "damaged"],
        ["watershed", "watershed", "is", "damaged"],
        ["segment", "3", "correct"],
    ]
    assert "lsdflow repair" not in done.stdout, "no repair changes settings or a training"
    (stages / "fail-watershed").write_text("65")
    assert f"lsdflow repair {experiment}" in _lsdflow("verify", str(experiment)).stdout
    answer = json.loads(_lsdflow("verify", str(experiment), "--json").stdout)
    assert (answer["exit_code"], answer["answers"]["segment"]) == (65, {"blocks": 3, "broken": 0})


@pytest.mark.parametrize(
    ("facts", "row"),
    [
        ({"blocks_read_back": {"training/a": 2, "target": 4}, "verified": True}, ["6", "correct"]),
        ({"blocks": 9, "blocks_read_back": 3, "faces_blocks_read_back": 2}, ["5", "correct"]),
        (
            {"blocks": 4, "broken": 1, "faces_blocks": 2, "faces_broken": 2, "parts": {"3": "edges"}},
            ["6", "3", "repaired"],
        ),
        ({"iteration": 400, "verified": True}, ["correct"]),
        (
            {"blocks": 4, "broken": 0, "failed_blocks": ["block 3"]},
            ["4", "correct,", "without", "1", "failed", "blocks", "that", "were", "accepted"],
        ),
    ],
)
def test_the_row_of_a_stage_sums_its_passes(facts: dict[str, object], row: list[str]) -> None:
    assert Checked("watershed", 0, facts).line().split() == ["watershed", *row]


@pytest.mark.parametrize("code", [69, 75])
def test_verify_ends_when_it_is_interrupted_or_the_store_does_not_answer(
    stages: Path, experiment: Path, code: int
) -> None:
    (experiment / "manifests").mkdir()
    for stage in ("prepare", "watershed", "segment"):
        (experiment / "manifests" / f"{stage}.json").write_text("{}")
    (stages / "fail-watershed").write_text(str(code))
    assert _lsdflow("verify", str(experiment)).returncode == code
    assert _calls(stages, "verify") == ["prepare", "watershed"]


def test_a_stage_that_is_killed_while_it_verifies_is_reported_with_its_exit_code(
    stages: Path, experiment: Path
) -> None:
    (experiment / "manifests").mkdir()
    (experiment / "manifests" / "segment.json").write_text("{}")
    (stages / "segment").write_text("#!/bin/sh\nkill -9 $$\n")
    done = _lsdflow("verify", str(experiment))
    assert (done.returncode, done.stdout.splitlines()[1].split()) == (
        137,
        ["segment", "segment", "ended", "without", "an", "answer"],
    )
    assert "exit code 137" in done.stderr


@pytest.mark.parametrize(("code", "called"), [(66, ["prepare", "watershed"]), (75, ["prepare"])])
def test_repair_without_the_sources_of_prepare_repairs_the_later_stages_and_keeps_the_code(
    stages: Path, experiment: Path, code: int, called: list[str]
) -> None:
    (experiment / "manifests").mkdir()
    for stage in ("prepare", "watershed"):
        (experiment / "manifests" / f"{stage}.json").write_text("{}")
    (stages / "fail-prepare").write_text(str(code))
    assert _lsdflow("repair", str(experiment)).returncode == code
    assert _calls(stages, "repair") == called


def test_all_stages_run_in_order_and_each_command_is_printed(stages: Path, experiment: Path) -> None:
    done = _lsdflow("run", str(experiment))
    assert done.returncode == 0
    assert _calls(stages) == list(STAGES)
    assert f"$ watershed run --experiment {experiment}" in done.stderr


@pytest.mark.parametrize("mode", ["mtlsd", "affinities"])
def test_a_mode_without_lsd_network_leaves_train_lsd_out(stages: Path, experiment: Path, mode: str) -> None:
    _lsdflow("run", str(experiment), "--set", f"experiment.mode={mode}")
    assert _calls(stages) == [s for s in STAGES if s != "train-lsd"]


def test_from_and_to_choose_a_part_of_the_chain(stages: Path, experiment: Path) -> None:
    assert _lsdflow("run", str(experiment), "--from", "predict", "--to", "agglomerate").returncode == 0
    assert _calls(stages) == ["predict", "watershed", "agglomerate"]


@pytest.mark.parametrize(("first", "last"), [("segment", "predict"), ("watersheed", "evaluate")])
def test_a_wrong_part_is_a_usage_error_and_nothing_runs(stages: Path, experiment: Path, first: str, last: str) -> None:
    done = _lsdflow("run", str(experiment), "--from", first, "--to", last)
    assert done.returncode == 2
    assert "watershed" in done.stderr
    assert _calls(stages) == []


def test_the_first_failure_stops_the_chain_keeps_its_code_and_still_makes_a_report(
    stages: Path, experiment: Path
) -> None:
    (stages / "fail-watershed").write_text("79")
    done = _lsdflow("run", str(experiment))
    assert done.returncode == 79
    assert _calls(stages) == list(STAGES[:5])
    assert _calls(stages, "report") == ["evaluate"]


def test_an_interrupted_stage_gives_75_and_nothing_else_runs(stages: Path, experiment: Path) -> None:
    (stages / "fail-predict").write_text("75")
    assert _lsdflow("run", str(experiment)).returncode == 75
    assert _calls(stages)[-1] == "predict"


def test_overrides_reach_every_stage(stages: Path, experiment: Path) -> None:
    _lsdflow("run", str(experiment), "--set", "compute.workers=5", "--to", "predict")
    calls = [json.loads(line) for line in (stages / "calls").read_text().splitlines()]
    ends = {call[0]: call[4:] for call in calls if call[1] == "run"}
    options = ["--set", "compute.workers=5"]
    assert ends == {
        "prepare": options,
        "train-lsd": options,
        "train-acrlsd": options,
        "predict": options,
    }


def test_sigterm_is_passed_on_to_the_running_stage(stages: Path, experiment: Path) -> None:
    (stages / "sleep-predict").touch()
    program = "from lsdflow_launch.cli import main; main()"
    child = subprocess.Popen([sys.executable, "-c", program, "run", str(experiment)])
    deadline = time.monotonic() + 600
    while "predict" not in _calls(stages) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(child.pid, signal.SIGTERM)
    assert child.wait(timeout=600) == 128 + signal.SIGTERM


def test_another_place_to_run_is_refused(stages: Path, experiment: Path) -> None:
    assert _lsdflow("run", str(experiment), "--backend", "moon").returncode == 2
    assert _calls(stages) == []


def test_a_missing_command_says_what_to_do(experiment: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from lsdflow_contract.errors import MissingInput
    from lsdflow_launch.commands import stage_command

    monkeypatch.setenv("LSDFLOW_BIN", str(tmp_path / "nowhere"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingInput, match="make setup"):
        stage_command("no-such-stage")
    (tmp_path / "nowhere").mkdir()
    (tmp_path / "nowhere" / "no-such-stage").touch()  # a file, but not a program for this user
    with pytest.raises(MissingInput, match="make setup"):
        stage_command("no-such-stage")


def test_validate_lists_the_problems_of_all_stages_with_the_first_code(stages: Path, experiment: Path) -> None:
    for stage, code in (("predict", 76), ("segment", 78)):
        problem = {"what": f"{stage} is unhappy", "exit_code": code, "where": "there", "fix": "repair it"}
        (stages / f"validate-{stage}").write_text(json.dumps([problem]))
    done = _lsdflow("validate", str(experiment))
    assert done.returncode == 76
    assert "predict is unhappy" in done.stderr
    assert "segment is unhappy" in done.stderr


def test_a_run_checks_all_stages_before_the_first_one_and_runs_none_if_there_is_a_problem(
    stages: Path, experiment: Path
) -> None:
    for stage, code in (("predict", 76), ("segment", 78)):
        (stages / f"validate-{stage}").write_text(json.dumps([{"what": f"{stage}!", "exit_code": code, "where": "x"}]))
    done = _lsdflow("run", str(experiment), "--json")
    assert (done.returncode, _calls(stages)) == (76, [])
    assert "predict!" in done.stderr
    assert "segment!" in done.stderr
    answer = json.loads(done.stdout)
    assert (answer["stage"], answer["error"]["what"]) == ("predict", "predict!")
    for part in (("--to", "train-acrlsd"), ("--from", "evaluate")):
        assert _lsdflow("run", str(experiment), *part).returncode == 0, "the stages with problems do not run"


def test_a_key_that_a_stage_does_not_have_is_refused_also_if_that_stage_is_not_to_run(
    stages: Path, experiment: Path
) -> None:
    done = _lsdflow("run", str(experiment), "--to", "prepare", "--set", "segment.sice=4")
    assert (done.returncode, _calls(stages)) == (78, [])
    assert "no key segment.sice" in done.stderr
    assert "did you mean 'size'" in done.stderr


def test_status_reports_what_never_started(stages: Path, experiment: Path) -> None:
    answer = json.loads(_lsdflow("status", str(experiment), "--json").stdout)
    assert list(answer) == list(STAGES)
    assert answer["predict"]["state"] == "not started"


def test_init_writes_a_commented_file_that_parses_and_never_overwrites(stages: Path, tmp_path: Path) -> None:
    volume = tmp_path / "raw volume é.zarr"
    volume.mkdir()
    root = tmp_path / "new"
    arguments = ["init", str(root), "--train", str(volume), "--volume", str(volume), "--set", "watershed.size=7"]
    done = _lsdflow(*arguments)
    assert done.returncode == 0, done.stderr
    text = (root / "experiment.toml").read_text()
    assert "# how big\nsize = 7" in text
    assert "# size = 3" in text
    loaded = load_experiment(root)
    assert loaded.tables["prepare"]["target"]["raw"] == "../raw volume é.zarr"
    assert loaded.resolve(loaded.tables["prepare"]["training"][0]["raw"]) == volume.resolve()
    assert "WATERSHED_IMAGE=lsdflow/watershed:0.1.0" in (root / "images.env").read_text()
    assert "latest" not in (root / "images.env").read_text()
    assert _lsdflow(*arguments).returncode == 73


def test_init_on_a_login_node_pins_the_variant_of_torch_whose_sifs_are_there(stages: Path, tmp_path: Path) -> None:
    volume, sifs = tmp_path / "raw.zarr", tmp_path / "sifs"
    volume.mkdir()
    sifs.mkdir()
    (sifs / "predict_0.1.0-cuda_aaaaaaaaaaaa.sif").touch()
    arguments = ["--train", str(volume), "--volume", str(volume)]
    for name, more in (("with", ["--set", f"cluster.images={sifs}"]), ("without", [])):
        assert _lsdflow("init", str(tmp_path / name), *arguments, *more).returncode == 0
    assert "PREDICT_IMAGE=lsdflow/predict:0.1.0-cuda\n" in (tmp_path / "with" / "images.env").read_text()
    torch = "cuda" if shutil.which("nvidia-smi") else "cpu"
    assert f"PREDICT_IMAGE=lsdflow/predict:0.1.0-{torch}\n" in (tmp_path / "without" / "images.env").read_text()


def test_init_of_a_volume_that_does_not_exist_writes_nothing(stages: Path, tmp_path: Path) -> None:
    root = tmp_path / "new"
    done = _lsdflow("init", str(root), "--train", str(tmp_path / "no"), "--volume", str(tmp_path / "no"))
    assert done.returncode == 66
    assert not root.exists()


def test_init_writes_the_table_of_the_cluster_with_what_is_chosen(stages: Path, tmp_path: Path) -> None:
    root = tmp_path / "new"
    chosen = ["--set", "cluster.images=/sifs", "--set", "cluster.watershed.workers=3"]
    done = _lsdflow("init", str(root), "--train", str(stages), "--volume", str(stages), *chosen)
    assert done.returncode == 0, done.stderr
    table = cluster_of(load_experiment(root))
    assert (table.images, table.watershed.workers, table.partition_gpu) == ("/sifs", 3, "gpu")


@pytest.mark.parametrize("wrong", ["watershed.sise=7", "wattershed.size=7", "cluster.image=/sifs"])
def test_init_refuses_what_no_stage_knows_and_writes_nothing(stages: Path, tmp_path: Path, wrong: str) -> None:
    root = tmp_path / "new"
    done = _lsdflow("init", str(root), "--train", str(stages), "--volume", str(stages), "--set", wrong)
    assert done.returncode == 78
    assert "did you mean" in done.stderr
    assert not root.exists()


def test_what_an_earlier_stage_has_still_to_make_is_no_problem(stages: Path, experiment: Path) -> None:
    missing = {"what": "not finished", "exit_code": 66, "where": f"{experiment.resolve()}/manifests/prepare.json"}
    foreign = {"what": "no such mask", "exit_code": 66, "where": "/elsewhere/mask.zarr"}
    (stages / "validate-predict").write_text(json.dumps([missing]))
    assert _lsdflow("validate", str(experiment)).returncode == 0
    (stages / "validate-watershed").write_text(json.dumps([foreign]))
    done = _lsdflow("validate", str(experiment))
    assert done.returncode == 66
    assert "no such mask" in done.stderr
