"""images.env: every line is a pin of a known image with a fixed version, or is refused by its number."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from lsdflow_contract.errors import ConfigError, MissingInput
from lsdflow_contract.experiment import GPU_STAGES, STAGES
from lsdflow_launch.images.pins import pin_of_stage, read_pins

REPOSITORY = Path(__file__).resolve().parents[2]
DIGEST = "sha256:" + "0123456789abcdef" * 4


def _file(folder: Path, *lines: str) -> Path:
    path = folder / "images.env"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    ("value", "name", "version", "digest"),
    [
        ("lsdflow/watershed:0.1.0", "lsdflow/watershed", "0.1.0", ""),
        (f"lsdflow/watershed:0.1.0@{DIGEST}", "lsdflow/watershed", "0.1.0", DIGEST),
        ("images.lab.example:5000/em/watershed:1.2-rc1", "images.lab.example:5000/em/watershed", "1.2-rc1", ""),
    ],
)
def test_a_pin_is_registry_name_version_and_digest(
    tmp_path: Path, value: str, name: str, version: str, digest: str
) -> None:
    pins = read_pins(_file(tmp_path, "# a comment", "", f"WATERSHED_IMAGE={value}"))
    pin = pins["WATERSHED_IMAGE"]
    assert (pin.name, pin.version, pin.digest) == (name, version, digest)
    assert str(pin) == value


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("WATERSHED_IMAGE=lsdflow/watershed:latest", "latest"),
        ("WATERSHED_IMAGE=lsdflow/watershed", "no version"),
        (f"WATERSHED_IMAGE=lsdflow/watershed@{DIGEST}", "no version"),
        ("WATERSHED_IMAGE=images.lab.example:5000/watershed", "no version"),
        ("WATERSHED_IMAGE=lsdflow/watershed:0.1.0@sha256:abc", "not an image"),
        ('WATERSHED_IMAGE="lsdflow/watershed:0.1.0"', "not an image"),
        ("WATERSHED_IMAGE=lsdflow/watershed:0.1.0 --privileged", "not an image"),
        ("WATERSHED_IMAGE=$(id):1", "not an image"),
        ("WATERSHED_IMAGE=--privileged:1", "not an image"),
        ("WATERSHED_IMAGE=", "not an image"),
        ("WATERSHED_IMGE=lsdflow/watershed:0.1.0", "did you mean 'WATERSHED_IMAGE'"),
        ("export WATERSHED_IMAGE=lsdflow/watershed:0.1.0", "did you mean 'WATERSHED_IMAGE'"),
        ("lsdflow/watershed:0.1.0", "not a pin"),
    ],
)
def test_a_line_that_is_no_pin_is_refused_with_its_number(tmp_path: Path, line: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_pins(_file(tmp_path, "# pins", line))
    assert expected in str(caught.value)
    assert "images.env:2" in str(caught.value)


def test_a_key_may_occur_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pinned twice"):
        read_pins(_file(tmp_path, "PREPARE_IMAGE=a/prepare:1", "PREPARE_IMAGE=a/prepare:2"))


def test_a_stage_without_pin_names_the_missing_key(tmp_path: Path) -> None:
    path = _file(tmp_path, "PREPARE_IMAGE=a/prepare:1")
    with pytest.raises(ConfigError, match="TRAIN_LSD_IMAGE"):
        pin_of_stage(read_pins(path), "train-lsd", path)


def test_no_file_of_pins_is_a_missing_input(tmp_path: Path) -> None:
    with pytest.raises(MissingInput, match="no pinned images"):
        read_pins(tmp_path / "images.env")


def test_the_example_of_compose_pins_the_versions_of_this_repository() -> None:
    path = REPOSITORY / "compose" / "experiments" / "demo" / "images.env"
    pins = read_pins(path)
    for stage in STAGES:
        project = tomllib.loads((REPOSITORY / "stages" / stage / "pyproject.toml").read_text())["project"]
        variant = "-cpu" if stage in GPU_STAGES else ""
        assert str(pin_of_stage(pins, stage, path)) == f"lsdflow/{stage}:{project['version']}{variant}"
    assert "MONGO_IMAGE" in pins
