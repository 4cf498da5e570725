"""Reading traced skeletons: one CSV with parents, a pair of CSVs (nodes, edges), or SWC files.

    skeletons.csv              neuron,node,z,y,x,parent      parent empty or -1 for a root
    nodes.csv + edges.csv      neuron,node,z,y,x  and  source,target     (two files in one folder)
    *.swc                      node type x y z radius parent             (x first; each file is a neuron)

Positions are as written (`units` converts them). An SWC file named by a number is that neuron; each other file gets a
number that no file has. The same is read from a MongoDB of the LSD scripts: collections <name>.nodes and <name>.edges.
Where nodes do not name their neuron, each connected skeleton is one, numbered from 1 in the order of its first node.
"""

from __future__ import annotations

import codecs
import csv
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from lsdflow_contract.errors import BadData, MissingInput
from lsdflow_evaluate.scores.run_length import Skeletons
from lsdflow_runtime.store.mongo_import import read_mongo_skeletons

MOST_ID = 2**64
# Neuron, number, z, y, x of a node; the two nodes of an edge, and where the file names it.
Node = tuple[int, int, float, float, float]
Link = tuple[int, int, str]


def read_skeletons(path: Path) -> Skeletons:
    """Read skeletons from a CSV, an SWC, or a folder of them. MissingInput if absent, BadData naming file and line."""
    if path.is_file() and path.suffix.lower() == ".csv":
        return _from_csv(path, None)
    if path.is_file() and path.suffix.lower() == ".swc":
        return _from_swc([path])
    if (path / "nodes.csv").is_file() and (path / "edges.csv").is_file():
        return _from_csv(path / "nodes.csv", path / "edges.csv")
    inside = sorted(path.iterdir()) if path.is_dir() else []
    # macOS leaves a hidden file beside each file on a foreign disk.
    files = [file for file in inside if file.suffix.lower() == ".swc" and not file.name.startswith(".")]
    if files:
        return _from_swc(files)
    raise MissingInput(
        "no skeletons found", where=path, wanted="a .csv, an .swc, or a folder with nodes.csv + edges.csv or *.swc"
    )


def read_skeletons_of_mongo(source: Path, name: str, retry_s: float) -> Skeletons:
    """Read skeletons from a database or a dump of it; raises as `read_mongo_skeletons`, BadData if they do not fit."""
    found = read_mongo_skeletons(source, name, retry_s)
    order = np.argsort(found.id, kind="stable")
    ids = found.id[order]
    if len(np.unique(ids)) != len(ids):
        raise BadData("a node id occurs twice", where=source, fix="node ids must be unique")
    place = np.minimum(np.searchsorted(ids, found.edges), max(len(ids) - 1, 0))
    unknown = found.edges[ids[place] != found.edges] if len(ids) else found.edges
    if len(unknown):
        raise BadData("an edge names a node that is not there", where=source, found=int(unknown.flat[0]))
    edges = order[place].astype(np.int64).reshape(-1, 2)
    neurons = connected_neurons(len(ids), edges) if found.neuron is None else found.neuron
    if len(neurons) and neurons.min() <= 0:
        raise BadData("a neuron needs an id above 0", where=source, found=int(neurons.min()))
    return Skeletons(found.position_nm, neurons.astype(np.uint64), edges)


