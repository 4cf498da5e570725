"""What only the MongoDB engine has to do: the field's format, faults of the server, secrets, others' databases."""

from __future__ import annotations

import logging
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote_plus

import numpy as np
import pytest

from lsdflow_contract.errors import (
    BadData,
    ConfigError,
    InternalError,
    MissingInput,
    OutputConflict,
    PermissionDenied,
    StoreUnreachable,
)
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_contract.graph import Overlaps, RagEdges, RagNodes
from lsdflow_runtime.store.mongo_connection import MongoConnection, mongo_address
from lsdflow_runtime.store.stores import open_store, problems_of_store

MakeMongo = Callable[..., Experiment]
SCORES = np.array([0.1, np.nan], np.float32)
EDGES = RagEdges(np.array([1, 2], np.uint64), np.array([2, 2**63 + 7], np.uint64), SCORES)
NODES = RagNodes(np.array([1, 2, 3], np.uint64), np.arange(9.0).reshape(3, 3), np.array([5, 6, 7], np.uint64))


def experiment_at(root: Path, uri_file: Path | str | None, *, database: str = "", retry_s: float = 20) -> Experiment:
    root.mkdir(exist_ok=True)
    lines = ["[experiment]", f'name = "{root.name}"', "[store]", 'engine = "mongo"', f"retry_s = {retry_s}"]
    lines += [f'uri_file = "{uri_file}"'] if uri_file is not None else []
    lines += [f'database = "{database}"'] if database else []
    (root / "experiment.toml").write_text("\n".join(lines))
    return load_experiment(root)


@pytest.fixture
def make_mongo(mongod: Any, tmp_path: Path) -> MakeMongo:
    def make(name: str = "a", **more: Any) -> Experiment:
        database = f"{name}-{tmp_path.name}"[:60]
        return experiment_at(tmp_path / name, mongod.uri_file(database, tmp_path), database=database, **more)

    return make


@pytest.fixture
def own_mongod(mongod_for_tests: ModuleType, tmp_path: Path) -> Iterator[Any]:
    """A server that a test may kill."""
    with mongod_for_tests.running_mongod(tmp_path / "mongod") as server:
        yield server


def documents(mongod: Any, experiment: Experiment, collection: str) -> list[dict[str, Any]]:
    with mongod.admin() as client:
        return list(client[experiment.store.database][collection].find().sort("_id"))


def password_of(experiment: Experiment) -> list[str]:
    """The secret as it is written in the URI, and as it is."""
    file = experiment.resolve(experiment.store.uri_file or "")
    quoted = file.read_text().split("@")[0].rsplit(":", 1)[1]
    return [quoted, unquote_plus(quoted)]


@pytest.mark.proves("DBS-01", "DBS-04")
def test_nodes_and_edges_have_the_collections_fields_and_indexes_of_the_field(
    make_mongo: MakeMongo, mongod: Any
) -> None:
    experiment = make_mongo()
    rag = open_store(experiment).rag
    rag.write_nodes("k", 4, NODES)
    rag.write_edges("k", "hist_quant_75", 4, EDGES)
    node = {n: v for n, v in documents(mongod, experiment, "nodes")[1].items() if n != "_id"}
    wanted = {"id": 2, "center_z": 3.0, "center_y": 4.0, "center_x": 5.0, "size": 6, "key": "k", "block": 4}
    assert node == wanted
    edges = [{n: v for n, v in d.items() if n != "_id"} for d in documents(mongod, experiment, "edges_hist_quant_75")]
    common = {"agglomerated": True, "key": "k", "block": 4}
    signed = int(np.array(2**63 + 7, np.uint64).view(np.int64))
    assert edges == [
        {"u": 1, "v": 2, "merge_score": float(np.float32(0.1)), **common},
        {"u": 2, "v": signed, "merge_score": None, **common},
    ]
    assert documents(mongod, experiment, "meta")[0]["directed"] is False
    with mongod.admin() as client:
        found = client[experiment.store.database]
        assert {"position", "id", "block"} <= set(found["nodes"].index_information())
        assert {"incident", "block"} <= set(found["edges_hist_quant_75"].index_information())


