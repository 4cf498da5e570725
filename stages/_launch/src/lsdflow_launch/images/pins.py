"""images.env: the pinned image of each stage of an experiment, one line per pin; compose reads it too."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from lsdflow_contract.errors import ConfigError, MissingInput
from lsdflow_contract.experiment import GPU_STAGES, STAGES, did_you_mean

FORM = "KEY=registry/name:version, or KEY=registry/name:version@sha256:<64 hex>"
_COMPONENT = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_PIN = re.compile(
    rf"(?P<name>(?:[A-Za-z0-9.-]+(?::[0-9]+)?/)?{_COMPONENT}(?:/{_COMPONENT})*)"
    r"(?::(?P<version>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?"
    r"(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_MAKE_OPTIONS = {
    "-cuda-tensorflow": " BACKEND=tensorflow TORCH=cuda",
    "-tensorflow": " BACKEND=tensorflow TORCH=cpu",
    "-cpu": " TORCH=cpu",
    "-cuda": " TORCH=cuda",
    "-cuda12": " TORCH=cuda12",
}


def key_of(stage: str) -> str:
    """Return the stage's key in images.env: TRAIN_LSD_IMAGE for train-lsd."""
    return stage.upper().replace("-", "_") + "_IMAGE"


# The database is not a stage, but compose starts it and needs a pin for it.
KEYS = (*map(key_of, STAGES), "MONGO_IMAGE")


@dataclass(frozen=True)
class Pin:
    """One pinned image; `digest` is sha256:... or empty."""

    key: str
    name: str
    version: str
    digest: str = ""

    @property
    def tagged(self) -> str:
        """registry/name:version."""
        return f"{self.name}:{self.version}"

    @property
    def make_option(self) -> str:
        """The options of `make image` and `make sif` for the variant that the version ends in."""
        return next((options for end, options in _MAKE_OPTIONS.items() if self.version.endswith(end)), "")

    @property
    def advice(self) -> str:
        """The fix for a pin of the time when the CPU and CUDA variants had the same version; else empty."""
        if self.key not in map(key_of, GPU_STAGES) or "-" in self.version:
            return ""
        return f"; {self.key} names no variant: write {self.version}-cuda or {self.version}-cpu"

    def __str__(self) -> str:
        return self.tagged + (f"@{self.digest}" if self.digest else "")


def read_pins(path: Path) -> dict[str, Pin]:
    """Return all pins of an images.env by key.

    Raises MissingInput (66) if there is no such file, ConfigError (78) for a line that is not a pin, an unknown or
    repeated key, `latest` or no version.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise MissingInput(
            "no pinned images",
            where=path.resolve(),
            fix="copy the images.env of another experiment; lsdflow init writes one",
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError("not a text file", where=path, found=error) from error
    pins: dict[str, Pin] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        pin = _pin_of(line, f"{path}:{number}")
        if pin.key in pins:
            raise ConfigError(f"{pin.key} is pinned twice", where=f"{path}:{number}", found=line)
        pins[pin.key] = pin
    return pins


def pin_of_stage(pins: dict[str, Pin], stage: str, path: Path) -> Pin:
    """Return the stage's pin. Raises ConfigError (78) that names the key if there is none."""
    key = key_of(stage)
    if key not in pins:
        raise ConfigError(f"{stage} has no pinned image", where=path, wanted=f"a line {key}=registry/name:version")
    return pins[key]


def _pin_of(line: str, where: str) -> Pin:
    key, equals, value = line.partition("=")
    if not equals:
        raise ConfigError("not a pin", where=where, wanted=FORM, found=repr(line))
    if key not in KEYS:
        raise ConfigError(f"unknown key {key!r}", where=where, fix=did_you_mean(key.strip(), KEYS))
    match = _PIN.fullmatch(value)
    if match is None:
        raise ConfigError(f"{key}: not an image", where=where, wanted=FORM, found=repr(value))
    name, version, digest = match["name"], match["version"], match["digest"] or ""
    if not version or version == "latest":
        found = "latest" if version else "no version"
        fix = "a pin must mean the same image next year: name a version"
        raise ConfigError(f"{key}: an image without a fixed version", where=where, wanted=FORM, found=found, fix=fix)
    return Pin(key, name, version, digest)
