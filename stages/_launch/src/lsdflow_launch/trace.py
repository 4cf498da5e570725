"""`lsdflow trace`: tables of all runs and blocks, with their times and resources.

    trace.tsv                    a row per run of a stage, from the outcomes in runs/
    runs/<stage>/trace.tsv       a row per attempt at a block, as recorded by its workers (lsdflow_command.attempts)

The first columns are those of Nextflow's trace in its raw form (milliseconds, bytes, "-" for what is not known), so
programs that read such tables can read these; block, attempt, host, gpu and error follow. Memory is the peak of the
process until then.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import typer

from lsdflow_command.app import exit_codes
from lsdflow_command.attempts import DONE, FAILED, Attempt, AttemptReader
from lsdflow_command.processes import has_ended
from lsdflow_contract.errors import Interrupted, StageError
from lsdflow_contract.experiment import STAGES, load_experiment
from lsdflow_contract.files import read_json, write_atomically
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_launch.options import Debug, Folder, Json

COLUMNS = (
    *("task_id", "hash", "native_id", "name", "status", "exit", "submit", "start", "complete", "duration", "realtime"),
    *("%cpu", "peak_rss", "peak_vmem", "rchar", "wchar", "block", "attempt", "host", "gpu", "error"),
)
NOT_KNOWN = "-"
COMPLETED, FAILED_STATUS, ABORTED, RUNNING = "COMPLETED", "FAILED", "ABORTED", "RUNNING"
_STATUS_OF_OUTCOME = {DONE: COMPLETED, FAILED: FAILED_STATUS}
NAME = "trace.tsv"

Row = dict[str, Any]


def write_traces(layout: ExperimentLayout) -> dict[str, int]:
    """Write all tables of the experiment; return the number of rows by path relative to its folder."""
    runs = {stage: list(stage_rows(layout.stage_runs(stage), stage)) for stage in STAGES}
    written = {
        layout.root / NAME: _write(layout.root / NAME, sorted((r for rows in runs.values() for r in rows), key=_begin))
    }
    for stage, rows in runs.items():
        path = layout.stage_runs(stage) / NAME
        if attempts := _attempts(layout.stage_runs(stage)):
            all_ended = bool(rows) and all("exit" in row for row in rows)
            written[path] = _write(path, block_rows(attempts, stage, all_ended))
    return {str(path.relative_to(layout.root)): count for path, count in written.items()}


def stage_rows(runs: Path, stage: str) -> Iterator[Row]:
    """Yield the rows of the runs of a stage, in the order in which they began."""
    folders = sorted(path.parent for path in runs.glob("*/config.resolved.json"))
    for attempt, folder in enumerate(folders, 1):
        try:
            outcome = read_json(folder / "outcome.json")
        except StageError:
            outcome = {}
        yield {"name": stage, "attempt": attempt, **(_ended(outcome) if outcome else _without_outcome(folder))}


def block_rows(attempts: Iterable[Attempt], stage: str, all_ended: bool = False) -> Iterator[Row]:
    """Yield the rows of attempts at blocks, in the order in which they began, numbered for each block.

    An attempt without an end, on a host whose processes cannot be checked, was lost if all runs of the stage have ended
    or if the block was begun again: a block of a live worker is never given to another one.
    """
    ordered = sorted(attempts, key=lambda attempt: attempt.started)
    last = {(found.key, found.block): found for found in ordered}
    numbers: Counter[tuple[str, int]] = Counter()
    for found in ordered:
        lost = all_ended or last[found.key, found.block] is not found
        numbers[found.key, found.block] += 1
        yield {
            "hash": found.key,
            "native_id": found.job or found.pid,
            "name": f"{stage} (block {found.block})",
            "block": found.block,
            "attempt": numbers[found.key, found.block],
            "host": found.host,
            "submit": _ms(found.started),
            "start": _ms(found.started),
            **(_measured(found) if found.outcome else _without_end(found, lost)),
        }


def _attempts(runs: Path) -> list[Attempt]:
    reader = AttemptReader(runs)
    return [*reader.ended(), *reader.without_end()]


def _measured(found: Attempt) -> Row:
    return {
        "status": _STATUS_OF_OUTCOME.get(found.outcome, ABORTED),
        "exit": 0 if found.outcome == DONE else NOT_KNOWN,
        "complete": _ms(found.started + found.seconds),
        "duration": _ms(found.seconds),
        "realtime": _ms(found.seconds),
        "%cpu": _percent(found.cpu_s, found.seconds),
        "peak_rss": found.peak_resident_bytes,
        "peak_vmem": found.peak_virtual_bytes,
        "rchar": found.read_bytes,
        "wchar": found.written_bytes,
        "gpu": found.gpu or NOT_KNOWN,
        "error": found.error or NOT_KNOWN,
    }


def _without_end(found: Attempt, lost: bool) -> Row:
    return {"status": ABORTED if lost else _of_process(found.host, found.pid)}


def _ended(outcome: Row) -> Row:
    code, seconds = int(outcome["exit_code"]), float(outcome["seconds"])
    used, error = outcome.get("resources") or {}, outcome.get("error") or {}
    return {
        "native_id": outcome.get("job") or NOT_KNOWN,
        "status": {0: COMPLETED, Interrupted.exit_code: ABORTED}.get(code, FAILED_STATUS),
        "exit": code,
        "submit": _ms(outcome["started"]),
        "start": _ms(outcome["started"]),
        "complete": _ms(outcome["started"] + seconds),
        "duration": _ms(seconds),
        "realtime": _ms(seconds),
        "%cpu": _percent(used["cpu_s"], seconds) if "cpu_s" in used else NOT_KNOWN,
        "peak_rss": used.get("peak_resident_bytes", NOT_KNOWN),
        "rchar": used.get("read_bytes", NOT_KNOWN),
        "wchar": used.get("written_bytes", NOT_KNOWN),
        "host": outcome.get("host", NOT_KNOWN),
        "gpu": used.get("gpu") or NOT_KNOWN,
        "error": error.get("error", NOT_KNOWN),
    }


def _without_outcome(folder: Path) -> Row:
    """Return the row of a run that is running or was killed, from the files in its folder."""
    begin = _ms((folder / "config.resolved.json").stat().st_mtime)
    row: Row = {"submit": begin, "start": begin}
    try:
        first = (folder / "events.jsonl").read_text(encoding="utf-8").partition("\n")[0]
        host, pid = str(json.loads(first)["host"]), int(folder.name.rpartition("-")[2])
    except (OSError, ValueError, KeyError, TypeError):
        return {**row, "status": NOT_KNOWN}
    return {**row, "host": host, "status": _of_process(host, pid)}


def _of_process(host: str, pid: int) -> str:
    return ABORTED if has_ended(host, pid) else RUNNING


def _write(path: Path, rows: Iterable[Row]) -> int:
    lines = ["\t".join(COLUMNS)]
    for number, row in enumerate(rows, 1):
        numbered = {"task_id": number, **row}
        lines.append("\t".join(" ".join(str(numbered.get(name, NOT_KNOWN)).split()) for name in COLUMNS))
    write_atomically(path, lambda file: file.write(("\n".join(lines) + "\n").encode()))
    return len(lines) - 1


def _begin(row: Row) -> int:
    return int(row["start"])


def _ms(seconds: float) -> int:
    return round(1000 * seconds)


def _percent(part: float, whole: float) -> float:
    return round(100 * part / whole, 1) if whole > 0 else 0.0


def add_trace_verb(app: typer.Typer) -> None:
    """Register `trace`."""

    @app.command()
    def trace(folder: Folder, as_json: Json = False, debug: Debug = False) -> None:
        """Write what every run and block took to DIR/trace.tsv and DIR/runs/STAGE/trace.tsv (Nextflow's columns)."""
        with exit_codes(debug, as_json):
            written = write_traces(load_experiment(folder).layout)
            lines = "\n".join(f"{folder / path}: {rows} rows" for path, rows in written.items())
            typer.echo(json.dumps(written) if as_json else lines)
