"""Traced skeletons: the same skeleton from each form, and every mistake named with file and line."""

from __future__ import annotations

from pathlib import Path

import bson
import numpy as np
import pytest

from lsdflow_contract.errors import BadData, MissingInput
from lsdflow_evaluate.scores.run_length import Skeletons
from lsdflow_evaluate.skeletons.files import read_skeletons, read_skeletons_of_mongo

WITH_PARENTS = "neuron,node,z,y,x,parent\n7,1,0,0,10,\n7,2,0,5,20.5,1\n9,3,1,2,3,-1\n7,4,0,5,30,2\n"
NODES = "neuron,node,z,y,x\n7,1,0,0,10\n7,2,0,5,20.5\n9,3,1,2,3\n7,4,0,5,30\n"
EDGES = "source,target\n1,2\n2,4\n"
SWC = "# z is the fifth field\n1 0 10 0 0 1 -1\n2 0 20.5 5 0 1 1\n4 0 30 5 0 1 2\n"


def facts(skeletons: Skeletons) -> set[tuple[tuple[float, ...], tuple[float, ...]]]:
    ends = skeletons.positions_nm[skeletons.edges]
    return {tuple(sorted((tuple(a), tuple(b)))) for a, b in ends.tolist()}


def test_all_forms_give_the_same_edges(tmp_path: Path) -> None:
    (tmp_path / "one.csv").write_text(WITH_PARENTS)
    (tmp_path / "pair").mkdir()
    (tmp_path / "pair" / "nodes.csv").write_text(NODES)
    (tmp_path / "pair" / "edges.csv").write_text(EDGES)
    (tmp_path / "swc").mkdir()
    (tmp_path / "swc" / "7.swc").write_text(SWC)
    (tmp_path / "swc" / "cell.swc").write_text("1 0 3 2 1 1 -1\n")
    one, pair, swc = (read_skeletons(tmp_path / name) for name in ("one.csv", "pair", "swc"))
    assert facts(one) == facts(pair) == facts(swc)
    assert one.neurons.tolist() == [7, 7, 9, 7]
    assert sorted(swc.neurons.tolist()) == [2, 7, 7, 7]
    assert one.positions_nm[1].tolist() == [0.0, 5.0, 20.5]