def test_a_done_block_is_a_document_with_the_fields_of_the_field(
    make_experiment: Callable[..., Experiment], make_mongo: MakeMongo, mongod: Any
) -> None:
    from lsdflow_toy.stage import block_task

    settings = make_mongo().store
    store = [f"store.{n}={v!r}" for n, v in settings.model_dump().items() if v is not None]
    experiment = make_experiment("target", *store)
    task = block_task(experiment)
    record = {"seconds": 2.0, "finished": 1000.0, "checksums": {"edges_mean": "x", "edges_hist_quant_75": "y"}}
    open_store(experiment).blocks("agglomerate", "k", task.plan).mark_done(3, record)
    names = ("blocks_agglomerated", "blocks_agglomerated_mean", "blocks_agglomerated_hist_quant_75")
    full, *copies = (documents(mongod, experiment, name)[0] for name in names)
    assert full["block_id"] == 3
    assert full["write_roi"] == [[20, 44, 44], [80, 44, 16.5]]
    assert full["read_roi"] == [[10, 38.5, 38.5], [100, 55, 27.5]]
    assert (full["start"], full["duration"]) == (998.0, 2.0)
    assert full.pop("record") == record
    assert copies == [full, full]


def test_writing_the_same_rows_again_leaves_the_same_documents(make_mongo: MakeMongo, mongod: Any) -> None:
    experiment = make_mongo()
    rag = open_store(experiment).rag
    rag.write_nodes("k", 4, NODES)
    before = documents(mongod, experiment, "nodes")
    rag.write_nodes("k", 4, NODES)
    assert documents(mongod, experiment, "nodes") == before


@pytest.mark.parametrize("damage", ["lost", "changed", "added"])
def test_lost_changed_or_added_rows_are_bad_data(make_mongo: MakeMongo, mongod: Any, damage: str) -> None:
    experiment = make_mongo()
    rag = open_store(experiment).rag
    rag.write_edges("k", "mean", 0, EDGES)
    with mongod.admin() as client:
        rows = client[experiment.store.database]["edges_mean"]
        row = rows.find_one({"u": 1})
        if damage == "lost":
            rows.delete_one({"u": 1})
        elif damage == "changed":
            rows.update_one({"u": 1}, {"$set": {"merge_score": 0.2}})
        else:
            rows.insert_one({**row, "_id": row["_id"][:-1] + b"\x07"})
    for read in (lambda: rag.read_edges("k", "mean", 0), lambda: list(rag.iter_edges("k", "mean"))):
        with pytest.raises(BadData, match="lost or damaged"):
            read()


def _write_many(path: Path, results: Any) -> None:
    rag = open_store(load_experiment(path)).rag
    rng = np.random.default_rng(0)
    for block in range(60):
        ids = rng.permutation(1200).astype(np.uint64) + np.uint64(block * 1200)
        rag.write_nodes("k", block, RagNodes(ids, np.zeros((1200, 3)), ids))
        results.put((block, ids))
    results.put(None)


@pytest.mark.proves("DBS-06")
def test_a_server_killed_and_restarted_in_the_middle_of_writing_loses_nothing_and_stops_nothing(
    own_mongod: Any, tmp_path: Path
) -> None:
    experiment = experiment_at(tmp_path / "e", own_mongod.uri_file("graph", tmp_path), database="graph", retry_s=60)
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    writer = context.Process(target=_write_many, args=(experiment.path, results))
    writer.start()
    written = [results.get(timeout=600) for _ in range(10)]
    for pause in (0.0, 1.0):
        own_mongod.kill()
        time.sleep(pause)
        own_mongod.start()
        written += [results.get(timeout=600) for _ in range(10)]
    while (more := results.get(timeout=600)) is not None:
        written.append(more)
    writer.join(30)
    assert writer.exitcode == 0
    rag = open_store(experiment).rag
    for block, ids in written:
        assert rag.read_nodes("k", block).id.tolist() == ids.tolist()
    assert rag.count_nodes("k") == 60 * 1200


