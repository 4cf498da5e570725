"""The benchmarks measure what they say: every side runs, and both sides of a row agree, on a small input.

Peers that only their own environment has (mwatershed) are run by `make bench` alone; their presence is checked.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
ELSEWHERE = {"fragments-mutex", "mutex"}


def functions_in(name: str) -> set[str]:
    tree = ast.parse((BENCHMARKS / name).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.fixture(scope="module")
def benchmarks() -> Iterator[Any]:
    """The modules of the folder, as its scripts import them."""
    sys.path.insert(0, str(BENCHMARKS))
    before = set(sys.modules)
    try:
        import data
        import eager_network
        import network_data
        import own
        import peers
        import rows

        yield {
            "data": data,
            "network_data": network_data,
            "eager_network": eager_network,
            "own": own,
            "peers": peers,
            "rows": rows,
        }
    finally:
        sys.path.remove(str(BENCHMARKS))
        for name in set(sys.modules) - before:
            if (BENCHMARKS / f"{name}.py").exists() or name.startswith("lsdflow_ticks"):
                del sys.modules[name]


@pytest.fixture(scope="module")
def folder(benchmarks: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp("bench")
    benchmarks["data"].make_volume(made, 40)
    affs = np.ascontiguousarray(np.load(made / "affs.npy")[:, ::-1])
    zarr.create_array(made / "predicted", data=np.concatenate([affs, affs]), chunks=(6, 20, 20, 20))
    benchmarks["data"].make_network_crop(made, made / "predicted", 36)
    benchmarks["data"].make_graph(made, 5000)
    benchmarks["data"].make_block(made, 50)
    benchmarks["data"].make_work(made, 30, 5000)
    benchmarks["network_data"].make_network(made, (4, 6, (2, 2), 60))
    return made


def test_both_sides_of_every_row_agree(benchmarks: Any, folder: Path) -> None:
    agreement = {}
    here = [row for row in benchmarks["rows"].ROWS if row.key not in ELSEWHERE and benchmarks["rows"].measurable(row)]
    for row in here:
        sides = (
            getattr(benchmarks["own"], row.own),
            getattr(benchmarks[row.peer_script.removesuffix(".py")], row.peer),
        )
        agreement[row.key] = row.agree(*(np.asarray(side(folder / row.crop)()) for side in sides))
    bf16 = benchmarks["rows"].measurable(next(r for r in benchmarks["rows"].ROWS if r.key == "predict-bf16"))
    assert len(agreement) == len(benchmarks["rows"].ROWS) - len(ELSEWHERE) - (not bf16)
    assert agreement["fragments-published"] == "same partition"
    assert np.load(folder / "network" / "affs.npy").shape == (3, 36, 36, 36)
    assert agreement["relabel"] == "equal"


def test_every_row_names_sides_that_are_there(benchmarks: Any) -> None:
    for row in benchmarks["rows"].ROWS:
        assert row.own in functions_in("own.py") | functions_in("our_blocks.py") | functions_in("our_network.py")
        assert row.peer in functions_in(row.peer_script) | functions_in("daisy_blocks.py") | functions_in(
            "peer_edges.py"
        )
    keys = [row.key for row in benchmarks["rows"].ROWS]
    assert len(set(keys)) == len(keys)


def test_results_that_differ_are_reported(benchmarks: Any) -> None:
    rows = benchmarks["rows"]
    one = np.arange(1, 9).reshape(2, 2, 2)
    other = np.ones((2, 2, 2), int)
    for agree in (rows.partition, rows.equal):
        with pytest.raises(rows.ResultsDifferError, match="do not agree"):
            agree(one, other)
    edges = np.array([[1.0, 1.0, 2.0], [2.0, 3.0, 3.0], [0.1, 0.9, 0.9]])
    merged = edges.copy()
    merged[2] = 0.1
    with pytest.raises(rows.ResultsDifferError, match="do not agree"):
        rows.edges(edges, merged)
    assert rows.edges(edges, edges).startswith("same edges")
