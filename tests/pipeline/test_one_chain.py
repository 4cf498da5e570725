"""One chain at a time: a second `lsdflow run` is refused, and what a killed one started ends with it."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from predicted_experiment import make_predicted

from lsdflow_command.lock_file import LockFile
from lsdflow_contract.chain_link import ChainLink
from lsdflow_contract.errors import OutputConflict
from lsdflow_contract.experiment import load_experiment
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import read_manifest
from lsdflow_contract.testing import micro_network
from lsdflow_launch.slurm import submit

REPOSITORY = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("LSDFLOW_BIN", REPOSITORY / "bin"))
LIMIT_S = 900.0
SEED = "watershed.min_seed_distance_vox={}"
pytestmark = pytest.mark.skipif(not (BIN / "train-acrlsd").exists(), reason="make setup has not made bin/")


@pytest.fixture
def predicted(tmp_path: Path) -> Path:
    """An experiment of which watershed has finished; it and the stages after it are run again."""
    from lsdflow_watershed.stage import Watershed

    Watershed().run(make_predicted(tmp_path / "predicted"))
    return tmp_path / "predicted"


def _start(folder: Path, *options: str) -> subprocess.Popen[str]:
    command = [str(BIN / "lsdflow"), "run", str(folder), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    output, _ = process.communicate(timeout=LIMIT_S)
    return process.returncode, output


def _wait_for(happened: Callable[[], object], process: subprocess.Popen[str] | None = None) -> None:
    until = time.monotonic() + LIMIT_S
    while not happened():
        assert process is None or process.poll() is None, _ended(process)
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_second_run_with_other_settings_is_refused_and_the_first_reports_its_own_result(predicted: Path) -> None:
    layout, part = ExperimentLayout(predicted), ("--from", "watershed", "--to", "segment")
    before = read_manifest(layout, "watershed").key
    first = _start(predicted, *part, "--set", SEED.format(5))
    # The moment at which another watershed would change what agglomerate reads.
    _wait_for(lambda: read_manifest(layout, "watershed").key != before, first)
    code, output = _ended(_start(predicted, *part, "--set", SEED.format(6)))
    assert code == 73, output
    assert "at work" in output or "another command works on this experiment" in output
    by_hand = [str(BIN / "watershed"), "run", "--experiment", str(predicted), "--set", SEED.format(6)]
    if first.poll() is None:
        assert subprocess.run(by_hand, capture_output=True, check=False).returncode == 73
    code, output = _ended(first)
    assert code == 0, output
    watershed, agglomerate, segment = (read_manifest(layout, s) for s in ("watershed", "agglomerate", "segment"))
    assert watershed.config["min_seed_distance_vox"] == 5
    assert agglomerate.inputs["watershed"] == watershed.identity
    assert segment.inputs["agglomerate"] == agglomerate.identity
    assert not (layout.runs / "lock").exists()


def test_from_a_stage_with_a_setting_of_an_earlier_one_begins_at_the_earlier_one(predicted: Path) -> None:
    options = ("--from", "agglomerate", "--to", "agglomerate", "--set", SEED.format(7))
    code, output = _ended(_start(predicted, *options))
    assert code == 0, output
    assert "beginning at watershed instead of agglomerate" in output
    layout = ExperimentLayout(predicted)
    assert read_manifest(layout, "watershed").config["min_seed_distance_vox"] == 7
    assert read_manifest(layout, "agglomerate").inputs["watershed"] == read_manifest(layout, "watershed").identity


def test_a_stage_whose_input_is_not_the_one_of_its_chain_is_refused_with_both_settings(predicted: Path) -> None:
    from lsdflow_agglomerate.stage import Agglomerate
    from lsdflow_watershed.stage import Watershed

    layout, identities = ExperimentLayout(predicted), []
    for distance_vox in (5, 6):
        Watershed().run(load_experiment(predicted, [SEED.format(distance_vox)]))
        identities.append(read_manifest(layout, "watershed").identity)
    link = ChainLink(str(predicted), results={"watershed": identities[0]})
    with link.in_environment(), pytest.raises(OutputConflict, match="not the one that this run began with") as raised:
        Agglomerate().run(load_experiment(predicted))
    assert "min_seed_distance_vox 5 -> 6" in raised.value.found
    with ChainLink(str(predicted), results={"watershed": identities[1]}).in_environment():
        Agglomerate().run(load_experiment(predicted))


def test_jobs_of_a_submission_read_the_result_that_its_job_verified_and_no_other(
    predicted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lsdflow_agglomerate.stage import Agglomerate
    from lsdflow_watershed.stage import Watershed

    Watershed().run(load_experiment(predicted, [SEED.format(5)]))
    monkeypatch.setenv("LSDFLOW_SUBMISSION", "20261127T100000-1")
    verify = [str(BIN / "watershed"), "verify", "--experiment", str(predicted), "--set", SEED.format(5)]
    subprocess.run(verify, check=True)
    Watershed().run(load_experiment(predicted, [SEED.format(6)]))
    with pytest.raises(OutputConflict, match="not the one that this run began with") as raised:
        Agglomerate().run(load_experiment(predicted))
    assert "min_seed_distance_vox 5 -> 6" in raised.value.found
    monkeypatch.setenv("LSDFLOW_SUBMISSION", "20261127T100001-1")
    Agglomerate().run(load_experiment(predicted))


def test_a_submission_that_begins_later_reads_the_earlier_results_of_that_moment(
    predicted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment, results = load_experiment(predicted), predicted / "runs" / "submit" / "20261127T100000-1" / "results"

    def submitted(*_: object) -> int:
        results.parent.mkdir(parents=True)
        (results.parent / "jobs.tsv").touch()
        return 0

    monkeypatch.setattr(submit, "_pipeline", submitted)
    assert submit.submit_chain(experiment, "watershed", "segment") == 0
    found = {file.name: file.read_text() for file in results.iterdir()}
    earlier = {stage: read_manifest(experiment.layout, stage).identity for stage in ("prepare", "predict")}
    assert earlier.items() <= found.items()
    assert "watershed" not in found


@pytest.fixture
def untrained(tmp_path: Path) -> Path:
    """A prepared experiment whose only training takes some tens of seconds."""
    folder = tmp_path / "untrained"
    program = (
        "import sys; from pathlib import Path; from lsdflow_launch.init.demo import make_demo;"
        "make_demo(Path(sys.argv[1]), (112, 66, 70), seed=3, mode='affinities')"
    )
    environment = {**os.environ, "LSDFLOW_BIN": str(BIN)}
    subprocess.run([sys.executable, "-c", program, str(folder)], check=True, env=environment)
    code, output = _ended(_start(folder, "--to", "prepare"))
    assert code == 0, output
    return folder


def _iterations(layout: ExperimentLayout) -> list[int]:
    path = layout.train_dir("train-acrlsd") / "loss.csv"
    return [int(row["iteration"]) for row in csv.DictReader(path.open())] if path.exists() else []


def _runs(pid: int) -> bool:
    """False also for a process that ended and that nobody waited for."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def test_a_training_ends_with_the_launcher_that_is_killed_and_the_resume_trains_alone(untrained: Path) -> None:
    layout, network = ExperimentLayout(untrained), micro_network(150, checkpoints=30)
    settings = [word for k, v in network.items() for word in ("--set", f"train-acrlsd.{k}={json.dumps(v)}")]
    part = ("--from", "train-acrlsd", "--to", "train-acrlsd", *settings)
    launcher = _start(untrained, *part)
    _wait_for(lambda: len(_iterations(layout)) > 0, launcher)
    holder = LockFile(layout.stage_runs("train-acrlsd") / "lock").live_holder()
    assert holder is not None, "a training holds the lock of its stage"
    second = [str(BIN / "train-acrlsd"), "run", "--experiment", str(untrained), *settings]
    assert subprocess.run(second, capture_output=True, check=False).returncode == 73
    assert _runs(holder.pid), "the training has ended too early for this test"
    launcher.send_signal(signal.SIGKILL)
    launcher.wait()
    until = time.monotonic() + 10
    while _runs(holder.pid) and time.monotonic() < until:
        time.sleep(0.02)
    assert not _runs(holder.pid), "the training outlived its launcher"
    assert max(_iterations(layout)) < 150
    code, output = _ended(_start(untrained, *part))
    assert code == 0, output
    found = _iterations(layout)
    assert found == sorted(set(found)), "two processes wrote these rows"
    assert max(found) == 150