def test_acknowledged_rows_outlive_a_kill_right_after_the_acknowledgement(own_mongod: Any, tmp_path: Path) -> None:
    experiment = experiment_at(tmp_path / "e", own_mongod.uri_file("graph", tmp_path), database="graph")
    store = open_store(experiment)
    for attempt in range(3):
        store.rag.write_nodes("k", attempt, NODES)
        store.blocks("watershed", "k").mark_done(attempt, {"checksums": {}})
        own_mongod.kill()
        own_mongod.start()
        assert store.blocks("watershed", "k").done() == set(range(attempt + 1))
        assert len(store.rag.read_nodes("k", attempt)) == 3


def test_a_server_that_stays_away_is_exit_69_with_its_host_and_the_next_call_does_not_wait_again(
    own_mongod: Any, tmp_path: Path
) -> None:
    file = own_mongod.uri_file("graph", tmp_path, options="serverSelectionTimeoutMS=300")
    experiment = experiment_at(tmp_path / "e", file, database="graph", retry_s=2)
    store = open_store(experiment)
    store.rag.write_nodes("k", 0, NODES)
    own_mongod.kill()
    started = time.monotonic()
    with pytest.raises(StoreUnreachable) as raised:
        store.rag.write_nodes("k", 1, NODES)
    assert 1.0 < time.monotonic() - started < 10
    assert raised.value.exit_code == 69
    assert f"127.0.0.1:{own_mongod.port}" in raised.value.message()
    started = time.monotonic()
    with pytest.raises(StoreUnreachable):
        store.blocks("watershed", "k").mark_failed(1, {})
    assert time.monotonic() - started < 1.5
    own_mongod.start()
    store.rag.write_nodes("k", 1, NODES)
    assert store.rag.count_nodes("k") == 6


def test_a_request_that_a_live_server_refuses_is_not_called_unreachable(make_mongo: MakeMongo) -> None:
    connection = MongoConnection(mongo_address(make_mongo()), 5)
    with pytest.raises(InternalError, match="refuses a request") as raised:
        connection.call(lambda db: db.command("noSuchCommand"))
    assert "noSuchCommand" in str(raised.value.found)


def test_a_server_that_takes_the_connection_and_says_nothing_is_exit_69(own_mongod: Any, tmp_path: Path) -> None:
    file = own_mongod.uri_file("graph", tmp_path, options="serverSelectionTimeoutMS=500&socketTimeoutMS=700")
    store = open_store(experiment_at(tmp_path / "e", file, database="graph", retry_s=1))
    store.rag.write_nodes("k", 0, NODES)
    own_mongod.freeze()
    with pytest.raises(StoreUnreachable):
        store.rag.write_nodes("k", 1, NODES)


def test_validate_says_unreachable_within_seconds(tmp_path: Path, mongod_for_tests: ModuleType) -> None:
    file = tmp_path / "uri"
    mongod_for_tests.write_private(file, f"mongodb://u:secret-word@127.0.0.1:{mongod_for_tests.free_port()}/")
    started = time.monotonic()
    problems = problems_of_store(experiment_at(tmp_path / "e", file, retry_s=120))
    assert time.monotonic() - started < 6
    assert [problem.exit_code for problem in problems] == [69]
    assert "secret-word" not in problems[0].message()


def test_a_good_store_has_no_problems_and_validate_writes_nothing(make_mongo: MakeMongo, mongod: Any) -> None:
    experiment = make_mongo()
    assert problems_of_store(experiment) == []
    with mongod.admin() as client:
        assert client[experiment.store.database].list_collection_names() == []
    assert not experiment.layout.store.exists()


def test_a_wrong_password_is_permission_denied_without_showing_it(
    make_mongo: MakeMongo, mongod_for_tests: ModuleType
) -> None:
    experiment = make_mongo()
    file = experiment.resolve(experiment.store.uri_file or "")
    right = password_of(experiment)[0]
    mongod_for_tests.write_private(file, file.read_text().replace(right, "not-the-password"))
    (problem,) = problems_of_store(experiment)
    with pytest.raises(PermissionDenied) as raised:
        open_store(experiment).rag.write_nodes("k", 0, NODES)
    for error in (problem, raised.value):
        assert error.exit_code == 77
        assert "not-the-password" not in "".join(traceback.format_exception(error))


