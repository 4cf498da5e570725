"""What all parts of the rehearsal share: their options, rows that are known to be planned or done, commands."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpu_machine import print_row

BIN = Path(os.environ.get("LSDFLOW_BIN", ""))
STOPPING_S = 4.0  # between asking a command to stop and killing it


class Part:
    """A part's options and rows; what is planned and not done is listed by the rehearsal."""

    def __init__(self, doc: str | None) -> None:
        parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
        parser.add_argument("--device", default="cuda")
        parser.add_argument("--tiny", action="store_true", help="a toy")
        parser.add_argument("--ablation", action="store_true", help="train the networks of the ablation")
        parser.add_argument("--data", type=Path, required=True, help="folder of the real volumes")
        parser.add_argument("--results", type=Path, required=True, help="folder of the results")
        parser.add_argument("--scratch", type=Path, required=True, help="folder that all parts share")
        parser.add_argument("--rows", type=Path, required=True, help="file that names the rows planned and done")
        parser.add_argument("--until", type=float, required=True, help="seconds since 1970 at which it has ended")
        parser.add_argument("--reserve", type=float, default=90.0, help="seconds of it in which nothing is trained")
        options = parser.parse_args()
        self.device: str = options.device
        self.tiny: bool = options.tiny
        self.ablation: bool = options.ablation
        self.data: Path = options.data
        self.results: Path = options.results
        self.scratch: Path = options.scratch
        self.until: float = options.until
        self.reserve: float = options.reserve
        self._rows: Path = options.rows

    @property
    def left_s(self) -> float:
        """Seconds until it has to have ended."""
        return self.until - time.time()

    def plan(self, *names: str) -> None:
        """These rows are to come."""
        self._note("planned", names)

    def row(self, name: str, cells: Sequence[Any], *, done: bool = True) -> None:
        """Print a row that has been planned."""
        print_row(cells)
        if done:
            self.did(name)

    def did(self, *names: str) -> None:
        """These are done."""
        self._note("done", names)

    def attempt(self, name: str, work: Callable[[], int | None]) -> int:
        """Do what gives a row; where it fails, the row says why, and the others follow. 1 if it failed."""
        try:
            return work() or 0
        except Exception as error:  # noqa: BLE001  what else there is to measure is worth more
            traceback.print_exc()
            text = " ".join(f"{type(error).__name__}: {error}".split())[:300].replace("|", "/")
            self.row(name, [name, text], done=False)
            return 1

    def _note(self, word: str, names: Sequence[str]) -> None:
        with self._rows.open("a") as file:
            file.write("".join(f"{word} {' '.join(name.split())}\n" for name in names))

    def finish(self, processes: Sequence[subprocess.Popen[bytes]], share: float = 1.0) -> list[int | None]:
        """Wait for commands for a share of what is left; then they are asked to stop, then killed. Their exit codes."""
        until = time.time() + share * self.left_s
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - STOPPING_S - time.time()))
        late = [process for process in processes if process.poll() is None]
        for process in late:  # once: a second signal would end a training without a checkpoint
            process.terminate()
        for process in late:
            try:
                process.wait(max(0.1, until - 1 - time.time()))
            except subprocess.TimeoutExpired:
                process.kill()
        return [None if process in late else process.returncode for process in processes]


def start(command: str, *arguments: Any) -> subprocess.Popen[bytes]:
    """Start a command of lsdflow; what it says goes to stderr."""
    words = [str(BIN / command), *map(str, arguments)]
    print("$", *words, file=sys.stderr, flush=True)
    return subprocess.Popen(words, stdout=sys.stderr, stdin=subprocess.DEVNULL)


def settings(values: dict[str, Any]) -> list[str]:
    """Options of a command: --set table.key=value, for each."""
    return [part for name, value in values.items() for part in ("--set", f"{name}={value}")]
