"""Reading what mongodump and the LSD scripts left: whole documents or a clear refusal, in bounded memory."""

from __future__ import annotations

import gzip
import hashlib
import resource
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import bson
import numpy as np
import pytest

from lsdflow_contract.errors import BadData, ConfigError, MissingInput, PermissionDenied, UsageError
from lsdflow_runtime.store import mongo_dump
from lsdflow_runtime.store import mongo_import as mongo_foreign
from lsdflow_runtime.store.mongo_dump import BsonFile
from lsdflow_runtime.store.mongo_import import edge_columns, node_columns, open_foreign


def encoded(documents: list[dict[str, Any]]) -> bytes:
    return b"".join(bson.encode(document) for document in documents)


def read_all(path: Path) -> list[dict[str, Any]]:
    return [document for documents, _ in BsonFile(path).batches() for document in documents]


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces that end within documents, and within the length in front of one."""
    monkeypatch.setattr(mongo_dump, "PIECE_BYTES", 37)


@pytest.mark.parametrize("zipped", [False, True])
def test_documents_come_whole_whatever_the_size_of_a_piece(small_pieces: None, tmp_path: Path, zipped: bool) -> None:
    documents = [{"u": n, "v": 2**40 + n, "name": "x" * (n % 50)} for n in range(300)]
    path = tmp_path / "edges_mean.bson"
    path.write_bytes(gzip.compress(encoded(documents)) if zipped else encoded(documents))
    assert read_all(path) == documents
    rows = BsonFile(path)
    amounts = [amount for _, amount in rows.batches()]
    assert sum(amounts) == rows.total == path.stat().st_size
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    assert rows.provenance() == {"from": str(path), "documents": 300, "sha256": sha256}


def test_an_empty_file_is_an_empty_collection(tmp_path: Path) -> None:
    (tmp_path / "nodes.bson").write_bytes(b"")
    assert read_all(tmp_path / "nodes.bson") == []


def cut(whole: bytes) -> bytes:
    return whole[:-3]


def cut_in_a_length(whole: bytes) -> bytes:
    return whole + b"\x20\x00"


def flipped(whole: bytes) -> bytes:
    return whole[:4] + b"\x77" + whole[5:]


def a_text(_: bytes) -> bytes:
    return b"u,v,merge_score\n1,2,0.5\n"


def a_json(_: bytes) -> bytes:
    return b'{"u": 1, "v": 2}\n'


def zeros(_: bytes) -> bytes:
    return bytes(64)


def an_archive(whole: bytes) -> bytes:
    return b"\x6d\xe2\x99\x81" + whole


def cut_gzip(whole: bytes) -> bytes:
    return gzip.compress(whole)[:-9]


def damaged_gzip(whole: bytes) -> bytes:
    packed = bytearray(gzip.compress(whole))
    packed[len(packed) // 2] ^= 0xFF
    return bytes(packed)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (cut, "cut off within a document"),
        (cut_in_a_length, "cut off within a document"),
        (flipped, "damaged"),
        (a_text, "not a BSON file"),
        (a_json, "not a BSON file"),
        (zeros, "not a BSON file"),
        (an_archive, "an archive of mongodump"),
        (cut_gzip, "gzip"),
        (damaged_gzip, "gzip"),
    ],
)
def test_a_file_that_is_not_whole_bson_is_bad_data_with_its_place(
    tmp_path: Path, spoil: Callable[[bytes], bytes], message: str
) -> None:
    path = tmp_path / "nodes.bson"
    path.write_bytes(spoil(encoded([{"id": n, "center_z": 1.0} for n in range(100)])))
    with pytest.raises(BadData, match=message) as raised:
        read_all(path)
    assert str(path) in raised.value.where


def test_columns_have_the_values_of_documents_of_both_integer_sizes() -> None:
    halves = dict.fromkeys(("center_z", "center_y", "center_x"), 0.5)
    nodes = [{"id": 5, "center_z": 1, "center_y": 2.5, "center_x": 3.0}, {"id": -1, **halves}]
    columns = node_columns(bson.decode_all(encoded(nodes)), "here")
    assert columns.id.tolist() == [5, 2**64 - 1]
    assert columns.center_nm.tolist() == [[1.0, 2.5, 3.0], [0.5, 0.5, 0.5]]
    assert columns.size_vox is None
    edges = [{"u": 1, "v": 2**33, "merge_score": None}, {"u": 3, "v": -5, "merge_score": 1}]
    found = edge_columns(bson.decode_all(encoded(edges)), "here")
    assert (found.u.tolist(), found.v.tolist()) == ([1, 3], [2**33, 2**64 - 5])
    assert found.never.tolist() == [True, False]
    assert np.isnan(found.merge_score[0])
    assert found.merge_score[1] == 1.0


@pytest.mark.parametrize("value", ["1", 1.0, True, None])
def test_an_id_that_is_not_an_integer_is_refused(value: Any) -> None:
    node = {"id": value, "center_z": 0.0, "center_y": 0.0, "center_x": 0.0}
    with pytest.raises(BadData, match="id is of another type"):
        node_columns([node], "here")


def test_a_server_killed_and_restarted_between_pages_loses_no_document_and_gives_none_twice(
    mongod_for_tests: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mongo_foreign, "PAGE", 500)
    with mongod_for_tests.running_mongod(tmp_path / "server") as server:
        file = server.uri_file("old", tmp_path)
        with server.admin() as client:
            # Several types of _id, as a collection of several programs has them.
            rows = [{"u": n, "v": n + 1, "merge_score": 0.5} for n in range(4000)]
            rows += [{"_id": n, "u": n, "v": n + 1, "merge_score": 0.5} for n in range(4000, 5000)]
            rows += [{"_id": f"{n}", "u": n, "v": n + 1, "merge_score": 0.5} for n in range(5000, 6000)]
            client["old"]["edges_mean"].insert_many(rows)
            client["old"]["nodes"].insert_one({"id": 1})
        graph = open_foreign([file], "old", 60)
        found: list[int] = []
        restarts = []
        for number, (documents, _) in enumerate(graph.edges["mean"].batches()):
            found += [document["u"] for document in documents]
            if number in (2, 7):
                for thread in restarts:  # one that still starts would lose its process
                    thread.join()
                server.kill()
                restarts.append(threading.Thread(target=restart, args=(server,)))
                restarts[-1].start()
        for thread in restarts:
            thread.join()
        assert sorted(found) == list(range(6000))
        assert graph.edges["mean"].provenance()["documents"] == 6000


def restart(server: Any) -> None:
    time.sleep(0.5)
    server.start()


def test_the_database_is_that_of_the_uri_unless_another_is_named(mongod: Any, tmp_path: Path) -> None:
    database = f"named-{tmp_path.name}"[:60]
    file = mongod.uri_file(database, tmp_path)
    with mongod.admin() as client:
        client[database]["nodes"].insert_one({"id": 1})
        client[database]["edges_mean"].insert_one({"u": 1})
    assert open_foreign([file], database, 5).nodes.where.endswith(f"/{database}.nodes")
    with pytest.raises(ConfigError, match="names no database"):
        open_foreign([file], None, 5)
    text = file.read_text().replace("/?authSource", f"/{database}?authSource")
    file.write_text(text)
    assert sorted(open_foreign([file], None, 5).edges) == ["mean"]
    file.chmod(0o644)
    with pytest.raises(PermissionDenied, match="open to others"):
        open_foreign([file], database, 5)


def test_what_is_no_graph_is_refused_with_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "nodes.bson").write_bytes(b"")
    (tmp_path / "scores.bson.gz").write_bytes(b"")
    with pytest.raises(MissingInput, match="no graph there") as raised:
        open_foreign([tmp_path], None, 5)
    assert raised.value.found == "nodes, scores"
    (tmp_path / "edges_mean.bson").write_bytes(b"")
    assert sorted(open_foreign([tmp_path], None, 5).edges) == ["mean"]
    (tmp_path / "edges_mean.bson.gz").write_bytes(b"")
    with pytest.raises(UsageError, match="edges_mean is given twice"):
        open_foreign([tmp_path], None, 5)


def test_memory_is_that_of_a_batch(tmp_path: Path) -> None:
    one = bson.encode({"u": 2**40, "v": 2**41, "merge_score": 0.25, "agglomerated": True})
    path = tmp_path / "edges_mean.bson"
    with path.open("wb") as file:
        for _ in range(20):
            file.write(one * 100_000)
    next(iter(BsonFile(path).batches()))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    count = sum(len(edge_columns(documents, "here").u) for documents, _ in BsonFile(path).batches())
    assert count == 2_000_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 150_000