def test_a_single_swc_is_one_neuron(tmp_path: Path) -> None:
    (tmp_path / "a.swc").write_text(SWC)
    found = read_skeletons(tmp_path / "a.swc")
    assert (found.neurons.tolist(), len(found.edges)) == ([1, 1, 1], 2)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.csv", "neuron,node,z,y\n", "columns are missing"),
        ("a.csv", "neuron,node,z,y,x,parent\n7,1,a,0,0,\n", "line 2"),
        ("a.csv", "neuron,node,z,y,x,parent\n7,1,nan,0,0,\n", "not finite"),
        ("a.csv", "neuron,node,z,y,x,parent\n0,1,0,0,0,\n", "id above 0"),
        ("a.csv", "neuron,node,z,y,x,parent\n7,1,0,0,0,\n7,1,0,0,1,\n", "twice"),
        ("a.csv", "neuron,node,z,y,x,parent\n7,1,0,0,0,5\n", "not there"),
        ("a.csv", "neuron,node,z,y,x,parent\n7,1.5,0,0,0,\n", "no whole number"),
        ("a.csv", "neuron,node,z,y,x,parent\n7,1,0,0,0,1\n", "to itself"),
        ("a.csv", "neuron,node,z,y,x,parent\n7,1,0,0,0,\n8,2,0,0,0,1\n", "a.csv line 3"),
        ("a.csv", "neuron,node,z,y,x,parent\n", "without a node"),
        ("a.csv", "neuron,node,z,y,x,parent\n18446744073709551616,1,0,0,0,\n", "above 0"),
        ("a.csv", "neuron,node,z,y,x,parent\n7,1,0,0," + "0" * 200_000 + ",\n", "not a CSV file"),
        ("a.swc", "1 0 1 2 3\n", "7 fields"),
        ("a.swc", "# made by nobody\n", "without a node"),
        ("a.swc", "1 0 1 2 3 1 3\n2 0 1 2 4 1 1\n3 0 1 2 5 1 2\n4 0 1 2 9 1 -1\n", "in a circle"),
        ("a.csv", "neuron,node,z,y,x,parent\n7,1,0,0,0,2\n7,2,0,0,1,1\n", "in a circle"),
        ("a.swc", SWC.replace(" 2\n", " 99\n"), r"(?s)a.swc line 4.*found: node 99, on edge 99 - 4$"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, text: str, words: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(BadData, match=words):
        read_skeletons(tmp_path / name)


def test_each_swc_file_is_one_neuron_whatever_its_name(tmp_path: Path) -> None:
    names = ("3.swc", "03.swc", "a.swc", "b.SWC", "0.swc", "\u00b2.swc", f"{2**64}.swc", "5.swc")
    for name in names:
        (tmp_path / name).write_text(SWC)
    (tmp_path / "._a.swc").write_bytes(b"\0\5\x16\7")  # macOS
    found = read_skeletons(tmp_path)
    assert len(set(found.neurons.tolist())) == len(names)
    assert {3, 5} < set(found.neurons.tolist())
    assert len(found.edges) == 2 * len(names)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_byte_order_mark_is_no_part_of_the_first_field(tmp_path: Path, encoding: str) -> None:
    for name, text in (("a.csv", WITH_PARENTS), ("a.swc", SWC.partition("\n")[2])):
        (tmp_path / name).write_text(text, encoding=encoding)
        assert len(read_skeletons(tmp_path / name).edges) == 2


def test_a_parent_of_0_is_none_where_nodes_are_counted_from_1_and_else_node_0(tmp_path: Path) -> None:
    for first, edges in ((1, 1), (0, 2)):
        rows = [f"{first + k} 0 {k} 0 0 1 {parent}" for k, parent in enumerate((-1 + first, 0, first + 1))]
        (tmp_path / "a.swc").write_text("\n".join(rows))
        assert len(read_skeletons(tmp_path / "a.swc").edges) == edges
        table = [f"7,{first + k},0,0,{k},{parent}" for k, parent in enumerate((-1 + first, 0, first + 1))]
        (tmp_path / "a.csv").write_text("\n".join(["neuron,node,z,y,x,parent", *table]))
        assert len(read_skeletons(tmp_path / "a.csv").edges) == edges


def test_a_wrong_file_among_others_is_named_with_the_ids_that_it_holds(tmp_path: Path) -> None:
    for name in ("n1.swc", "n2.swc"):
        (tmp_path / name).write_text(SWC)
    (tmp_path / "n3.swc").write_text("1 1 1 1 1 1 -1\n2 3 1 1 1 1 99\n")
    with pytest.raises(BadData, match=r"n3\.swc line 2") as caught:
        read_skeletons(tmp_path)
    assert caught.value.found == "node 99, on edge 99 - 2"
    (tmp_path / "n3.swc").write_bytes(b"\xff\xf0")
    with pytest.raises(BadData, match=r"n3\.swc"):
        read_skeletons(tmp_path)


def test_bytes_that_are_no_text_and_absent_files_are_reported(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(bytes(np.arange(255, 100, -1, dtype=np.uint8)))
    with pytest.raises(BadData, match="not a text file"):
        read_skeletons(tmp_path / "a.csv")
    with pytest.raises(MissingInput, match="no skeletons"):
        read_skeletons(tmp_path / "absent")


def dump(folder: Path, nodes: list[dict[str, object]], edges: list[tuple[int, int]]) -> Path:
    """Collections as mongodump leaves them."""
    folder.mkdir(exist_ok=True)
    (folder / "gt.nodes.bson").write_bytes(b"".join(bson.encode(node) for node in nodes))
    pairs = [{"source": source, "target": target} for source, target in edges]
    (folder / "gt.edges.bson").write_bytes(b"".join(bson.encode(pair) for pair in pairs))
    return folder


MONGO_NODES = [{"id": i, "z": 20.0 * k, "y": 1.5, "x": 3} for k, i in enumerate((2**60, 5, 2**60 + 1, 8, 9))]


def test_skeletons_of_a_mongodb_are_those_of_the_csv_and_components_are_neurons_unless_named(tmp_path: Path) -> None:
    source = dump(tmp_path / "dump", MONGO_NODES, [(2**60 + 1, 2**60), (9, 8), (8, 5)])
    found = read_skeletons_of_mongo(source, "gt", 1.0)
    assert found.positions_nm.tolist() == [[20.0 * k, 1.5, 3.0] for k in range(5)]
    assert found.edges.tolist() == [[2, 0], [4, 3], [3, 1]]
    assert found.neurons.tolist() == [1, 2, 1, 2, 2]
    named = [{**node, "neuron_id": 7} for node in MONGO_NODES]
    assert read_skeletons_of_mongo(dump(source, named, [(5, 8)]), "gt", 1.0).neurons.tolist() == [7] * 5


@pytest.mark.parametrize(
    ("nodes", "edges", "message"),
    [
        (MONGO_NODES, [(5, 6)], "not there"),
        ([*MONGO_NODES, MONGO_NODES[0]], [], "twice"),
        ([{**MONGO_NODES[0], "neuron_id": 0}], [], "above 0"),
        ([{**MONGO_NODES[0], "neuron_id": 3}, MONGO_NODES[1]], [], "neuron_id"),
        ([{"id": 1, "z": 1.0, "y": 2.0}], [], "without x"),
        ([{"id": 1, "z": 1.0, "y": 2.0, "x": "3"}], [], "another type"),
    ],
)
def test_skeletons_of_a_mongodb_that_do_not_fit_are_refused(
    tmp_path: Path, nodes: list[dict[str, object]], edges: list[tuple[int, int]], message: str
) -> None:
    with pytest.raises(BadData, match=message):
        read_skeletons_of_mongo(dump(tmp_path / "dump", nodes, edges), "gt", 1.0)


def test_skeletons_that_a_dump_does_not_hold_are_named(tmp_path: Path) -> None:
    with pytest.raises(MissingInput, match=r"other\.nodes, other\.edges"):
        read_skeletons_of_mongo(dump(tmp_path / "dump", MONGO_NODES, []), "other", 1.0)