def connected_neurons(nodes: int, edges: NDArray[np.int64]) -> NDArray[np.int64]:
    """Each connected skeleton is a neuron of its own: numbers from 1, in the order of first nodes."""
    graph = coo_array((np.ones(len(edges), np.int8), (edges[:, 0], edges[:, 1])), shape=(nodes, nodes))
    _, component = connected_components(graph, directed=False)
    _, first, place = np.unique(component, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[place].astype(np.int64) + 1


def _from_csv(nodes_path: Path, edges_path: Path | None) -> Skeletons:
    columns = ("neuron", "node", "z", "y", "x") + (("parent",) if edges_path is None else ())
    nodes: list[Node] = []
    links: list[Link] = []
    for where, row in _rows(nodes_path, columns):
        nodes.append(_node(where, [row[name] for name in columns[:5]]))
        if edges_path is None and row["parent"]:
            links.append((_whole(where, row["parent"]), nodes[-1][1], where))
    for where, row in _rows(edges_path, ("source", "target")) if edges_path else ():
        links.append((_whole(where, row["source"]), _whole(where, row["target"]), where))
    return _joined(nodes, links, nodes_path, parents=edges_path is None)


def _from_swc(files: Sequence[Path]) -> Skeletons:
    """All files together; each has node numbers of its own."""
    parts = [_one_neuron(path, neuron) for path, neuron in zip(files, _neurons_of(files), strict=True)]
    first = itertools.accumulate((len(part.neurons) for part in parts), initial=0)
    return Skeletons(
        np.concatenate([part.positions_nm for part in parts]),
        np.concatenate([part.neurons for part in parts]),
        np.concatenate([part.edges + number for part, number in zip(parts, first, strict=False)]),
    )


def _neurons_of(files: Sequence[Path]) -> list[int]:
    """A number for each file: that of its name, or one that no file has, from its place in the order of names on."""
    numbers = [int(path.stem) if path.stem.isascii() and path.stem.isdecimal() else 0 for path in files]
    taken = set(numbers)
    for place, number in enumerate(numbers):
        if number not in range(1, MOST_ID) or number in numbers[:place]:
            numbers[place] = next(free for free in itertools.count(place + 1) if free not in taken)
            taken.add(numbers[place])
    return numbers


def _one_neuron(path: Path, neuron: int) -> Skeletons:
    nodes: list[Node] = []
    links: list[Link] = []
    for line, text in enumerate(_text(path).splitlines(), start=1):
        fields, where = text.split("#", maxsplit=1)[0].split(), f"{path} line {line}"
        if not fields:
            continue
        if len(fields) != 7:
            raise BadData("not an SWC line", where=where, wanted="7 fields", found=text)
        nodes.append(_node(where, [str(neuron), fields[0], fields[4], fields[3], fields[2]]))
        links.append((_whole(where, fields[6]), nodes[-1][1], where))
    return _joined(nodes, links, path, parents=True)


def _text(path: Path) -> str:
    """The text of a file: UTF-8, or UTF-16 with its byte-order mark. BadData (65) for bytes that are none."""
    content = path.read_bytes()
    marked = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        return content.decode("utf-16" if marked else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadData("not a text file of skeletons", where=path, found=error) from error


def _rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """The place of each row, and its fields."""
    reader = csv.DictReader(_text(path).splitlines(keepends=True), skipinitialspace=True)
    try:
        missing = [name for name in columns if name not in (reader.fieldnames or ())]
        if missing:
            raise BadData("columns are missing", where=path, wanted=", ".join(columns), found=str(reader.fieldnames))
        for row in reader:
            yield f"{path} line {reader.line_num}", {name: (row[name] or "").strip() for name in columns}
    except csv.Error as error:
        raise BadData("not a CSV file", where=f"{path} line {reader.line_num}", found=error) from error


def _node(where: str, fields: Sequence[str]) -> Node:
    """A node from its neuron, its number, z, y and x."""
    try:
        z, y, x = (float(value) for value in fields[2:])
    except ValueError as error:
        raise BadData("a position is no number", where=where, found=str(fields[2:])) from error
    if not np.isfinite((z, y, x)).all():
        raise BadData("a position is not finite", where=where, found=str(fields[2:]))
    neuron = _whole(where, fields[0])
    if neuron not in range(1, MOST_ID):
        raise BadData("a neuron needs an id above 0", where=where, wanted="1 to 2^64 - 1", found=str(neuron))
    return neuron, _whole(where, fields[1]), z, y, x


def _whole(where: str, text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise BadData("an id is no whole number", where=where, found=repr(text)) from error


def _joined(nodes: list[Node], links: list[Link], where: Path, *, parents: bool) -> Skeletons:
    """The skeletons of one file, or pair of files. parents: links begin at the parent, which a root does not have: it
    is below 0, or 0 where nodes are counted from 1."""
    if not nodes:
        raise BadData("a file of skeletons without a node", where=where, fix="export it again, or remove it")
    place = {node[1]: number for number, node in enumerate(nodes)}
    if len(place) != len(nodes):
        twice = next(node[1] for number, node in enumerate(nodes) if place[node[1]] != number)
        fix = "node ids must be unique in the file"
        raise BadData("a node id occurs twice", where=where, found=twice, fix=fix)
    if parents:
        links = [link for link in links if link[0] > 0 or (link[0] == 0 and 0 in place)]
    for one, other, line in links:
        unknown = [end for end in (one, other) if end not in place]
        if unknown or one == other:
            what = "an edge names a node that is not there" if unknown else "an edge joins a node to itself"
            raise BadData(what, where=line, found=f"node {unknown[0] if unknown else one}, on edge {one} - {other}")
        if nodes[place[one]][0] != nodes[place[other]][0]:
            raise BadData("a skeleton edge joins two neurons", where=line, found=f"edge {one} - {other}")
    edges = np.array([(place[one], place[other]) for one, other, _ in links], np.int64).reshape(-1, 2)
    if parents and len(edges) > len(nodes) - connected_neurons(len(nodes), edges).max():
        fix = "every skeleton begins at a root, which has no parent"
        raise BadData("the parents of a skeleton lead in a circle", where=where, fix=fix)
    positions = np.array([node[2:] for node in nodes], np.float64).reshape(-1, 3)
    return Skeletons(positions, np.array([node[0] for node in nodes], np.uint64), edges)
