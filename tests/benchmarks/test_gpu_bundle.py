"""The bundle for GPU machines without network: made from the lock, it runs on its own, every step as a toy on the CPU.

It runs in a folder apart from the clone, with the packages that such a machine owns (the two environments of the clone,
whose editable packages of lsdflow cannot be imported this way). Python is that of the tests, so the wheels are too.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
MAKE = REPOSITORY / "benchmarks" / "gpu_bundle" / "make_bundle.py"
LARGEST_BYTES = 55 * 2**20
STEPS = {
    "predict": ("eager torch, one network", "roofline", "| acrlsd | ", "| affinities | "),
    "train": ("| train AcrLSD | tf32 |", "| FSDP, Gloo, 1 process |", "| lsd, pipeline gpu |"),
    "tests": ("tests.network.test_on_gpu", "tests.stages.predict.test_on_gpu", "tests.training.test_on_gpu", "float32"),
    "quality": ("| mtlsd | ", "3 iterations in"),
}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle for this Python, far from the clone."""
    folder = tmp_path_factory.mktemp("apart") / "gpu-bundle"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    command = [sys.executable, str(MAKE), str(folder), "--without-volume", "--python-version", version]
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
        "OUT": str(scratch / "out"),
        "LIMIT": "3000",  # no test fails for a slow machine
    }


def run(bundle: Path, machine: dict[str, str], *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = [str(bundle / "run.sh"), *arguments]
    return subprocess.run(
        command, cwd=bundle.parent, env={**machine, **more}, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_a_step_prints_its_tables_and_leaves_them(bundle: Path, machine: dict[str, str], step: str) -> None:
    done = run(bundle, machine, step, "--device", "cpu", "--tiny")
    log = (Path(machine["OUT"]) / f"{step}.log").read_text()
    assert done.returncode == 0, done.stdout + log[-4000:] + done.stderr
    for text in STEPS[step]:
        assert text in done.stdout
    assert f"`./run.sh {step} --device cpu --tiny`" in done.stdout
    assert (Path(machine["OUT"]) / f"{step}.md").read_text() == done.stdout
    assert "failed**" not in done.stdout


def test_a_step_that_fails_says_why_and_the_next_one_runs(
    bundle: Path, machine: dict[str, str], tmp_path: Path
) -> None:
    done = run(bundle, machine, "quality", "train", "--device", "cuda", OUT=str(tmp_path))
    assert done.returncode == 1
    for step, programs in {"quality": 1, "train": 3}.items():
        table = (tmp_path / f"{step}.md").read_text()
        assert table.count("failed** (exit code 1)") == programs
        assert table.count("there is no CUDA device here") >= programs


def test_a_step_ends_with_its_time(bundle: Path, machine: dict[str, str], tmp_path: Path) -> None:
    done = run(bundle, machine, "tests", "--device", "cpu", LIMIT="1", OUT=str(tmp_path))
    assert done.returncode == 1
    assert "step_tests.py failed** (exit code 124, no time left)" in done.stdout


def test_the_bundle_is_small_and_holds_all_that_the_lock_names(bundle: Path) -> None:
    files = [path for path in bundle.rglob("*") if path.is_file()]
    volume = 16 * 2**20
    assert sum(path.stat().st_size for path in files) + volume < LARGEST_BYTES
    lock = (REPOSITORY / "benchmarks/gpu_bundle/requirements.lock").read_text()
    pins = [line.split("==")[0] for line in lock.splitlines() if line[:1].isalpha()]
    wheels = [path.name.split("-")[0].replace("_", "-").replace(".", "-") for path in files if path.suffix == ".whl"]
    assert {name.replace(".", "-") for name in pins} <= set(wheels)
    assert "lsdflow-predict" in wheels


def test_without_the_real_volume_it_refuses_and_says_what_to_do(tmp_path: Path) -> None:
    command = [sys.executable, str(MAKE), str(tmp_path / "b"), "--volume", str(tmp_path / "none.zarr")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "none.zarr is not there" in done.stderr
    assert "--without-volume" in done.stderr
    assert not (tmp_path / "b").exists()


def test_without_arguments_it_says_what_it_does(bundle: Path, machine: dict[str, str]) -> None:
    done = run(bundle, machine)
    assert done.returncode == 2
    assert "./run.sh STEP... | all" in done.stdout
