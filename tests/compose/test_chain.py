"""The chain by compose and by `run --backend container`: the bits of a local run, and nobody in without a password."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from lsdflow_contract.experiment import STAGES
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import read_manifest
from lsdflow_contract.testing import made
from lsdflow_runtime.io.volumes import open_volume

from .conftest import Composed, Finished, call, lsdflow

Copied = Callable[..., Path]
RUN = tuple(stage for stage in STAGES if stage != "train-lsd")
# Prints the error codes of reading the graph's database: without a name, and with the user's name and no right word.
KNOCK = """
from pathlib import Path
from pymongo import MongoClient
from pymongo.errors import OperationFailure
from pymongo.uri_parser import parse_uri
uri = parse_uri(Path("/run/secrets/mongo_uri").read_text().strip())
name = uri["database"]
for who in ({}, {"username": uri["username"], "password": "guess", "authSource": name}):
    try:
        print(MongoClient("127.0.0.1", **who)[name].list_collection_names())
    except OperationFailure as error:
        print(error.code)
"""


def _assert_same_bits(folder: Path, reference: Path) -> None:
    for stage in RUN:
        own, expected = (read_manifest(ExperimentLayout(root), stage).identity for root in (folder, reference))
        assert own == expected, stage
    for stage, name in (("watershed", "fragments"), ("segment", "segmentation")):
        containers = (made(ExperimentLayout(root), stage) for root in (folder, reference))
        own, expected = (open_volume(container, f"volumes/{name}") for container in containers)
        assert np.array_equal(own.read(own.box), expected.read(expected.box)), name


def test_a_chain_by_compose_with_mongo_gives_the_bits_of_a_local_run(chain: Composed, reference: Path) -> None:
    assert chain.exit_codes() == dict.fromkeys((*STAGES, "mongo-user", "end"), 0)
    _assert_same_bits(chain.folder, reference)
    assert (chain.folder / "report" / "index.html").stat().st_size > 0
    store = chain.folder / "store"
    assert {path.name for path in store.iterdir()} == {"owner.json", "evaluate", "blocks"}
    assert [path.name for path in (store / "blocks").iterdir()] == ["prepare"], "the others are in the database"


def test_nobody_gets_into_the_database_without_its_password(chain: Composed) -> None:
    knock = ("--entrypoint", "/opt/lsdflow/bin/python", "mongo-user", "-c", KNOCK)
    done = chain.docker("run", "--rm", "--no-deps", "--no-TTY", *knock)
    unauthorized, authentication_failed = "13", "18"
    assert done.stdout.split() == [unauthorized, authentication_failed], done.stderr


def test_passwords_are_in_files_alone(chain: Composed) -> None:
    secrets = chain.folder / "secrets"
    words = [(secrets / "mongo_uri").read_text().split(":")[2].split("@")[0]]
    words.append((secrets / "mongo_admin_password").read_text().strip())
    containers = chain.docker("ps", "--all", "--quiet").stdout.split()
    output = call("docker", "inspect", *containers).stdout + chain.docker("logs").stdout
    for path in chain.folder.rglob("*"):
        if path.is_file() and path.parent != secrets:
            output += path.read_bytes().decode(errors="replace")
    assert len(output) > 10_000
    assert not [word for word in words if word in output]
    assert {oct(path.stat().st_mode & 0o777) for path in secrets.iterdir()} == {"0o600"}


def test_a_second_up_does_nothing_again_and_fails_when_the_last_stage_does(chain: Composed) -> None:
    chunks = list((chain.folder / "results").rglob("c/*/*/*"))
    before = {path: path.stat().st_mtime_ns for path in chunks}
    assert before
    (chain.folder / "report").rename(chain.folder / "kept")
    (chain.folder / "report").touch()
    done = chain.up()
    assert done.returncode != 0
    assert "exit 74" in done.stderr
    codes = chain.exit_codes()
    codes.pop("end", None)  # the container of the first `up` may still be there; this one did not start it
    assert codes == {**dict.fromkeys((*STAGES, "mongo-user"), 0), "evaluate": 74}
    assert {path: path.stat().st_mtime_ns for path in chunks} == before


def test_a_stage_that_fails_stops_the_chain_with_its_code(copied: Copied) -> None:
    folder = copied("fails")
    (folder / "input" / "volume.hdf").rename(folder / "input" / "elsewhere.hdf")
    assert lsdflow("compose-env", folder).returncode == 0
    composed = Composed(folder)
    try:
        done = composed.up()
        assert done.returncode != 0
        assert "exit 66" in done.stderr
        assert composed.exit_codes() == {"prepare": 66}
    finally:
        composed.docker("down", "--volumes")


def test_run_on_container_gives_the_bits_of_a_local_run(copied: Copied, reference: Path) -> None:
    folder = copied("container")
    done = lsdflow("run", folder, "--backend", "container", "--engine", "docker", "--set", "compute.runner=serial")
    assert done.returncode == 0, done.stderr
    _assert_same_bits(folder, reference)
    image = call("docker", "image", "inspect", "--format", "{{.Id}}", _pin(folder, "watershed")).stdout.strip()
    assert json.loads((folder / "manifests" / "watershed.json").read_text())["writer"]["image_digest"] == image


@pytest.fixture
def impostor() -> Iterator[str]:
    """An image of segment under a name of watershed."""
    name = "lsdflow/watershed:0.0.0-impostor"
    segment = call("docker", "images", "--quiet", "lsdflow/segment").stdout.split()[0]
    assert call("docker", "tag", segment, name).returncode == 0
    yield name
    call("docker", "rmi", name)


def _both_ways(folder: Path) -> list[Finished]:
    return [lsdflow("compose-env", folder), lsdflow("run", folder, "--backend", "container", "--engine", "docker")]


def _pin(folder: Path, stage: str) -> str:
    lines = (folder / "images.env").read_text().splitlines()
    return next(line.partition("=")[2] for line in lines if line.startswith(f"{stage.upper()}_IMAGE="))


def _repin(folder: Path, old: str, new: str) -> None:
    path = folder / "images.env"
    path.write_text(path.read_text().replace(old, new))


def test_an_image_that_is_not_what_its_pin_says_is_refused_before_anything_runs(copied: Copied, impostor: str) -> None:
    folder = copied("impostor")
    _repin(folder, _pin(folder, "watershed"), impostor)
    for done in _both_ways(folder):
        assert done.returncode == 76, done.stderr
        assert "stage segment" in done.stderr
    assert not (folder / "manifests").exists()


def test_a_digest_that_the_image_does_not_have_is_refused(copied: Copied) -> None:
    folder = copied("digest")
    _repin(folder, pin := _pin(folder, "watershed"), f"{pin}@sha256:{'cd' * 32}")
    for done in _both_ways(folder):
        assert done.returncode == 76, done.stderr
        assert "cd" * 32 in done.stderr
    assert not (folder / "manifests").exists()


def test_a_missing_pin_is_refused(copied: Copied) -> None:
    folder = copied("unpinned")
    _repin(folder, "WATERSHED_IMAGE=", "# ")
    for done in _both_ways(folder):
        assert done.returncode == 78, done.stderr
        assert "WATERSHED_IMAGE" in done.stderr
    assert not (folder / "manifests").exists()
