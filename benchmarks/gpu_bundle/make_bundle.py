"""Make a folder that a GPU machine without network can run: wheels, benchmarks, tests, a real volume, run.sh.

    make_bundle.py FOLDER [--volumes ../shared/data | --without-volumes]      `make gpu-bundle`

The machine has Python 3.12, torch and the packages that requirements.in names; the wheels of all the others are
downloaded here, as requirements.lock pins them. The packages of this repository become wheels too. Of the volumes, it
takes raw, labels and mask of what is trained on.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import zarr
from numcodecs import Blosc

from lsdflow_contract.experiment import STAGES

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
VOLUMES = REPOSITORY.parent / "shared" / "data"
# What is trained on: the name of experiments.py -> container and number of its sections.
TRAINED = {"fib-sem": ("fib25/trvol-250-2.zarr", 150), "serial-sections": ("snemi3d/ac4-train.zarr", 80)}
DATASETS = ("volumes/raw", "volumes/labels/neuron_ids", "volumes/labels/mask")
LARGEST_MIB = 55
NETWORKS = "lsdflow_predict/networks/"
PACKAGES = (
    *("_contract", "_command", "_runtime", "_network", "_metrics", "_descriptors"),
    *("_training", "_importers", "_launch"),
    *STAGES,
)
BENCHMARKS = (*("gpu.py", "gpu_machine.py", "network_data.py", "fib25.toml", "gpu_bundle"),)
TESTS = ("pytest.ini", "tests/conftest.py", "tests/plugins", "tests/network", "tests/training", "tests/stages/predict")
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")


def main() -> None:
    """Make the folder, in place of an older one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    volume = parser.add_mutually_exclusive_group()
    volume.add_argument("--volumes", type=Path, default=VOLUMES, help="folder of the volumes that are trained on")
    volume.add_argument("--without-volumes", action="store_true", help="training then works with --tiny only")
    parser.add_argument("--python-version", default="3.12", help="of the GPU machine (default 3.12)")
    parser.add_argument("--pip", default=sys.executable, help="a Python that has pip")
    parser.add_argument("--hatchling", default=sys.executable, help="a Python that has hatchling")
    options = parser.parse_args()
    sources = {} if options.without_volumes else {name: options.volumes / path for name, (path, _) in TRAINED.items()}
    if missing := [str(path) for path in sources.values() if not path.is_dir()]:
        raise SystemExit(
            f"{', '.join(missing)}: not there. Give another folder with --volumes, or leave them out with "
            "--without-volumes (training then works with --tiny only)"
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
    for name, source in sources.items():
        copy_volume(source, folder / "data" / f"{name}.zarr", TRAINED[name][1])
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
    for wheel in wheels.glob("lsdflow_predict-*.whl"):
        leave_out_networks(wheel)


def leave_out_networks(wheel: Path) -> None:
    """Take the trained networks out of the wheel of predict: the bundle is small, and trains its own."""
    with zipfile.ZipFile(wheel) as whole:
        kept = {info: whole.read(info) for info in whole.infolist() if NETWORKS not in info.filename}
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as smaller:
        for info, content in kept.items():
            lines = content.splitlines(keepends=True) if info.filename.endswith("/RECORD") else [content]
            smaller.writestr(info, b"".join(line for line in lines if not line.startswith(NETWORKS.encode())))


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


def copy_volume(source: Path, target: Path, sections: int) -> None:
    """The first sections of raw, labels and mask, compressed as small as zarr format 2 can."""
    zarr.open_group(target, mode="w", zarr_format=2)
    for name in DATASETS:
        if not (source / name).is_dir():
            continue
        array = zarr.open_array(source / name, mode="r")
        values = array[:sections]
        smallest = Blosc(
            cname="zstd", clevel=9, shuffle=Blosc.BITSHUFFLE if values.dtype == np.uint8 else Blosc.SHUFFLE
        )
        made = zarr.create_array(
            target, name=name, shape=values.shape, chunks=array.chunks, dtype=values.dtype, compressors=smallest,
            zarr_format=2, attributes=dict(array.attrs),
        )  # fmt: skip
        made[...] = values


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
