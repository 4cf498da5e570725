"""Make a folder that a GPU machine without network can run: wheels, benchmarks, tests, a real volume, run.sh.

    make_bundle.py FOLDER [--volume trvol-250-2.zarr | --without-volume]      `make gpu-bundle`

The machine has Python 3.12, torch and the packages that requirements.in names; the wheels of all the others are
downloaded here, as requirements.lock pins them. The packages of this repository become wheels too.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
VOLUME = REPOSITORY.parent / "shared" / "data" / "fib25" / "trvol-250-2.zarr"
LARGEST_MIB = 55
PACKAGES = (
    *("_contract", "_command", "_runtime", "_network", "_metrics", "_descriptors", "_training", "_launch"),
    *("prepare", "train-lsd", "train-acrlsd", "predict", "watershed", "agglomerate", "segment", "evaluate"),
)
BENCHMARKS = (
    *("gpu.py", "gpu_machine.py", "gpu_one_rank.py", "gpu_pipeline.py", "network_data.py", "networks.py"),
    *("eager_network.py", "serving.py", "fib25.toml", "gpu_bundle"),
)
TESTS = ("pytest.ini", "tests/conftest.py", "tests/plugins", "tests/network", "tests/training", "tests/stages/predict")
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")


def main() -> None:
    """Make the folder, in place of an older one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    volume = parser.add_mutually_exclusive_group()
    volume.add_argument("--volume", type=Path, default=VOLUME, help="with raw, labels and the FFN segmentation")
    volume.add_argument("--without-volume", action="store_true", help="the step quality then works with --tiny only")
    parser.add_argument("--python-version", default="3.12", help="of the GPU machine (default 3.12)")
    parser.add_argument("--pip", default=sys.executable, help="a Python that has pip")
    parser.add_argument("--hatchling", default=sys.executable, help="a Python that has hatchling")
    options = parser.parse_args()
    if not options.without_volume and not options.volume.is_dir():
        raise SystemExit(
            f"{options.volume} is not there. Give another volume with --volume, or leave it out with --without-volume "
            "(the step quality then works with --tiny only)"
        )
    folder = options.folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    wheels = folder / "wheels"
    wheels.mkdir(parents=True)
    download(wheels, options.pip, options.python_version)
    build(wheels, options.hatchling)
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(wheels.iterdir())]
    (wheels / "SHA256SUMS").write_text("".join(sums))
    copy(folder)
    if not options.without_volume:
        shutil.copytree(options.volume, folder / "data" / "trvol-250-2.zarr")
    report(folder)


def download(wheels: Path, python: str, version: str) -> None:
    """The wheels of requirements.lock, each with its hash; gunpowder alone asks for 3.12 without needing it."""
    platforms = [part for name in PLATFORMS for part in ("--platform", name)]
    command = [python, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--require-hashes", "--ignore-requires-python", "--implementation", "cp"]
    command += ["--python-version", version, *platforms, "--dest", str(wheels)]
    subprocess.run([*command, "--requirement", str(HERE / "requirements.lock")], check=True)


def build(wheels: Path, python: str) -> None:
    """Wheels of this repository's packages."""
    for package in PACKAGES:
        command = [python, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(wheels)]
        subprocess.run(command, cwd=REPOSITORY / "stages" / package, check=True, stdout=sys.stderr)


def copy(folder: Path) -> None:
    """Benchmarks and tests at their places, run.sh at the top."""
    for name in (*(f"benchmarks/{name}" for name in BENCHMARKS), *TESTS):
        source, target = REPOSITORY / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, target)
    shutil.copy2(HERE / "run.sh", folder / "run.sh")
    settings = (folder / "pytest.ini").read_text()
    (folder / "pytest.ini").write_text(
        re.sub(r"minversion = .*\n", "", settings)
    )  # the machine's pytest is good enough


def report(folder: Path) -> None:
    """Its size by parts; ends the program if it is too large."""
    parts = {path.name: _mib(path) for path in sorted(folder.iterdir())}
    total = sum(parts.values())
    print(f"{folder}: {total:.1f} MiB ({', '.join(f'{name} {mib:.1f}' for name, mib in parts.items())})")
    if total > LARGEST_MIB:
        raise SystemExit(f"more than {LARGEST_MIB} MiB: it does not travel with the working tree")


def _mib(path: Path) -> float:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file()) / 2**20


if __name__ == "__main__":
    main()
