"""inventory.py: every pin of every lock is checked once, and what was not answered is never reported as clean.

The vulnerability service is a stand-in here (it answers as pip-audit does); the bills of materials are made by the real
tool in with_engine/test_supply.py.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAM = REPOSITORY / "containers" / "inventory.py"
# Answers about the packages in the file after -r as $MODE says; two versions of one package are an error, as there.
AUDITOR = r"""#!@python@
import json, os, sys
pins = [line.split("==") for line in open(sys.argv[-1]).read().split()]
with open(os.environ["CALLS"], "a") as calls:
    print(json.dumps(pins), file=calls)
if len({name for name, _ in pins}) < len(pins):
    sys.exit("ERROR: package has duplicate requirements")
mode = os.environ["MODE"]
if mode == "unreachable":
    sys.exit("Traceback ...\nConnectionError: Failed to resolve 'service.example'")
answers = []
for name, version in pins:
    answer = {"name": name, "version": version, "vulns": []}
    if mode == "mirror" or (mode == "one unknown" and name == "daisy"):
        answer = {"name": name, "skip_reason": "not found"}
    elif mode == "vulnerable" and name == "zarr" and version.startswith("2."):
        answer["vulns"] = [{"id": "X-2026-1", "fix_versions": ["3.0.0"]}]
    answers.append(answer)
print(json.dumps({"dependencies": answers}))
sys.exit(mode == "vulnerable")
"""


def _audit(folder: Path, mode: str) -> subprocess.CompletedProcess[str]:
    tool = folder / "bin" / "pip-audit"
    tool.parent.mkdir()
    tool.write_text(AUDITOR.replace("@python@", sys.executable))
    tool.chmod(0o755)
    env = {**os.environ, "MODE": mode, "CALLS": str(folder / "calls")}
    command = [sys.executable, str(PROGRAM), "audit", str(folder)]
    return subprocess.run(command, env=env, check=False, capture_output=True, text=True)


def _pins_of_all_locks() -> set[tuple[str, str]]:
    locks = [
        *REPOSITORY.glob("stages/*/*.lock"),
        *REPOSITORY.glob("tests/*.lock"),
        *REPOSITORY.glob("containers/*.lock"),
    ]
    assert len(locks) >= 16
    lines = [line for lock in locks for line in lock.read_text().splitlines() if "==" in line]
    return {(name, re.split(r"[+ ]", version)[0]) for name, version in (line.split("==") for line in lines)}


def test_every_package_of_every_lock_is_asked_about_once(tmp_path: Path) -> None:
    done = _audit(tmp_path, "clean")
    assert done.returncode == 0, done.stderr
    asked = [tuple(pin) for call in (tmp_path / "calls").read_text().splitlines() for pin in json.loads(call)]
    assert len(asked) == len(set(asked))
    assert set(asked) == _pins_of_all_locks()
    assert f"{len(asked)} packages, 0 of them not known to pypi, 0 vulnerabilities" in done.stdout


def test_a_vulnerability_is_reported_with_its_remedy_and_the_locks_that_hold_it(tmp_path: Path) -> None:
    done = _audit(tmp_path, "vulnerable")
    assert done.returncode == 1
    (line,) = (line for line in done.stdout.splitlines() if "X-2026-1" in line)
    assert "fixed by 3.0.0" in line
    assert "stages/train-lsd/cuda.lock" in line
    assert "stages/watershed" not in line


@pytest.mark.parametrize("mode", ["mirror", "one unknown"])
def test_packages_that_the_service_does_not_know_are_not_reported_as_clean(tmp_path: Path, mode: str) -> None:
    done = _audit(tmp_path, mode)
    assert done.returncode == 69
    assert "NOT AUDITED" in done.stdout
    assert ("daisy" in done.stdout) == (mode == "one unknown")


def test_a_service_out_of_reach_is_reported_plainly(tmp_path: Path) -> None:
    done = _audit(tmp_path, "unreachable")
    assert done.returncode == 69
    assert "not audited: the vulnerability service pypi could not be asked" in done.stderr
    assert "Failed to resolve" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "words", [["sbom", "/tools", "/out", "nosuch"], ["sbom", "/tools", "/out", "_launch"], ["sbom"]]
)
def test_what_is_no_stage_is_a_usage_error(tmp_path: Path, words: list[str]) -> None:
    words = [word.replace("/out", str(tmp_path)) for word in words]
    done = subprocess.run([sys.executable, str(PROGRAM), *words], check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert list(tmp_path.iterdir()) == []
