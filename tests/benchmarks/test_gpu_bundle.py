"""The bundle for GPU machines without network: made from the lock, it runs on its own, all of it as a toy on the CPU.

It runs in a folder apart from the clone, with the packages that such a machine owns (the two environments of the clone,
whose editable packages of lsdflow cannot be imported this way). Python is that of the tests, so the wheels are too.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import sysconfig
import tarfile
import time
from pathlib import Path
from types import ModuleType

import psutil
import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
BUNDLE = REPOSITORY / "benchmarks" / "gpu_bundle"
LARGEST_BYTES = 55 * 2**20
LARGEST_FILE, MOST_FILES = 15 * 2**20, 8
VOLUMES_BYTES = 28 * 2**20  # of FIB-25 and AC4, which are not part of this repository
TABLES = (
    *("## tests", "| stages/predict/test_on_gpu.py::test_a_measured_block", "the same tile once more: bits"),
    *("## network", "| acrlsd | float32 | 32 |", "operations, one at a time", "kernels"),
    *("## stage", "| mtlsd | ", "manifest, acrlsd: `{"),
    *("## training", "| published: 12 maps, x6 | "),
    *("## quality", "| fib-sem | 3 |", "| serial-sections | 3 |"),
)
BUNDLE_FILES = {"weights.safetensors", "bundle.json", "bundle.sha256", "loss.csv", "experiment.toml", "settings.txt"}
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
rows = next(word for word in sys.argv if word.startswith("--rows=")).partition("=")[2]
open(rows, "w").write("planned first\\nplanned second\\ndone first\\n")
print(f"| first | {child.pid} |", flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle for this Python, far from the clone."""
    folder = tmp_path_factory.mktemp("apart") / "gpu-bundle"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    command = [
        sys.executable,
        str(BUNDLE / "make_bundle.py"),
        str(folder),
        "--without-volumes",
        "--python-version",
        version,
    ]
    command += ["--pip", str(REPOSITORY / ".venv/tools/bin/python")]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    return folder


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a machine that has torch and the like, and no network: pip would find nothing."""
    own = sysconfig.get_paths()["purelib"]
    training = own.replace("/.venv/blocks/", "/.venv/training/")
    scratch = tmp_path_factory.mktemp("machine")
    kept = {name: os.environ[name] for name in ("PATH", "NUMBA_CACHE_DIR") if name in os.environ}
    return {
        **kept,
        "PYTHON": str(REPOSITORY / ".venv/tools/bin/python"),
        "PYTHONPATH": f"{own}:{training}",
        "HOME": str(scratch),
        "TMPDIR": str(scratch),
        "CUDA_VISIBLE_DEVICES": "",
        "PIP_INDEX_URL": "file:///nowhere",
    }


@pytest.fixture(scope="module")
def rehearsal() -> ModuleType:
    """The module that runs the parts."""
    spec = importlib.util.spec_from_file_location("rehearse", BUNDLE / "rehearse.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["rehearse"] = module
    spec.loader.exec_module(module)
    return module


def run(bundle: Path, machine: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(bundle / "run.sh"), *arguments]
    return subprocess.run(command, cwd=bundle.parent, env=machine, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_rehearsal_does_everything_on_a_toy(bundle: Path, machine: dict[str, str], tmp_path: Path) -> None:
    # No test fails for a slow machine.
    given = ("rehearse", "--seconds", "6000", "--results", str(tmp_path / "out"), "--device", "cpu", "--tiny")
    done = run(bundle, machine, *given)
    tables, log = ((tmp_path / "out" / name).read_text() for name in ("results.md", "rehearse.log"))
    assert done.returncode == 0, done.stdout + log[-4000:] + done.stderr
    assert "Everything was done." in tables
    assert [text for text in TABLES if text not in tables] == []
    assert [line for line in tables.splitlines() if line not in done.stdout] == []
    files = list((tmp_path / "out").iterdir())
    assert len(files) <= MOST_FILES
    assert max(path.stat().st_size for path in files) <= LARGEST_FILE
    for name in ("fib-sem", "serial-sections"):
        with tarfile.open(tmp_path / "out" / f"{name}.tar") as tar:
            assert set(tar.getnames()) == {f"{name}/{file}" for file in BUNDLE_FILES}


@pytest.mark.slow
def test_the_rehearsal_keeps_its_time_and_lists_what_was_not_done(
    bundle: Path, machine: dict[str, str], tmp_path: Path
) -> None:
    run(bundle, machine, "rehearse", "--seconds", "0")  # unpacks the wheels, with no time for anything else
    begin = time.monotonic()
    done = run(bundle, machine, "rehearse", "--seconds", "15", "--results", str(tmp_path), "--device", "cpu", "--tiny")
    assert time.monotonic() - begin < 15 + 3
    assert done.returncode == 1
    left = (tmp_path / "results.md").read_text().partition("## Not done")[2]
    assert [part for part in ("tests", "network", "stage", "training", "quality") if f"- {part}: " not in left] == []


def test_a_part_that_overruns_is_killed_with_all_it_started_and_the_rest_goes_on(
    rehearsal: ModuleType, tmp_path: Path
) -> None:
    stubborn = rehearsal.Part("stubborn", (sys.executable, "-c", STUBBORN), 200.0)
    last = rehearsal.Part("last", (sys.executable, "-c", "print('| of the last |')"))
    begin = time.monotonic()
    outcomes = rehearsal.rehearse([stubborn, last], time.time() + 15.6, 15.6, tmp_path)
    assert time.monotonic() - begin < 15.6
    assert [(o.how, o.not_done) for o in outcomes] == [("ended at its limit", ("second",)), ("done", ())]
    assert outcomes[0].limit_s == pytest.approx(4, abs=0.01)
    assert outcomes[1].limit_s == pytest.approx(15.6 - 2 - outcomes[0].seconds, abs=0.5)
    tables = (tmp_path / "results.md").read_text()
    assert tables.index("| of the last |") < tables.index("- stubborn: second")
    child = int(tables.partition("| first | ")[2].split()[0])
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


def test_a_part_that_fails_says_so_and_a_part_without_time_does_not_begin(
    rehearsal: ModuleType, tmp_path: Path
) -> None:
    failing = rehearsal.Part("failing", (sys.executable, "-c", "raise SystemExit('the reason')"))
    outcomes = rehearsal.rehearse([failing, failing], time.time() + 60, 60, tmp_path)
    assert outcomes[0].how == "failed (exit code 1, see rehearse.log)"
    assert "the reason" in (tmp_path / "rehearse.log").read_text()
    (late,) = rehearsal.rehearse([failing], time.time() + 1, 1, tmp_path)
    assert late.how == "no time left"
    assert "- failing: what it had not done yet: no time left" in (tmp_path / "results.md").read_text()


def test_without_a_gpu_it_refuses_in_one_line(bundle: Path, machine: dict[str, str], tmp_path: Path) -> None:
    done = run(bundle, machine, "rehearse", "--results", str(tmp_path / "none"), "--device", "cuda")
    assert done.returncode == 1
    assert done.stderr.count("there is no CUDA device here") == len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "none").exists()


def test_the_bundle_is_small_and_holds_all_that_the_lock_names(bundle: Path) -> None:
    files = [path for path in bundle.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) + VOLUMES_BYTES < LARGEST_BYTES
    lock = (REPOSITORY / "benchmarks/gpu_bundle/requirements.lock").read_text()
    pins = [line.split("==")[0] for line in lock.splitlines() if line[:1].isalpha()]
    wheels = [path.name.split("-")[0].replace("_", "-").replace(".", "-") for path in files if path.suffix == ".whl"]
    assert {name.replace(".", "-") for name in pins} <= set(wheels)
    assert "lsdflow-predict" in wheels


def test_without_the_real_volumes_it_refuses_and_says_what_to_do(tmp_path: Path) -> None:
    command = [sys.executable, str(BUNDLE / "make_bundle.py"), str(tmp_path / "b"), "--volumes", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "snemi3d/ac4-train.zarr: not there" in done.stderr
    assert "--without-volumes" in done.stderr
    assert not (tmp_path / "b").exists()


def test_without_arguments_it_says_what_it_does(bundle: Path, machine: dict[str, str]) -> None:
    done = run(bundle, machine)
    assert done.returncode == 2
    assert "./run.sh rehearse [--seconds 780]" in done.stdout