def test_a_user_who_may_only_read_is_a_problem(mongod: Any, tmp_path: Path) -> None:
    database = f"readonly-{tmp_path.name}"[:60]
    file = mongod.uri_file(database, tmp_path, role="read")
    (problem,) = problems_of_store(experiment_at(tmp_path / "e", file, database=database))
    assert isinstance(problem, PermissionDenied)
    assert "insert" in problem.message()


def test_a_user_of_another_database_is_refused(make_mongo: MakeMongo) -> None:
    experiment = make_mongo()
    file = experiment.resolve(experiment.store.uri_file or "")
    (problem,) = problems_of_store(experiment_at(experiment.layout.root, file, database="another"))
    assert isinstance(problem, PermissionDenied)


@pytest.mark.parametrize(("mode", "refused"), [(0o600, False), (0o400, False), (0o640, True), (0o604, True)])
def test_a_secret_file_open_to_others_is_refused_with_the_command_that_closes_it(
    make_mongo: MakeMongo, mode: int, refused: bool
) -> None:
    experiment = make_mongo()
    file = experiment.resolve(experiment.store.uri_file or "")
    file.chmod(mode)
    problems = problems_of_store(experiment)
    assert [type(problem) for problem in problems] == ([PermissionDenied] if refused else [])
    if refused:
        assert f"chmod 600 {file}" in problems[0].message()


