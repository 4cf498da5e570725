"""What every store must do, whatever its engine: the same tests for files and for a real MongoDB server."""

from __future__ import annotations

import itertools
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lsdflow_contract.errors import BadData, MissingInput
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_contract.graph import FACES, Overlaps, RagEdges, RagFaces, RagNodes
from lsdflow_runtime.store.rag_store import checksum_of_edges, checksum_of_nodes
from lsdflow_runtime.store.stores import Store, open_store

_NUMBERS = itertools.count()
MakeStore = Callable[[], tuple[Experiment, Store]]


@pytest.fixture(params=["files", "mongo"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make_store(engine: str, tmp_path: Path, request: pytest.FixtureRequest) -> MakeStore:
    def make() -> tuple[Experiment, Store]:
        name = f"store-{next(_NUMBERS)}-{tmp_path.name[-20:]}"
        root = tmp_path / name
        root.mkdir()
        table = f'[experiment]\nname = "{name}"\n[store]\nengine = "{engine}"\nretry_s = 20\n'
        if engine == "mongo":
            table += f'uri_file = "{request.getfixturevalue("mongod").uri_file(name, root).name}"\n'
        (root / "experiment.toml").write_text(table)
        experiment = load_experiment(root)
        return experiment, open_store(experiment)

    return make


@pytest.fixture
def store(make_store: MakeStore) -> Store:
    return make_store()[1]


def nodes_of(*ids: int, seed: int = 0) -> RagNodes:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 2**40, len(ids)).astype(np.uint64)
    return RagNodes(np.array(ids, np.uint64), rng.uniform(-1e6, 1e6, (len(ids), 3)), sizes)


def edges_of(*rows: tuple[int, int, float]) -> RagEdges:
    u, v, score = zip(*rows, strict=True)
    return RagEdges(np.array(u, np.uint64), np.array(v, np.uint64), np.array(score, np.float32))


def assert_same_nodes(found: RagNodes, wanted: RagNodes) -> None:
    assert found.id.dtype == np.uint64
    assert found.size_vox.dtype == np.uint64
    assert found.id.tolist() == wanted.id.tolist()
    assert np.array_equal(found.center_nm, wanted.center_nm)
    assert found.size_vox.tolist() == wanted.size_vox.tolist()


def assert_same_edges(found: RagEdges, wanted: RagEdges) -> None:
    assert found.merge_score.dtype == np.float32
    assert (found.u.tolist(), found.v.tolist()) == (wanted.u.tolist(), wanted.v.tolist())
    assert np.array_equal(found.merge_score, wanted.merge_score, equal_nan=True)


def test_nodes_come_back_as_written_block_by_block_in_ascending_number(store: Store) -> None:
    written = {block: nodes_of(*range(base, base + 5), seed=block) for block, base in ((10, 50), (2, 900), (9, 7))}
    for block, nodes in written.items():
        store.rag.write_nodes("k", block, nodes)
    for found, block in zip(store.rag.iter_nodes("k"), (2, 9, 10), strict=True):
        assert_same_nodes(found, written[block])
        assert_same_nodes(store.rag.read_nodes("k", block), written[block])
    assert store.rag.count_nodes("k") == 15


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_block_that_must_have_rows_and_has_none_is_bad_data_naming_it(store: Store, lost: int) -> None:
    for block in range(3):
        if block != lost:
            store.rag.write_nodes("k", block, nodes_of(block + 1))
            store.rag.write_edges("k", "mean", block, edges_of((1, 2, 0.5)))
    assert len(list(store.rag.iter_nodes("k"))) == 2
    for rows in (store.rag.iter_nodes("k", range(3)), store.rag.iter_edges("k", "mean", range(3))):
        with pytest.raises(BadData, match=f"block {lost}"):
            list(rows)
    there = [block for block in range(3) if block != lost]
    for found, block in zip(store.rag.iter_nodes("k", there), there, strict=True):
        assert found.id.tolist() == nodes_of(block + 1).id.tolist()
    assert len(list(store.rag.iter_nodes("k", there[:1]))) == 1
    store.rag.write_nodes("k", lost, RagNodes.empty())
    assert sum(map(len, store.rag.iter_nodes("k", range(3)))) == 2


def test_rows_of_a_block_keep_the_order_they_were_written_in(store: Store) -> None:
    edges = edges_of((9, 10, 0.5), (1, 7, 0.25), (9, 10, 0.125), (2, 3, 0.0))
    store.rag.write_edges("k", "mean", 0, edges)
    assert_same_edges(store.rag.read_edges("k", "mean", 0), edges)


@pytest.mark.parametrize("second", [3, 40, 0])
def test_a_second_writing_of_a_block_replaces_all_its_rows(store: Store, second: int) -> None:
    store.rag.write_nodes("k", 1, nodes_of(*range(1, 13)))
    store.rag.write_nodes("k", 2, nodes_of(77))
    rows = nodes_of(*range(100, 100 + second), seed=1)
    for _ in range(2):
        store.rag.write_nodes("k", 1, rows)
    assert_same_nodes(store.rag.read_nodes("k", 1), rows)
    assert [len(part) for part in store.rag.iter_nodes("k")] == [second, 1]
    assert store.rag.count_nodes("k") == second + 1


def test_scores_survive_bit_for_bit_and_null_stays_null(store: Store) -> None:
    scores = np.random.default_rng(0).random(2000, np.float32)
    scores[[3, 1999]] = np.nan
    scores[:3] = [0.0, 1.0, np.nextafter(np.float32(0), np.float32(1))]
    edges = RagEdges(np.arange(2000, dtype=np.uint64), np.arange(1, 2001, dtype=np.uint64), scores)
    store.rag.write_edges("k", "hist_quant_75", 0, edges)
    found = store.rag.read_edges("k", "hist_quant_75", 0)
    assert np.array_equal(found.merge_score.view(np.uint32)[4:1999], scores.view(np.uint32)[4:1999])
    assert_same_edges(found, edges)
    assert store.rag.count_edges("k", "hist_quant_75") == 2000


def faces_of(*rows: tuple[int, int, int, int]) -> RagFaces:
    u, v, affinity, count = zip(*rows, strict=True)
    return RagFaces.of(*(np.array(c, np.uint64) for c in (u, v)), np.array(affinity, np.uint8), np.array(count))


def test_faces_come_back_as_written_and_are_replaced_as_a_whole(store: Store) -> None:
    rows = ((1, 2, 0, 7), (1, 2, 255, 2**40), (2, 2**64 - 3, 9, 1), (2**63 + 5, 2**64 - 3, 0, 3))
    store.rag.write_edges("k", FACES, 3, faces_of(*((n, n + 1, 1, 1) for n in range(9))))
    store.rag.write_edges("k", FACES, 3, faces_of(*rows))
    store.rag.write_edges("k", FACES, 4, RagFaces.empty())
    store.rag.write_edges("k", "mean", 3, edges_of((1, 2, 0.5)))
    found = store.rag.read_edges("k", FACES, 3)
    assert isinstance(found, RagFaces)
    assert (found.affinity.dtype, found.count.dtype) == (np.uint8, np.uint64)
    columns = (found.u, found.v, found.affinity, found.count)
    assert list(zip(*(c.tolist() for c in columns), strict=True)) == list(rows)
    assert np.isnan(found.merge_score).all()
    assert checksum_of_edges(found) == checksum_of_edges(faces_of(*rows))
    assert [len(part) for part in store.rag.iter_edges("k", FACES)] == [4, 0]
    assert len(store.rag.read_edges("k", FACES, 4)) == 0
    store.rag.drop("k")
    with pytest.raises(BadData, match="should exist"):
        store.rag.read_edges("k", FACES, 3)


def overlaps_of(*rows: tuple[int, int, int]) -> Overlaps:
    return Overlaps(*(np.array(column, np.uint64) for column in zip(*rows, strict=True)))


def test_overlaps_come_back_as_written_and_are_replaced_as_a_whole(store: Store) -> None:
    written = {7: overlaps_of((2**63 + 5, 2**64 - 1, 2**40), (0, 0, 9), (3, 4, 5)), 2: Overlaps.empty()}
    store.rag.write_overlaps("k", "roi", 7, overlaps_of(*((n, 1, 1) for n in range(9))))
    for block, overlaps in written.items():
        store.rag.write_overlaps("k", "roi", block, overlaps)
    store.rag.write_overlaps("k", "threshold_roi", 7, overlaps_of((1, 1, 1)))
    store.rag.write_overlaps("other", "roi", 7, overlaps_of((2, 2, 2)))
    for block, wanted in written.items():
        found = store.rag.read_overlaps("k", "roi", block)
        assert (found.fragment.tolist(), found.truth.tolist()) == (wanted.fragment.tolist(), wanted.truth.tolist())
        assert found.size_vox.tolist() == wanted.size_vox.tolist()
    with pytest.raises(BadData, match="should exist"):
        store.rag.read_overlaps("k", "threshold_roi", 2)
    store.rag.drop("k")
    with pytest.raises(BadData, match="should exist"):
        store.rag.read_overlaps("k", "roi", 7)
    assert store.rag.read_overlaps("other", "roi", 7).size_vox.tolist() == [2]


def test_large_ids_are_exact(store: Store) -> None:
    large = (2**53 + 1, 2**63 - 1, 2**62 + 12345, 2**63 + 5, 2**64 - 3)
    store.rag.write_nodes("k", 0, nodes_of(*large))
    store.rag.write_edges("k", "mean", 0, edges_of((2**53 + 1, 2**53 + 3, 0.5), (2**63 - 2, 2**64 - 3, 0.75)))
    assert store.rag.read_nodes("k", 0).id.tolist() == list(large)
    edges = store.rag.read_edges("k", "mean", 0)
    assert edges.u.tolist() == [2**53 + 1, 2**63 - 2]
    assert edges.v.tolist() == [2**53 + 3, 2**64 - 3]


def test_an_empty_block_is_there_and_an_unwritten_one_is_lost(store: Store) -> None:
    store.rag.write_nodes("k", 4, RagNodes.empty())
    store.rag.write_edges("k", "mean", 4, RagEdges.empty())
    assert len(store.rag.read_nodes("k", 4)) == len(store.rag.read_edges("k", "mean", 4)) == 0
    assert [len(part) for part in store.rag.iter_edges("k", "mean")] == [0]
    with pytest.raises(BadData, match="should exist"):
        store.rag.read_nodes("k", 5)
    with pytest.raises(BadData, match="should exist"):
        store.rag.read_edges("k", "hist_quant_75", 4)


def test_rows_of_two_keys_and_of_two_merge_functions_never_mix(store: Store) -> None:
    store.rag.write_nodes("a", 0, nodes_of(1, 2))
    store.rag.write_nodes("ab", 0, nodes_of(3))
    store.rag.write_edges("a", "mean", 0, edges_of((1, 2, 0.5)))
    store.rag.write_edges("ab", "mean", 0, edges_of((1, 2, 0.75), (2, 3, 0.1)))
    store.rag.write_edges("a", "mean_initmax", 0, edges_of((5, 6, 1.0)))
    assert [n.id.tolist() for n in store.rag.iter_nodes("a")] == [[1, 2]]
    assert [n.id.tolist() for n in store.rag.iter_nodes("ab")] == [[3]]
    assert [e.merge_score.tolist() for e in store.rag.iter_edges("a", "mean")] == [[0.5]]
    assert [e.u.tolist() for e in store.rag.iter_edges("a", "mean_initmax")] == [[5]]
    assert list(store.rag.iter_nodes("other")) == []


def test_dropping_a_work_leaves_the_rows_of_the_other(store: Store) -> None:
    for key in ("a", "b"):
        for block in range(3):
            store.rag.write_nodes(key, block, nodes_of(1 + block))
            store.rag.write_edges(key, "mean", block, edges_of((1, 2, 0.5)))
    store.rag.drop("a")
    assert list(store.rag.iter_nodes("a")) == []
    assert list(store.rag.iter_edges("a", "mean")) == []
    assert store.rag.count_nodes("b") == store.rag.count_edges("b", "mean") == 3


def test_more_rows_than_one_request_holds_come_back_whole(store: Store) -> None:
    ids = np.random.default_rng(1).permutation(25_001).astype(np.uint64)
    nodes = RagNodes(ids, np.zeros((len(ids), 3)), ids)
    store.rag.write_nodes("k", 3, nodes)
    assert checksum_of_nodes(store.rag.read_nodes("k", 3)) == checksum_of_nodes(nodes)


def test_done_and_failed_blocks_are_remembered_with_their_records(store: Store) -> None:
    marks = store.blocks("watershed", "k")
    record = {"block": 7, "checksums": {"nodes": "x"}, "facts": {"n": 2**60, "f": 0.1}, "seconds": 1.5, "finished": 9.5}
    assert (marks.done(), marks.failed(), marks.count_done(), marks.count_failed()) == (set(), set(), 0, 0)
    marks.mark_failed(7, {"what": "first"})
    marks.mark_failed(7, {"what": "second", "traceback": "x" * 100_000})
    marks.mark_failed(8, {"what": "other"})
    assert (marks.failed(), marks.count_failed()) == ({7, 8}, 2)
    assert marks.failure(7)["what"] == "second"
    marks.mark_done(7, record)
    marks.mark_done(7, record)
    assert (marks.done(), marks.failed(), marks.count_done(), marks.count_failed()) == ({7}, {8}, 1, 1)
    assert marks.record(7) == record
    assert marks.records() == {7: record}
    for missing in (lambda: marks.record(8), lambda: marks.failure(7)):
        with pytest.raises(MissingInput):
            missing()


def test_marks_of_other_works_and_stages_are_not_seen(store: Store) -> None:
    for stage, key, number in (("watershed", "a", 1), ("watershed", "b", 2), ("segment", "a", 3), ("toy", "a", 4)):
        store.blocks(stage, key).mark_done(number, {"checksums": {}})
        store.blocks(stage, key).mark_failed(number + 10, {"what": stage})
    assert store.blocks("watershed", "a").done() == {1}
    assert (store.blocks("watershed", "a").failed(), store.blocks("watershed", "a").count_failed()) == ({11}, 1)
    store.blocks("watershed", "a").remove_all()
    assert store.blocks("watershed", "a").done() == store.blocks("watershed", "a").failed() == set()
    assert store.blocks("watershed", "b").done() == {2}
    assert store.blocks("segment", "a").failed() == {13}


def test_a_mark_is_removed_alone(store: Store) -> None:
    marks = store.blocks("agglomerate", "a")
    for number in (3, 4):
        marks.mark_done(number, {"checksums": {"edges_mean": "x"}})
    store.blocks("agglomerate", "b").mark_done(3, {"checksums": {}})
    for _ in range(2):
        marks.remove(3)
    assert (marks.done(), store.blocks("agglomerate", "b").done()) == ({4}, {3})
    marks.mark_done(3, {"checksums": {"edges_mean": "y"}})
    assert marks.record(3)["checksums"] == {"edges_mean": "y"}


def test_the_newest_work_of_a_stage_is_the_last(store: Store) -> None:
    assert store.keys("watershed") == []
    for key in ("z", "a"):
        store.begin("watershed", key)
        store.blocks("watershed", key).mark_done(0, {"checksums": {}})
    assert store.keys("watershed") == ["z", "a"]
    assert store.keys("segment") == []


def _write_blocks(experiment: Path, worker: int, failures: Any) -> None:
    try:
        store = open_store(load_experiment(experiment))
        for block in range(24):
            if block % 4 == worker or block >= 20:
                store.rag.write_nodes("k", block, nodes_of(*range(block * 100, block * 100 + 60), seed=block))
                store.rag.write_edges("k", "mean", block, edges_of((block, block + 1, 0.5), (block, block + 2, np.nan)))
                store.blocks("agglomerate", "k").mark_done(block, {"checksums": {"edges_mean": "x"}})
    except BaseException as error:
        failures.put(f"{type(error).__name__}: {error}")
        raise


def test_four_processes_write_at_once_some_of_them_the_same_blocks(make_store: MakeStore) -> None:
    experiment, store = make_store()
    # The parent has a connection already: what it forks must not use it.
    assert store.blocks("agglomerate", "k").done() == set()
    context = multiprocessing.get_context("fork")
    failures = context.Queue()
    writers = [context.Process(target=_write_blocks, args=(experiment.path, n, failures)) for n in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)
    assert failures.empty(), failures.get()
    assert [writer.exitcode for writer in writers] == [0] * 4
    assert store.blocks("agglomerate", "k").done() == set(range(24))
    for block, nodes in enumerate(store.rag.iter_nodes("k")):
        assert_same_nodes(nodes, nodes_of(*range(block * 100, block * 100 + 60), seed=block))
    assert store.rag.count_edges("k", "mean") == 48


def test_hashes_of_rows_are_the_same_in_both_engines(store: Store) -> None:
    nodes, edges = nodes_of(5, 2**63 - 1), edges_of((1, 2, 0.1), (2, 9, np.nan))
    store.rag.write_nodes("k", 0, nodes)
    store.rag.write_edges("k", "mean", 0, edges)
    assert checksum_of_nodes(store.rag.read_nodes("k", 0)) == checksum_of_nodes(nodes)
    assert checksum_of_edges(store.rag.read_edges("k", "mean", 0)) == checksum_of_edges(edges)
