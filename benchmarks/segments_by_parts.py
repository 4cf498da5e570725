"""Segments of a large graph in one memory and part by part: seconds, and the most memory held per node of the graph.

    segments_by_parts.py FOLDER [--nodes N] [--part-nodes N]     FOLDER: on a disk with 30 bytes per node and threshold

The graph is made as it is read, as the store gives it: 5 edges per node, to one of the 2000 nodes before or behind; 20
thresholds. Each form is a process of its own; memory is what it allocates (RssAnon) beyond what it had before it began:
pages of mapped files are not counted, they can be dropped at any time. Both must find the same segments and facts.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.graph import RagEdges
from lsdflow_segment.graph import SegmentGraph, find_in_memory, sum_nodes
from lsdflow_segment.partitioned_graph import find_in_parts

BLOCK = 100_000
THRESHOLDS = tuple(n / 200 for n in range(1, 21))
BUFFER_EDGES = 1 << 20


def ids_of(first: int, end: int) -> NDArray[np.uint64]:
    """Ids of nodes: ascending, with gaps of one thousand on average."""
    place = np.arange(first, end, dtype=np.uint64)
    return place * np.uint64(1000) + place * np.uint64(7919) % np.uint64(1000) + np.uint64(1)


def nodes(count: int) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.uint64]]]:
    """Ids and voxels, block by block."""
    for begin in range(0, count, BLOCK):
        ids = ids_of(begin, min(begin + BLOCK, count))
        yield ids, ids % np.uint64(5000) + np.uint64(1)


def edges(count: int) -> Iterator[RagEdges]:
    """Edges, block by block."""
    for begin in range(0, count, BLOCK):
        generator = np.random.default_rng(begin)
        u = np.repeat(np.arange(begin, min(begin + BLOCK, count)), 5)
        v = u + generator.integers(1, 2000, len(u))
        u, v = u[v < count], v[v < count]
        score = generator.random(len(u), dtype=np.float32)
        known = ids_of(begin, begin + BLOCK + 2000)
        yield RagEdges(known[u - begin], known[v - begin], score)


class PeakMemory:
    """The most this process allocates from now on, in bytes beyond what it has."""

    def __init__(self) -> None:
        self._before = self._peak = _anonymous_bytes()
        threading.Thread(target=self._look, daemon=True).start()

    @property
    def bytes(self) -> int:
        """So far."""
        return self._peak - self._before

    def _look(self) -> None:
        while True:
            self._peak = max(self._peak, _anonymous_bytes())
            time.sleep(0.01)


def _anonymous_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))


def found_whole(count: int) -> SegmentGraph:
    """As the stage does it in one memory."""
    return find_in_memory(sum_nodes(nodes(count)), edges(count), THRESHOLDS, BUFFER_EDGES)


def found_in_parts(folder: Path, count: int, part_nodes: int) -> SegmentGraph:
    """As the stage does it part by part."""
    shutil.rmtree(folder, ignore_errors=True)
    return find_in_parts(folder, lambda: nodes(count), lambda: edges(count), THRESHOLDS, part_nodes, BUFFER_EDGES)


def measure(folder: Path, count: int, part_nodes: int, find_only: bool) -> dict[str, Any]:
    """One form: seconds and peak of finding, then with the facts and all tables; and a checksum of what was found."""
    warm = found_in_parts(folder, 3000, 1000) if part_nodes else found_whole(3000)
    warm.facts()
    memory, begin = PeakMemory(), time.monotonic()
    graph = found_in_parts(folder, count, part_nodes) if part_nodes else found_whole(count)
    figures: dict[str, Any] = {"find_s": time.monotonic() - begin, "find_bytes_per_node": memory.bytes / count}
    if find_only:
        return {**figures, "sha256": ""}
    begin = time.monotonic()
    facts = graph.facts()
    figures |= {"facts_s": time.monotonic() - begin}
    begin = time.monotonic()
    digest = hashlib.sha256(repr(facts).encode())
    for lut in graph.luts():
        for part in lut:
            digest.update(part.segments.tobytes())
    figures |= {"tables_s": time.monotonic() - begin, "bytes_per_node": memory.bytes / count}
    return {**figures, "sha256": digest.hexdigest()[:16]}


def main() -> None:
    """Measure both forms."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nodes", type=int, default=10_000_000)
    parser.add_argument("--part-nodes", type=int, default=1_000_000)
    parser.add_argument("--form", choices=("whole", "parts"), help="one of them, in this process")
    parser.add_argument("--find-only", action="store_true", help="no facts, no tables, no comparison")
    options = parser.parse_args()
    if options.form:
        figures = measure(
            options.folder, options.nodes, options.part_nodes if options.form == "parts" else 0, options.find_only
        )
        sys.stdout.write(json.dumps(figures) + "\n")
        return
    sums = set()
    for form in ("whole", "parts"):
        done = subprocess.run([sys.executable, *sys.argv, "--form", form], capture_output=True, text=True, check=True)
        figures = json.loads(done.stdout)
        sums.add(figures.pop("sha256"))
        sys.stdout.write(f"{form}: " + ", ".join(f"{name} {value:.1f}" for name, value in figures.items()) + "\n")
    shutil.rmtree(options.folder)
    if len(sums) != 1:
        raise SystemExit("the forms do not find the same")


if __name__ == "__main__":
    main()
