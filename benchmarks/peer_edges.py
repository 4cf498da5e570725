"""The peers' sides of scored edges: waterz at once, and block by block into a database."""

from __future__ import annotations

import itertools
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
from serving import Work

SCORING = "OneMinus<HistogramQuantileAffinity<RegionGraphType, 75, ScoreValue, 256, false>>"
# A block and its context as published for FIB-25, in voxels.
BLOCK_VOX, CONTEXT_VOX = 64, 16


def waterz_edges(folder: Path) -> Work:
    """Scored edges by waterz: merge history and region graph of the pattern [0, t]."""
    affs = np.load(folder / "affs.npy")
    ids = np.load(folder / "fragments.npy")
    return lambda: _scored(affs, ids)


def waterz_edges_of_blocks_stored(folder: Path) -> Work:
    """The pattern of the published scripts: every block with its context through waterz, its edges into a database.

    SQLite replaces the database; nothing goes over a network. All edges are read back.
    """
    affs = np.load(folder / "affs.npy")
    ids = np.load(folder / "fragments.npy")

    def work() -> Any:
        (folder / "edges.sqlite").unlink(missing_ok=True)
        database = sqlite3.connect(folder / "edges.sqlite")
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE edges (u INTEGER, v INTEGER, score REAL, PRIMARY KEY (u, v))")
        for begin in itertools.product(*(range(0, edge, BLOCK_VOX) for edge in ids.shape)):
            read = tuple(slice(max(0, b - CONTEXT_VOX), b + BLOCK_VOX + CONTEXT_VOX) for b in begin)
            u, v, score = _scored(affs[(slice(None), *read)], ids[read])
            rows = zip(u.astype(np.int64).tolist(), v.astype(np.int64).tolist(), score.tolist(), strict=True)
            database.executemany("INSERT OR REPLACE INTO edges VALUES (?, ?, ?)", rows)
            database.commit()
        back = np.array(database.execute("SELECT u, v, score FROM edges ORDER BY u, v").fetchall(), np.float64).T
        database.close()
        return back

    return work


def _scored(affs: Any, ids: Any) -> Any:
    import waterz

    steps = waterz.agglomerate(
        affs=affs.astype(np.float32) / 255,
        thresholds=[0, 1.0],
        fragments=ids.copy(),
        scoring_function=SCORING,
        discretize_queue=256,
        return_merge_history=True,
        return_region_graph=True,
    )
    _, _, region_graph = next(steps)
    _, history, _ = next(steps)
    return scores_of(region_graph, history)


def scores_of(region_graph: Any, history: Any) -> Any:
    """The score of each edge: that of the merge which joined its ends, by a tree of merges as published."""
    parent: dict[int, int] = {}
    top: dict[int, int] = {}
    for number, merge in enumerate(history):
        for part in (merge["a"], merge["b"]):
            parent[top.get(part, -int(part))] = number
        top[merge["c"]] = number

    def score(u: int, v: int) -> float:
        # Merges are numbered upwards, so the lower of the two is the one to climb.
        while u != v:
            low, high = min(u, v), max(u, v)
            if low not in parent:
                return float("nan")
            u, v = parent[low], high
        return float(history[u]["score"])

    pairs = sorted((min(e["u"], e["v"]), max(e["u"], e["v"])) for e in region_graph)
    return np.array([(u, v, score(-u, -v)) for u, v in pairs], np.float64).T
