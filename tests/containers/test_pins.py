"""images.py pins: an images.env that lsdflow reads; nothing is written if an image is missing."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from lsdflow_contract.experiment import GPU_STAGES, STAGES
from lsdflow_launch.images.pins import key_of, read_pins

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAM = REPOSITORY / "containers" / "images.py"
BUILT, PUSHED = "sha256:" + "a" * 64, "sha256:" + "b" * 64
# An engine with all images but $MISSING; ids as docker or podman print them.
ENGINE = r"""#!/usr/bin/env bash
if [[ -n ${MISSING:-} && ${*: -1} =~ lsdflow/($MISSING): ]]; then echo "Error: No such image: ${*: -1}" >&2; exit 1; fi
echo "$IMAGE_ID ${DIGESTS:-}"
"""


def _pins(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    engine = folder / "engine"
    engine.write_text(ENGINE)
    engine.chmod(0o755)
    env = {**os.environ, "CONTAINER_TOOL": str(engine), "IMAGE_ID": BUILT, "TORCH": "cpu", **environment}
    command = [sys.executable, str(PROGRAM), "pins", str(folder / "images.env"), *words]
    return subprocess.run(command, env=env, check=False, capture_output=True, text=True)


def _version(stage: str) -> str:
    text = (REPOSITORY / "stages" / stage / "pyproject.toml").read_text()
    return str(tomllib.loads(text)["project"]["version"])


@pytest.mark.parametrize("image_id", [BUILT, BUILT.removeprefix("sha256:")], ids=["docker", "podman"])
def test_local_images_are_pinned_by_version_and_id_as_lsdflow_reads_them(tmp_path: Path, image_id: str) -> None:
    done = _pins(tmp_path, IMAGE_ID=image_id)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (tmp_path / "images.env").read_text()
    pins = read_pins(tmp_path / "images.env")
    assert {key: str(pin) for key, pin in pins.items()} == {
        key_of(stage): f"lsdflow/{stage}:{_version(stage)}{'-cpu' if stage in GPU_STAGES else ''}@{BUILT}"
        for stage in STAGES
    }


def test_an_image_that_a_registry_has_is_pinned_by_its_name_and_digest_there(tmp_path: Path) -> None:
    _pins(tmp_path, "watershed", DIGESTS=f"images.lab.example:5000/em/watershed@{PUSHED}")
    (pin,) = read_pins(tmp_path / "images.env").values()
    assert str(pin) == f"images.lab.example:5000/em/watershed:{_version('watershed')}@{PUSHED}"


def test_podmans_own_digest_of_a_local_image_is_no_registry(tmp_path: Path) -> None:
    _pins(tmp_path, "watershed", DIGESTS=f"localhost/lsdflow/watershed@{PUSHED}")
    (pin,) = read_pins(tmp_path / "images.env").values()
    assert str(pin) == f"lsdflow/watershed:{_version('watershed')}@{PUSHED}"


def test_only_the_lines_of_the_named_stages_change_and_keep_their_place(tmp_path: Path) -> None:
    before = "# mine\nMONGO_IMAGE=mongo:7.0.28\nWATERSHED_IMAGE=old/watershed:0.0.1\nPREPARE_IMAGE=old/prepare:0.0.1\n"
    (tmp_path / "images.env").write_text(before)
    done = _pins(tmp_path, "watershed", "segment")
    assert done.returncode == 0, done.stderr
    watershed = f"WATERSHED_IMAGE=lsdflow/watershed:{_version('watershed')}@{BUILT}"
    segment = f"SEGMENT_IMAGE=lsdflow/segment:{_version('segment')}@{BUILT}\n"
    wanted = before.replace("WATERSHED_IMAGE=old/watershed:0.0.1", watershed) + segment
    assert (tmp_path / "images.env").read_text() == wanted
    assert len(read_pins(tmp_path / "images.env")) == 4


def test_all_missing_images_are_named_and_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "images.env").write_text("PREPARE_IMAGE=old/prepare:0.0.1\n")
    done = _pins(tmp_path, MISSING="watershed|segment")
    assert done.returncode == 66
    assert "make image STAGE=watershed" in done.stderr
    assert "make image STAGE=segment" in done.stderr
    assert (tmp_path / "images.env").read_text() == "PREPARE_IMAGE=old/prepare:0.0.1\n"


def test_an_unknown_stage_is_a_usage_error(tmp_path: Path) -> None:
    done = _pins(tmp_path, "watersched")
    assert done.returncode == 2
    assert "no such stage: watersched" in done.stderr
    assert not (tmp_path / "images.env").exists()
