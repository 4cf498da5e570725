"""Images of this checkout, their SIFs and pins. `make image`, `make sif` and `make pins` call it.

images.py build [STAGE...]         the images lsdflow/<stage>:<version> (default: of all stages)
images.py convert [STAGE...]       their SIFs, <stage>_<version>_<first 12 hex of the digest>.sif
images.py pins FILE [STAGE...]     the lines of an images.env that pin them; other lines of the file stay
images.py arguments                the build arguments of all images as JSON, for docker-bake.hcl

CONTAINER_TOOL          docker (default), or podman
TORCH, BACKEND          the variant: facts.py
BASE_IMAGE, BASE_DIGEST the base image, and its digest for a release
BUILD_ARGS              more options of the build, such as --no-cache or --build-arg PIP_EXTRA_INDEX_URL=...
SIF_DIR, IMAGE          the folder of the SIFs (default: .cache/sif); an image to convert instead
SOURCE_URL              the address of the source (default: that of the git remote origin)
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import ledger
import oci_layout
from facts import (
    BACKEND,
    BAD_DATA,
    MISSING,
    ROOT,
    STAGES,
    TOOL,
    TORCH,
    USAGE,
    Refusal,
    digest_of,
    engine,
    exit_code_of,
    has_backends,
    has_image,
    image_name,
    image_version,
    inspect,
    known,
    make_command,
    uses_torch,
    version_of,
)

HEADER = "# Images of an experiment, pinned by digest. Read by lsdflow, compose and the cluster's wrappers."
# On a machine without a registry the base image may have the shorter name.
BASES = ("python:3.11-slim-bookworm", "python:3.11-slim")


# --- build ----------------------------------------------------------------------------------------------------------
def arguments(stage: str) -> dict[str, str]:
    """The build arguments of an image. Refusal (2) if there is no such variant."""
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or _git("log", "-1", "--format=%ct") or 315532800)
    return {
        "STAGE": stage,
        "TORCH": TORCH if uses_torch(stage) else "",
        "BACKEND": BACKEND if has_backends(stage) else "",
        "VERSION": image_version(stage),
        "REVISION": _revision(),
        "CREATED": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch)),
        "CONTRACT": version_of("_contract"),
        "SOURCE": _source_address(),
    }


def base_arguments() -> dict[str, str]:
    """The build arguments that name the base image; it is pulled if it is not there."""
    digest, given = os.environ.get("BASE_DIGEST", ""), os.environ.get("BASE_IMAGE")
    names = (given,) if given else BASES
    if digest:
        return {"BASE_IMAGE": names[0], "BASE_DIGEST": digest, "BASE_FOUND": digest}
    base = next((name for name in names if has_image(name) or engine("pull", "-q", name).returncode == 0), names[-1])
    return {"BASE_IMAGE": base, "BASE_DIGEST": "", "BASE_FOUND": digest_of(base)}


def build(stages: Sequence[str]) -> None:
    """Build the images. Refusal: 73 if a version is published with other content, the engine's code if it fails."""
    for stage in stages:
        given = {**arguments(stage), **base_arguments()}
        ledger.may_build(stage)
        words = [TOOL, "build", "--file", "containers/Dockerfile", "--tag", image_name(stage)]
        words += [word for name, value in given.items() for word in ("--build-arg", f"{name}={value}")]
        started = time.monotonic()
        environment = {**os.environ, "DOCKER_BUILDKIT": "1"}
        more = shlex.split(os.environ.get("BUILD_ARGS", ""))
        done = subprocess.run([*words, *more, "."], cwd=ROOT, check=False, env=environment)
        if done.returncode != 0:
            raise Refusal(done.returncode, f"{image_name(stage)} was not built")
        image, seconds = image_name(stage), time.monotonic() - started
        size = int(inspect(image, "{{.Size}}")) // 10**6
        _say(f"{image}  {digest_of(image)}  {size} MB  base {given['BASE_IMAGE']}  {seconds:.0f} s")


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def _revision() -> str:
    """The commit, with -dirty if the sources of the images differ from it."""
    changed = "-dirty" if _git("status", "--porcelain", "--", "stages", "containers", ".dockerignore") else ""
    return (_git("rev-parse", "HEAD") or "unknown") + changed


def _source_address() -> str:
    """$SOURCE_URL, or the address of origin if it is a public one: no folder, no name or password."""
    origin = os.environ.get("SOURCE_URL") or _git("remote", "get-url", "origin")
    return origin if origin.startswith("https://") and "@" not in origin else "unknown"


