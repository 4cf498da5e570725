"""The report beside a run: written during the run, once more after it, and never in its way."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_launch.report import refreshed_report

FAKE = """#!{python}
import json, sys
with open({calls!r}, "a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + "\\n")
sys.exit({code})
"""


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    folder = tmp_path / "experiment"
    folder.mkdir()
    (folder / "experiment.toml").write_text("[experiment]\n")
    return load_experiment(folder, ["compute.workers=1"])


@pytest.fixture
def evaluate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[list[str]]]:
    """Install a fake `evaluate`, or return what it was called with."""
    calls = tmp_path / "calls"

    def at(code: int | None = None) -> list[list[str]]:
        if code is not None:
            command = tmp_path / "bin" / "evaluate"
            command.parent.mkdir(exist_ok=True)
            command.write_text(FAKE.format(python=sys.executable, calls=str(calls), code=code))
            command.chmod(0o755)
            monkeypatch.setenv("LSDFLOW_BIN", str(command.parent))
        return [json.loads(line) for line in calls.read_text().splitlines()] if calls.exists() else []

    return at


def _wait_for(calls: Callable[[], list[list[str]]], number: int) -> None:
    deadline = time.monotonic() + 600
    while len(calls()) < number and time.monotonic() < deadline:
        time.sleep(0.02)


def test_a_long_run_is_reported_while_it_runs_and_once_more_at_its_end(
    experiment: Experiment, evaluate: Callable[..., list[list[str]]]
) -> None:
    evaluate(0)
    with refreshed_report(experiment, every_s=1):
        _wait_for(evaluate, 2)
    *during, last = evaluate()
    arguments = ["report", "--experiment", str(experiment.path), "--set", "compute.workers=1"]
    assert len(during) >= 2
    assert all(call == [*arguments, "--refresh", "1"] for call in during)
    assert last == arguments, "the last page is not loaded again and again"


def test_a_short_run_pays_for_no_report(experiment: Experiment, evaluate: Callable[..., list[list[str]]]) -> None:
    evaluate(0)
    with refreshed_report(experiment, every_s=60):
        pass
    assert evaluate() == []


def test_a_failing_run_keeps_its_error_and_a_failing_report_does_not_matter(
    experiment: Experiment, evaluate: Callable[..., list[list[str]]]
) -> None:
    def run() -> None:
        with refreshed_report(experiment, every_s=0.1):
            _wait_for(evaluate, 1)
            raise RuntimeError("of the run")

    evaluate(65)
    with pytest.raises(RuntimeError, match="of the run"):
        run()


def test_without_the_command_evaluate_a_run_continues(experiment: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lsdflow_launch.report.WRITER", "no-such-command")
    with refreshed_report(experiment, every_s=0.01):
        time.sleep(0.1)


def test_lsdflow_report_counts_nothing_and_cite_names_the_paper(
    experiment: Experiment, evaluate: Callable[..., list[list[str]]]
) -> None:
    evaluate(0)
    program = [sys.executable, "-c", "from lsdflow_launch.cli import main; main()"]
    done = subprocess.run([*program, "report", str(experiment.path.parent)], capture_output=True, check=False)
    assert (done.returncode, [call[0] for call in evaluate()]) == (0, ["report"])
    cited = subprocess.run([*program, "cite"], capture_output=True, text=True, check=False).stdout
    assert "10.1038/s41592-022-01711-z" in cited
