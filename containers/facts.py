"""The images of this checkout: stages, variants, versions, the folders that each is made of; and the container engine.

facts.py STAGE FOLDER     copy the lock file and the packages of an image into FOLDER: a step of the Dockerfile

TORCH=cpu, cuda (default) or cuda12 (for drivers from 525 on): the variant <version>-$TORCH of a stage that uses torch.
BACKEND=torch (default) or tensorflow: the variant <version>-tensorflow (CPU) or -cuda-tensorflow of a training.
CONTAINER_TOOL=docker (default) or podman.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_LIST = ROOT / "stages" / "_contract" / "src" / "lsdflow_contract" / "stages.toml"
DECLARED: dict[str, dict[str, Any]] = tomllib.loads(_LIST.read_text(encoding="utf-8"))
STAGES = tuple(DECLARED)
VARIANTS = ("cpu", "cuda", "cuda12")
TORCH = os.environ.get("TORCH") or "cuda"
BACKEND = os.environ.get("BACKEND") or "torch"
TOOL = os.environ.get("CONTAINER_TOOL") or "docker"
USAGE, BAD_DATA, MISSING, REFUSED = 2, 65, 66, 73


class Refusal(Exception):
    """Why nothing was done, and the exit code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def known(stage: str) -> str:
    """The stage. Refusal (2) if there is no such stage."""
    if stage not in STAGES:
        raise Refusal(USAGE, f"no such stage: {stage or '(none given)'}\n   one of: {' '.join(STAGES)}")
    return stage


def _project(folder: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / "stages" / folder / "pyproject.toml").read_text(encoding="utf-8"))


def version_of(folder: str) -> str:
    """The version in stages/<folder>/pyproject.toml."""
    return str(_project(folder)["project"]["version"])


def packages_of(stage: str, backend: str = BACKEND) -> list[str]:
    """The folders of stages/ that an image contains: the stage, the backend, and what they depend on."""
    found: list[str] = []
    waiting = [stage, *([f"_{backend}"] if backend != "torch" else [])]
    while waiting:
        folder = waiting.pop()
        if folder not in found:
            found.append(folder)
            sources = _project(folder).get("tool", {}).get("uv", {}).get("sources", {})
            waiting += [Path(source["path"]).name for source in sources.values()]
    return sorted(found)


def uses_torch(stage: str) -> bool:
    """Whether the image of a stage has variants for CPU and for CUDA."""
    return (ROOT / "stages" / stage / "cuda.lock").exists()


def has_backends(stage: str) -> bool:
    """Whether the image of a stage has a variant for training with tensorflow."""
    return "_training" in packages_of(stage, "torch")


def image_version(stage: str, backend: str = BACKEND) -> str:
    """The version of a stage's image, such as 0.1.0 or 0.1.0-cpu. Refusal (2) if there is no such variant."""
    if TORCH not in VARIANTS:
        raise Refusal(USAGE, f"no such variant of torch: {TORCH}\n   one of: {' '.join(VARIANTS)}")
    if backend not in ("torch", "tensorflow"):
        raise Refusal(USAGE, f"no such backend: {backend}\n   one of: torch tensorflow")
    if backend == "tensorflow" and not has_backends(stage):
        trainings = " ".join(filter(has_backends, STAGES))
        raise Refusal(USAGE, f"the image of {stage} has no variant with tensorflow\n   those that have: {trainings}")
    if backend == "tensorflow" and TORCH == "cuda12":
        raise Refusal(USAGE, "with tensorflow, TORCH=cuda is for CUDA 12: there is no other variant for GPUs")
    if backend == "tensorflow":
        variant = "-tensorflow" if TORCH == "cpu" else "-cuda-tensorflow"
    else:
        variant = f"-{TORCH}" if uses_torch(stage) else ""
    return version_of(stage) + variant


def image_name(stage: str, backend: str = BACKEND) -> str:
    """The name of a stage's image, such as lsdflow/predict:0.1.0-cpu."""
    return f"lsdflow/{stage}:{image_version(stage, backend)}"


def make_command(stage: str, backend: str = BACKEND) -> str:
    """The make command that builds the image."""
    named = f" BACKEND={backend}" if backend != "torch" else ""
    return f"make image STAGE={stage}{named}" + (f" TORCH={TORCH}" if uses_torch(stage) else "")


def lock_of(stage: str) -> str:
    """The path of the lock file of the image."""
    folder = stage if BACKEND == "torch" else f"_{BACKEND}"
    return f"stages/{folder}/{TORCH if uses_torch(stage) else 'requirements'}.lock"


def content_of(stage: str) -> list[str]:
    """All paths of the checkout that the image of a stage is made from."""
    shared = [f"containers/{name}" for name in ("Dockerfile", "install.sh", "installer.lock", "startup")]
    return [*shared, lock_of(stage), *(f"stages/{folder}" for folder in packages_of(stage))]


def collect(stage: str, folder: Path) -> None:
    """Copy the lock files and the sources of an image into the folder, with their times; lsds.txt is for trainings."""
    for package in packages_of(known(stage)):
        shutil.copytree(ROOT / "stages" / package, folder / "source" / package)
    shutil.copy2(ROOT / lock_of(stage), folder / "locked.txt")
    if has_backends(stage):
        shutil.copy2(ROOT / "stages" / "_training" / "lsds.lock", folder / "lsds.txt")


def engine(*words: str) -> subprocess.CompletedProcess[str]:
    """A command of the container engine, with its output kept."""
    return subprocess.run([TOOL, *words], capture_output=True, text=True, check=False)


def ask_engine(*words: str) -> str:
    """What a command of the engine prints. Refusal (66) with its message if it fails."""
    done = engine(*words)
    if done.returncode != 0:
        raise Refusal(MISSING, f"{TOOL} {' '.join(words)} failed\n   {done.stderr.strip()}")
    return done.stdout.strip()


def inspect(image: str, form: str) -> str:
    """A field of an image, by a template of the engine. Refusal (66) if there is no such image."""
    return ask_engine("image", "inspect", "--format", form, image)


def has_image(image: str) -> bool:
    """Whether the engine has an image."""
    return engine("image", "inspect", image).returncode == 0


def digest_of(image: str) -> str:
    """sha256:...: the digest of a registry, or the id of an image that no registry has."""
    for found in inspect(image, "{{range .RepoDigests}}{{println .}}{{end}}").split():
        return found.partition("@")[2]
    return "sha256:" + inspect(image, "{{.Id}}").removeprefix("sha256:")  # podman omits the prefix


def exit_code_of(command: Callable[[list[str]], int], words: list[str]) -> int:
    """The exit code of a command with these words; a Refusal is printed as one message."""
    try:
        return command(words)
    except Refusal as refusal:
        sys.stderr.write(f"error: {refusal}\n")
        return refusal.code


def main(words: list[str]) -> int:
    """Entry point; returns the exit code."""
    if len(words) != 2:
        raise Refusal(USAGE, (__doc__ or "").strip())
    collect(words[0], Path(words[1]))
    return 0


if __name__ == "__main__":
    sys.exit(exit_code_of(main, sys.argv[1:]))
