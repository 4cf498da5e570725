"""CI runs every part of `make test-all`, and says what it had no time for.

That a worker process that crashes or hangs ends the whole run as failed is left to pytest's options in the Makefile.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import no_time
import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
RUN = REPOSITORY / ".ci" / "run"
# user nice system idle iowait irq softirq steal guest guest_nice, of proc(5)
BEFORE = "cpu  1000 0 200 5000 300 10 20 70 0 0\n"


def test_ci_runs_every_part_of_make_test_all_once() -> None:
    (parts,) = re.findall(r"^test-all: (.*?) +##", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    lines = [line for line in RUN.read_text().splitlines() if "# " not in line]
    run = re.findall(
        r"\b(?:part \d+|step) (test(?:-[a-z0-9]+)?)(?= |;|$)(?! SHORT_FIRST)", "\n".join(lines), re.MULTILINE
    )
    assert [target for target in run if target != "test-real"] == parts.split()


def test_what_a_part_has_no_time_for_leaves_out_no_test_beside_it() -> None:
    (function,) = re.findall(r"^on_bed\(\) .*$", RUN.read_text(), re.MULTILINE)
    script = f"{function}\nexport LSDFLOW_CI_NO_TIME=/a/file engines_tmp=/t; on_bed printenv LSDFLOW_CI_NO_TIME"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


WORKFLOWS = sorted((REPOSITORY / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_calls_targets_that_exist_in_valid_bash_and_pins_what_it_uses(path: Path) -> None:
    steps = [step for job in yaml.safe_load(path.read_text())["jobs"].values() for step in job["steps"]]
    scripts = "\n".join(step["run"] for step in steps if "run" in step)
    subprocess.run(["bash", "-n"], input=scripts, text=True, check=True)
    assert "${{" not in scripts, "an expression in a script is bash that somebody else writes"
    targets = {word for words in re.findall(r"\bmake ([a-z][a-z -]*)", scripts) for word in words.split()}
    assert targets
    assert targets <= set(re.findall(r"^([a-z-]+)(?= |:)[^=\n]*?:", _makefiles(), re.MULTILINE))
    used = [step["uses"] for step in steps if "uses" in step]
    assert used
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", name) for name in used)


def test_the_hooks_of_pre_commit_are_the_commands_of_make_check() -> None:
    (repository,) = yaml.safe_load((REPOSITORY / ".pre-commit-config.yaml").read_text())["repos"]
    checks = subprocess.run(["make", "-n", "check"], cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    for hook in repository["hooks"]:
        assert hook["entry"].removesuffix(" --force-exclude") in checks


def _makefiles() -> str:
    paths = [REPOSITORY / "Makefile", REPOSITORY / "containers" / "containers.mk"]
    return "\n".join(path.read_text() for path in paths)


@pytest.mark.parametrize("target", ["test-core", "test-package", "test-blocks", "test-training", "test-avx2"])
def test_a_worker_process_that_ends_or_hangs_ends_the_run(target: str) -> None:
    command = ["make", "-n", target, "PACKAGE=watershed"]
    output = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    lines = [line for line in output.splitlines() if "/pytest " in line]
    assert lines
    for line in lines:
        assert "--max-worker-restart=0" in line
        assert "faulthandler_exit_on_timeout=true" in line


@pytest.mark.parametrize(
    ("after", "percent", "starved"),
    [
        ("cpu  1100 0 200 9000 300 10 20 70 0 0\n", "0", False),
        ("cpu  1070 0 215 9000 300 10 20 85 0 0\n", "14", False),
        ("cpu  1020 0 200 9000 900 10 20 150 0 0\n", "79", True),
    ],
)
def test_what_the_host_gave_to_others_is_a_share_of_what_was_wanted(
    tmp_path: Path, after: str, percent: str, starved: bool
) -> None:
    stat = tmp_path / "stat"
    stat.write_text(BEFORE)
    program = f'source .ci/steal.sh; printf "%s" "{after}" >{stat}; stolen_percent; starved && echo starved || true'
    environment = {**os.environ, "LSDFLOW_CI_STAT": str(stat)}
    done = subprocess.run(
        ["bash", "-euc", program], cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [percent, *(["starved"] if starved else [])]


@pytest.mark.parametrize("is_late", [False, True])
def test_tests_are_left_out_once_ci_says_that_there_is_no_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    file = tmp_path / "no-time"
    monkeypatch.setenv(no_time.VARIABLE, str(file))
    if not is_late:
        no_time.pytest_runtest_setup()
        return
    file.touch()
    with pytest.raises(pytest.skip.Exception, match="CI has no time left"):
        no_time.pytest_runtest_setup()