def test_the_file_can_be_named_by_the_environment(make_mongo: MakeMongo, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = make_mongo()
    file = experiment.resolve(experiment.store.uri_file or "")
    bare = experiment_at(experiment.layout.root, None, database=experiment.store.database or "")
    monkeypatch.delenv("MONGO_URI_FILE", raising=False)
    assert [type(problem) for problem in problems_of_store(bare)] == [ConfigError]
    monkeypatch.setenv("MONGO_URI_FILE", str(file))
    assert problems_of_store(bare) == []
    monkeypatch.setenv("MONGO_URI_FILE", str(file) + ".absent")
    assert [type(problem) for problem in problems_of_store(bare)] == [MissingInput]


@pytest.mark.parametrize(
    "uri",
    [
        "mongodb://user:pass/topsy9word@host:27017/x",
        "mongodb://user:pa:topsy9word@host",
        "mongodb://user:topsy9word",
        "mongodb://user:topsy9word@host:port",
        "mongodb://user:topsy9word@host/?nonsense=1",
        "topsy9word",
        "mongodb://user:topsy9word@host/?tls=true&tlsCAFile=absent.pem",
        "mongodb://a:topsy9word@h1\nmongodb://a:topsy9word@h2",
        "",
    ],
)
def test_a_wrong_uri_is_a_configuration_error_that_shows_nothing_of_it(
    tmp_path: Path, mongod_for_tests: ModuleType, uri: str
) -> None:
    file = tmp_path / "uri"
    mongod_for_tests.write_private(file, uri)
    (problem,) = problems_of_store(experiment_at(tmp_path / "e", file, retry_s=0))
    assert problem.exit_code in (66, 78)
    assert str(file) in problem.message()
    texts = "".join(traceback.format_exception(problem)) + repr(problem) + str(problem.as_dict())
    assert "topsy9" not in texts


def test_no_secret_is_in_any_file_log_line_or_repr_of_a_run(
    make_experiment: Callable[..., Experiment], make_mongo: MakeMongo, caplog: pytest.LogCaptureFixture
) -> None:
    from lsdflow_toy.stage import block_task, run

    settings = make_mongo()
    store = [f"store.{n}={v!r}" for n, v in settings.store.model_dump().items() if v is not None]
    experiment = make_experiment("target", *store, "compute.runner=serial")
    with caplog.at_level(logging.DEBUG):
        run(experiment)
    quoted, plain = password_of(experiment)
    opened = open_store(experiment)
    texts = [caplog.text, repr(block_task(experiment)), repr(opened), repr(mongo_address(experiment)), str(opened.rag)]
    files = [p for p in experiment.layout.root.rglob("*") if p.is_file()]
    assert len(files) > 10
    texts += [p.read_bytes().decode(errors="replace") for p in files]
    texts += [Path("/proc/self/cmdline").read_text(), str(dict(os.environ))]
    for text in texts:
        assert quoted not in text
        assert plain not in text


def test_a_server_without_passwords_works_and_is_warned_of(
    mongod_for_tests: ModuleType, mongod: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with mongod_for_tests.running_mongod(tmp_path / "open", password=False) as server:
        experiment = experiment_at(tmp_path / "e", server.uri_file("open", tmp_path), database="open")
        assert problems_of_store(experiment) == []
        assert "without a password" in caplog.text
        caplog.clear()
        open_store(experiment).begin("toy", "k")
        assert "without a password" in caplog.text
    caplog.clear()
    closed = experiment_at(tmp_path / "c", mongod.uri_file("closed", tmp_path), database="closed")
    assert problems_of_store(closed) == []
    assert caplog.text == ""


def test_a_database_of_another_experiment_is_refused(make_mongo: MakeMongo, tmp_path: Path) -> None:
    first = make_mongo()
    open_store(first).begin("watershed", "k")
    open_store(first).begin("watershed", "k")
    file = first.resolve(first.store.uri_file or "")
    second = experiment_at(tmp_path / "second", file, database=first.store.database or "")
    assert [type(problem) for problem in problems_of_store(second)] == [OutputConflict]
    with pytest.raises(OutputConflict, match="another experiment"):
        open_store(second).begin("watershed", "k")
    assert problems_of_store(first) == []


def test_a_graph_that_old_scripts_wrote_is_never_written_into(make_mongo: MakeMongo, mongod: Any) -> None:
    experiment = make_mongo()
    with mongod.admin() as client:
        client[experiment.store.database]["nodes"].insert_one({"id": 1, "center_z": 0.0})
    with pytest.raises(OutputConflict):
        open_store(experiment).rag.write_nodes("k", 0, NODES)
    assert len(documents(mongod, experiment, "nodes")) == 1


def test_replacing_leaves_the_rows_of_one_work_only_and_no_mark_without_its_rows(
    make_mongo: MakeMongo, mongod: Any
) -> None:
    experiment = make_mongo()
    store = open_store(experiment)
    for stage, key in (("watershed", "old"), ("watershed", "first"), ("watershed", "new"), ("agglomerate", "other")):
        store.begin(stage, key)
        store.rag.write_nodes(key, 0, NODES)
        store.blocks(stage, key).mark_done(0, {"checksums": {}})
    store.begin("predict", "no-rows")
    store.drop_others("watershed", {"first", "new"})  # two passes of one run
    assert {d["key"] for d in documents(mongod, experiment, "nodes")} == {"first", "new", "other"}
    assert store.blocks("watershed", "old").done() == set()
    assert store.blocks("watershed", "new").done() == {0}
    assert store.keys("watershed") == ["first", "new"]
    assert store.keys("predict") == ["no-rows"]


def test_passes_of_evaluate_are_kept_side_by_side(make_mongo: MakeMongo) -> None:
    """The counting, the look-up of skeletons and the search for places belong together: none takes the others' rows."""
    store = open_store(make_mongo())
    for key in ("counting", "places"):
        store.begin("evaluate", key)
        store.rag.write_overlaps(key, "roi", 0, Overlaps(*(np.array([1], np.uint64) for _ in range(3))))
        store.blocks("evaluate", key).mark_done(0, {"checksums": {}})
        store.drop_others("evaluate", {key})
    assert store.keys("evaluate") == ["counting", "places"]
    for key in ("counting", "places"):
        assert store.blocks("evaluate", key).done() == {0}
        assert len(store.rag.read_overlaps(key, "roi", 0)) == 1
