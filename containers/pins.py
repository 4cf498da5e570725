"""pins.py FILE [STAGE...]: the lines of an images.env that pin the local images of these stages (default: all).

A pin is name:version@digest: the registry's name and digest where one has the image, else lsdflow/STAGE:VERSION and the
image's id. In a FILE that is there only the lines of these stages change; comments and other lines stay.
TORCH=cpu or cuda (default): the variant of the stages that use torch, name:version-cpu or name:version-cuda.
BACKEND=tensorflow: the variant for training with it, of the stages that have one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ledger import BACKEND, MISSING, USAGE, Refusal, ask_engine, has_backends, image_version, order_of

STAGES = ("prepare", "train-lsd", "train-acrlsd", "predict", "watershed", "agglomerate", "segment", "evaluate")
HEADER = "# Images of an experiment, pinned by digest. Read by lsdflow, compose and the cluster's wrappers."


def key_of(stage: str) -> str:
    """The stage's key: TRAIN_LSD_IMAGE for train-lsd."""
    return stage.upper().replace("-", "_") + "_IMAGE"


def pin_of(stage: str, backend: str = "torch") -> str:
    """The pin of the image that the engine has of a stage's version in this checkout. Refusal (66) if it has none."""
    name, version = f"lsdflow/{stage}", image_version(stage, backend)
    answer = ask_engine(
        "image", "inspect", "--format", "{{.Id}} {{range .RepoDigests}}{{.}} {{end}}", f"{name}:{version}"
    )
    image_id, *from_registries = answer.split()
    # The first, as convert.sh takes it for a SIF. podman lists images that were never pushed as localhost's.
    if from_registries:
        name, _, digest = from_registries[0].removeprefix("localhost/").partition("@")
        return f"{name}:{version}@{digest}"
    return f"{name}:{version}@sha256:{image_id.removeprefix('sha256:')}"


def pinned(text: str, pins: dict[str, str]) -> str:
    """The text of an images.env with the pins of these stages in it, each where it stood or at the end."""
    lines = {key_of(stage): f"{key_of(stage)}={pin}" for stage, pin in pins.items()}
    kept = [lines.pop(line.partition("=")[0], line) for line in text.splitlines() or [HEADER]]
    return "\n".join([*kept, *lines.values()]) + "\n"


def _pins_of(backends: dict[str, str]) -> dict[str, str]:
    """The pins of these stages by their images' backends. Refusal (66) naming all images that are missing."""
    pins, missing = {}, []
    for stage, backend in backends.items():
        try:
            pins[stage] = pin_of(stage, backend)
        except Refusal as refusal:
            if refusal.code != MISSING:
                raise
            missing.append(f"{refusal}\n   fix: {order_of(stage, backend)}")
    if missing:
        raise Refusal(MISSING, "\n".join(missing))
    return pins


def write(path: Path, stages: Sequence[str]) -> str:
    """Write the pins of the stages (none named: all) into the file; returns its text.

    Refusal (66, 2): nothing is written. A stage that was named must have the variant that was asked for.
    """
    if unknown := [stage for stage in stages if stage not in STAGES]:
        raise Refusal(USAGE, f"no such stage: {' '.join(unknown)}\n   one of: {' '.join(STAGES)}")
    backends = dict.fromkeys(stages, BACKEND) or {s: BACKEND if has_backends(s) else "torch" for s in STAGES}
    text = pinned(path.read_text(encoding="utf-8") if path.exists() else "", _pins_of(backends))
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)
    return text


def main(arguments: list[str]) -> int:
    """Entry point; returns the exit code."""
    try:
        if not arguments:
            raise Refusal(USAGE, (__doc__ or "").strip())
        sys.stdout.write(write(Path(arguments[0]), arguments[1:]))
    except Refusal as refusal:
        sys.stderr.write(f"error: {refusal}\n")
        return refusal.code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
