"""lsdflow and its peers, side by side: the same input, one thread each, taking turns; results compared; a table.

    bench.py --peers PYTHON [ROW ...] [--full] [--rounds N]    `make bench` makes the peers' environment from peers.lock

Each side is a process (own.py, peers.py): it prepares, then computes when it is started, so the two take turns
A B A B; what counts is the ratio within a round. A row fails if the results do not agree as the row says they must.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from data import EDGES_PER_NODE, make_block, make_graph, make_network_crop, make_volume, make_work
from network_data import DEMO, PUBLISHED, make_network
from rows import ROWS, ResultsDifferError, Row, measurable

HERE = Path(__file__).resolve().parent
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "BLOSC_NTHREADS")


@dataclass
class Side:
    """A running side."""

    process: subprocess.Popen[str]
    folder: Path
    name: str
    versions: dict[str, str] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    peak_rss_mib: float = 0.0

    @classmethod
    def start(cls, python: str, script: str, name: str, folder: Path) -> Side:
        """Start it; it prepares meanwhile."""
        environment = {**os.environ, **dict.fromkeys(THREADS, "1")}
        command = [python, str(HERE / script), name, str(folder)]
        with (folder / f"log-{name}").open("w") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
            )
        return cls(process, folder, name)

    def ready(self) -> None:
        """Wait until it is prepared."""
        self.versions = self._said()["versions"]

    def run(self) -> None:
        """One run."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        said = self._said()
        self.seconds.append(float(said["seconds"]))
        self.peak_rss_mib = float(said["peak_rss_mib"])

    def result(self) -> Any:
        """What the last run made."""
        return np.load(self.folder / f"result-{self.name}.npy")

    def end(self) -> None:
        """End it."""
        self.process.kill()
        self.process.communicate()

    def _said(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            log = (self.folder / f"log-{self.name}").read_text()[-2000:]
            raise SystemExit(f"{self.name} ended with {self.process.wait()}: {log}")
        return dict(json.loads(line))


@dataclass(frozen=True)
class Outcome:
    """A row's measurement."""

    row: Row
    own: Side
    peer: Side
    agreement: str
    agrees: bool

    @property
    def ratios(self) -> list[float]:
        """How many times faster lsdflow was, round by round."""
        return [p / o for o, p in zip(self.own.seconds, self.peer.seconds, strict=True)]

    def line(self, work: dict[str, float]) -> str:
        """The row of the table."""
        median, low, high = statistics.median(self.ratios), min(self.ratios), max(self.ratios)
        own_s, peer_s = statistics.median(self.own.seconds), statistics.median(self.peer.seconds)
        rate = rate_of(work[self.row.per] / own_s, self.row.per)
        met = "yes" if median >= self.row.goal else "NO"
        memory = f"{self.own.peak_rss_mib:.0f} / {self.peer.peak_rss_mib:.0f}"
        ratio = f"**{median:.1f}** ({low:.1f}-{high:.1f})"
        cells = (
            self.row.name, self.row.against, f"{own_s:.3f}", f"{peer_s:.3f}", ratio,
            f"{self.row.goal:g} {met}", rate, memory, self.agreement,
        )  # fmt: skip
        return "| " + " | ".join(cells) + " |"


def rate_of(a_second: float, per: str) -> str:
    """'12.3 Mvoxel/s', '4.1 kblock/s'."""
    return f"{a_second / 1e6:.1f} M{per}/s" if a_second >= 1e5 else f"{a_second / 1e3:.1f} k{per}/s"


def measure(row: Row, folder: Path, peers: str, rounds: int) -> Outcome:
    """Both sides in turn, and whether they agree."""
    folder /= row.crop
    own, peer = (
        Side.start(sys.executable, "own.py", row.own, folder),
        Side.start(peers if row.peer_script == "peers.py" else sys.executable, row.peer_script, row.peer, folder),
    )
    try:
        own.ready()
        peer.ready()
        for number in range(rounds):
            for side in (own, peer) if number % 2 == 0 else (peer, own):
                side.run()
        try:
            return Outcome(row, own, peer, row.agree(own.result(), peer.result()), agrees=True)
        except ResultsDifferError as error:
            return Outcome(row, own, peer, f"**{error}**", agrees=False)
    finally:
        own.end()
        peer.end()


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    keys = [row.key for row in ROWS]
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(keys)}; none = all")
    parser.add_argument("--peers", default=sys.executable, help="Python of the peers' environment")
    parser.add_argument("--full", action="store_true", help="the sizes of the goals: minutes to an hour")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--affinities", type=Path, metavar="ARRAY", help="volumes/affs that a network predicted, for the rows with it"
    )
    options = parser.parse_args()
    if unknown := set(options.rows) - set(keys):
        parser.error(f"no such rows: {', '.join(sorted(unknown))}")
    wanted = [row for row in ROWS if not options.rows or row.key in options.rows]
    chosen = [row for row in wanted if measurable(row) and (row.crop != "network" or options.affinities)]
    edge, nodes = (250, 10_000_000) if options.full else (160, 1_000_000)
    with tempfile.TemporaryDirectory(prefix="lsdflow-bench-") as scratch:
        folder = Path(scratch)
        source = make_volume(folder, edge)
        if options.affinities:
            make_network_crop(folder, options.affinities, edge)
        make_graph(folder, nodes)
        make_block(folder, 256 if options.full else 160)
        blocks, finished = (100_000, 1_000_000) if options.full else (2000, 1_000_000)
        make_work(folder, blocks, finished)
        work = {
            "predicted voxel": make_network(folder, PUBLISHED if options.full else DEMO),
            "edge": EDGES_PER_NODE * nodes,
            "row": (1 + EDGES_PER_NODE) * nodes // 10,
            "block": blocks,
            "finished block": finished,
            "block voxel": np.load(folder / "ids.npy").size,
        }
        print(f"{source} {edge}^3, graph of {nodes:,} nodes; {options.rounds} rounds, one thread each side\n")
        print("| what | against | lsdflow s | peer s | ratio: median (min-max) | goal | lsdflow | peak MiB | results |")
        print("|---|---|---|---|---|---|---|---|---|")
        versions: dict[str, str] = {}
        differ = 0
        for row in chosen:
            outcome = measure(row, folder, options.peers, options.rounds)
            versions |= outcome.own.versions | outcome.peer.versions
            of_crop = {"voxel": np.load(folder / row.crop / "affs.npy", mmap_mode="r")[0].size}
            print(outcome.line(work | of_crop), flush=True)
            differ += not outcome.agrees
    listed = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    print(f"\n{datetime.date.today()}, Python {platform.python_version()}, {machine()}: {listed}")
    for row in wanted:
        if row not in chosen:
            why = "no --affinities" if row.crop == "network" else "this CPU cannot compute in bf16"
            print(f"{row.key} is left out: {why}")
    if differ:
        raise SystemExit(f"in {differ} rows the results do not agree")


def machine() -> str:
    """Kind of processor, cores, load."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine()
    )
    return f"{model}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"


if __name__ == "__main__":
    main()
