"""The password of the store is in its file and nowhere else, whatever happens to a run.

Seen of each run: every file of the experiment and of the scratch folder, the output, and arguments and environments of
all its processes while they live.
"""

from __future__ import annotations

import base64
import json
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from lsdflow_contract.arrays import RAW
from lsdflow_contract.errors import ConfigError
from lsdflow_contract.experiment import load_experiment
from lsdflow_contract.geometry import Box, Geometry
from lsdflow_runtime.io.volumes import OutputArray

# A token of the fixture `mongod` has 16 characters; what comes after them is written differently in a URI.
TOKEN_CHARACTERS = 16
LOOPBACK, PROXY = "0100007F", "0200007F"
WRONG = "Wr0ngButSecretTo0"


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    root = tmp_path / "exp"
    grid = Geometry((10.0, 10.0, 10.0), (0.0, 0.0, 0.0), (16, 16, 16))
    raw = OutputArray(root / "results" / "prepare" / "target.zarr", RAW, grid, grid.box, (8, 8, 8))
    raw.create({"key": "raw"})
    raw.open().write(Box((0, 0, 0), grid.shape_vox), np.arange(16**3, dtype=np.uint8).reshape(grid.shape_vox))
    return root


def named_store(experiment: Path, uri_file: Path, database: str) -> str:
    """Name the store in the experiment file; the token of the password is returned."""
    store = f'engine = "mongo"\nuri_file = "{uri_file}"\ndatabase = "{database}"\nretry_s = 1\n'
    (experiment / "experiment.toml").write_text(f'[experiment]\nname = "secret"\nseed = 2\n[store]\n{store}')
    return uri_file.read_text().split("@")[0].rsplit(":", 1)[1][:TOKEN_CHARACTERS]


@pytest.fixture
def own_mongod(mongod_for_tests: ModuleType, tmp_path: Path) -> Iterator[Any]:
    """A server that a test may stop."""
    with mongod_for_tests.running_mongod(tmp_path / "mongod") as server:
        yield server


def words(verb: str, experiment: Path, runner: str, *more: str) -> list[str]:
    return [verb, "--experiment", str(experiment), "--debug", "--set", f"compute.runner={runner}", *more]


def test_the_search_finds_a_secret_however_it_is_written(watched_run: ModuleType) -> None:
    secret = "s3cretS3cretAbc9"
    for text in ("a=" + secret, '{"uri": "mongodb://u:' + secret + '%3A@h"}'):
        for n in range(3):
            written = "." * n + text
            seen = watched_run.Seen()
            seen.note("plain", written.encode())
            seen.note("base64", base64.b64encode(written.encode()))
            assert seen.holding(secret) == ["plain", "base64"]
    other = watched_run.Seen()
    other.note("other", b"s3cretS3cretAbc8")
    assert other.holding(secret) == []


@pytest.mark.parametrize("runner", ["serial", "daisy"])
def test_a_run_shows_its_password_to_nobody_and_listens_to_this_machine_alone(
    experiment: Path, mongod: Any, watched_run: ModuleType, tmp_path: Path, runner: str
) -> None:
    database = f"quiet-{runner}"
    token = named_store(experiment, mongod.uri_file(database, tmp_path), database)
    (experiment / "slow").write_text("0.1")
    seen = watched_run.watched(words("run", experiment, runner), tmp_path / "scratch")
    assert seen.code == 0, seen.all_of("output")
    watched_run.keep_files(experiment, seen)
    assert len(seen.processes) >= (3 if runner == "daisy" else 1)
    assert "PYTHONPATH" in seen.all_of("environ")
    assert seen.holding(token) == []
    assert seen.listened == ({LOOPBACK} if runner == "daisy" else set())