# --- convert --------------------------------------------------------------------------------------------------------
def convert(stages: Sequence[str]) -> None:
    """Convert the images to SIFs with their labels, environment and entry point; an existing SIF stays."""
    apptainer = shutil.which("apptainer") or shutil.which("singularity")
    if apptainer is None:
        raise Refusal(MISSING, "neither apptainer nor singularity is installed")
    folder = Path(os.environ.get("SIF_DIR") or ".cache/sif")
    for stage in stages:
        image = os.environ.get("IMAGE") or image_name(stage)
        if not has_image(image):
            raise Refusal(MISSING, f"no image {image}\n   fix: {make_command(stage)}")
        digest = digest_of(image)
        version = inspect(image, '{{index .Config.Labels "org.opencontainers.image.version"}}')
        sif = folder / f"{stage}_{version}_{digest.removeprefix('sha256:')[:12]}.sif"
        if sif.exists() and sif.stat().st_size:
            sif.touch()  # the newest SIF of a version is that of this checkout
            _say(f"{sif} exists")
            continue
        started = time.monotonic()
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".convert-", dir=folder) as work:
            made = _convert(image, digest, apptainer, Path(work))
            made.chmod(0o644)
            made.replace(sif)
        _say(f"{sif}  {sif.stat().st_size // 10**6} MB  {time.monotonic() - started:.0f} s")


def _convert(image: str, digest: str, apptainer: str, work: Path) -> Path:
    with subprocess.Popen([TOOL, "save", image], stdout=subprocess.PIPE) as saved:
        try:
            oci_layout.write_layout(saved.stdout, work / "oci")
        except ValueError as error:
            raise Refusal(BAD_DATA, f"{TOOL} save {image}: {error}") from error
    (work / "definition").write_text(f"Bootstrap: oci\nFrom: oci\n\n%labels\n    lsdflow.image.digest {digest}\n")
    # zstd at level 1: a quarter of gzip's time for a file a tenth larger. A label contains the path, hence cwd.
    squash = ["--mksquashfs-args", "-comp zstd -Xcompression-level 1"]
    options = ["--disable-cache", "--tmpdir", os.environ.get("TMPDIR") or "/tmp", *squash]  # noqa: S108
    done = subprocess.run([apptainer, "--quiet", "build", *options, "made.sif", "definition"], cwd=work, check=False)
    if done.returncode != 0:
        raise Refusal(done.returncode, f"{image} was not converted")
    return work / "made.sif"


# --- pins -----------------------------------------------------------------------------------------------------------
def pin_of(stage: str, backend: str) -> str:
    """The pin of a stage's local image: name and digest of a registry that has it, else its own name and id."""
    name, version = f"lsdflow/{stage}", image_version(stage, backend)
    found = inspect(f"{name}:{version}", "{{.Id}} {{range .RepoDigests}}{{.}} {{end}}").split()
    if len(found) > 1:
        # The first one, as digest_of returns it for a SIF. podman lists images that were never pushed as localhost's.
        name, _, digest = found[1].removeprefix("localhost/").partition("@")
        return f"{name}:{version}@{digest}"
    return f"{name}:{version}@sha256:{found[0].removeprefix('sha256:')}"


def write_pins(path: Path, stages: Sequence[str]) -> str:
    """Write the pins of the stages (none named: all) into the file; returns its text.

    Refusal (66, 2): nothing is written. A stage that was named must have the requested variant.
    """
    backends = {known(s): BACKEND for s in stages} or {s: BACKEND if has_backends(s) else "torch" for s in STAGES}
    lines, missing = {}, []
    for stage, backend in backends.items():
        key = stage.upper().replace("-", "_") + "_IMAGE"
        try:
            lines[key] = f"{key}={pin_of(stage, backend)}"
        except Refusal as refusal:
            if refusal.code != MISSING:
                raise
            missing.append(f"{refusal}\n   fix: {make_command(stage, backend)}")
    if missing:
        raise Refusal(MISSING, "\n".join(missing))
    before = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    kept = [lines.pop(line.partition("=")[0], line) for line in before or [HEADER]]
    text = "\n".join([*kept, *lines.values()]) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
    return text


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(words: list[str]) -> int:
    """Entry point; returns the exit code."""
    match words:
        case ["build", *stages]:
            build([known(stage) for stage in stages] or STAGES)
        case ["convert", *stages]:
            convert([known(stage) for stage in stages] or STAGES)
        case ["pins", path, *stages]:
            sys.stdout.write(write_pins(Path(path), stages))
        case ["arguments"]:
            sys.stdout.write(json.dumps({stage: {**arguments(stage), **base_arguments()} for stage in STAGES}))
        case _:
            raise Refusal(USAGE, (__doc__ or "").strip())
    return 0


if __name__ == "__main__":
    sys.exit(exit_code_of(main, sys.argv[1:]))