def test_a_refused_password_is_shown_to_nobody(
    experiment: Path,
    mongod: Any,
    mongod_for_tests: ModuleType,
    watched_run: ModuleType,
    tmp_path: Path,
) -> None:
    database = "refused"
    file = mongod.uri_file(database, tmp_path)
    token = named_store(experiment, file, database)
    mongod_for_tests.write_private(file, file.read_text().replace(token, WRONG))
    seen = watched_run.watched(words("run", experiment, "serial"), tmp_path / "scratch")
    watched_run.keep_files(experiment, seen)
    assert "Traceback" in seen.all_of("output")
    assert "PermissionDenied" in seen.all_of("output")
    assert seen.holding(token, WRONG) == []


@pytest.mark.parametrize("runner", ["serial", "daisy"])
def test_a_server_that_is_lost_takes_no_password_with_it(
    experiment: Path, own_mongod: Any, watched_run: ModuleType, tmp_path: Path, runner: str
) -> None:
    file = own_mongod.uri_file("lost", tmp_path, options="serverSelectionTimeoutMS=300")
    token = named_store(experiment, file, "lost")
    (experiment / "slow").write_text("0.2")
    with own_mongod.admin() as client:
        nodes = client["lost"]["nodes"]
        stopped: list[bool] = []

        def stop_after_a_block() -> None:
            if not stopped and nodes.find_one():
                client.close()
                own_mongod.kill()
                stopped.append(True)

        seen = watched_run.watched(words("run", experiment, runner), tmp_path / "scratch", during=stop_after_a_block)
    watched_run.keep_files(experiment, seen)
    assert stopped
    assert "StoreUnreachable" in seen.all_of("output")
    assert seen.holding(token) == []


def test_blocks_that_fail_reveal_no_password(
    experiment: Path, mongod: Any, watched_run: ModuleType, tmp_path: Path
) -> None:
    token = named_store(experiment, mongod.uri_file("failing", tmp_path), "failing")
    (experiment / "poison").touch()
    seen = watched_run.watched(words("run", experiment, "serial"), tmp_path / "scratch")
    watched_run.keep_files(experiment, seen)
    assert any("poisoned" in seen.all_of(where) for where in seen.texts)
    assert seen.holding(token) == []


def test_a_coordinator_and_its_worker_leave_no_password_on_shared_storage(
    experiment: Path, mongod: Any, watched_run: ModuleType, tmp_path: Path
) -> None:
    token = named_store(experiment, mongod.uri_file("cluster", tmp_path), "cluster")
    workers: list[Any] = []

    def start_worker() -> None:
        watched_run.keep_files(experiment / "runs", kept)
        if not workers:
            workers.append(watched_run.started(words("worker", experiment, "cluster"), tmp_path / "worker"))

    kept = watched_run.Seen()
    seen = watched_run.watched(
        words("run", experiment, "cluster"), tmp_path / "scratch", during=start_worker, LSDFLOW_HOST="127.0.0.2"
    )
    worker = watched_run.followed(workers[0], tmp_path / "worker")
    watched_run.keep_files(experiment, seen)
    assert (seen.code, worker.code) == (0, 0), worker.all_of("output")
    assert any(where.endswith("coordinator.json") for where in kept.texts)
    for traces in (seen, kept, worker):
        assert traces.holding(token) == []
    assert seen.listened == {LOOPBACK, PROXY}
    assert [where for where in kept.texts if where.endswith("/secret")] != []
    assert list(experiment.rglob("secret")) == [], "the secret is removed with its session"


@pytest.mark.parametrize("key", ["uri_file", "uri", "database"])
def test_a_uri_written_into_the_experiment_file_by_mistake_is_refused_and_not_shown(experiment: Path, key: str) -> None:
    uri = f"mongodb://lsdflow:{WRONG}@127.0.0.1:9/x"
    (experiment / "experiment.toml").write_text(f'[store]\nengine = "mongo"\n{key} = "{uri}"\n')
    with pytest.raises(ConfigError) as raised:
        load_experiment(experiment)
    assert f"store.{key}" in raised.value.message()
    # What --debug prints holds the library's error as well.
    text = "".join(traceback.format_exception(raised.value)) + json.dumps(raised.value.as_dict())
    assert "ValidationError" in text
    assert WRONG not in text
