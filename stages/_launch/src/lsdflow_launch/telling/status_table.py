"""`lsdflow status` as text: a table of stages; below it the failures with their reasons, and the jobs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from lsdflow_launch.planning.wording import duration

HEADS = ("stage", "state", "done", "failed", "retried", "rate", "left", "took", "planned", "last sign")
JOB_ROLES = ("run", "coordinator", "workers", "verify")
PASS, ITERATIONS = "pass", "iterations_done"
Facts = Mapping[str, Any]


def show_status(states: Mapping[str, Facts], console: Console, now: float | None = None) -> None:
    """Print the table (done: blocks, or iterations), then further lines for the stages that have them."""
    now = time.time() if now is None else now
    table = Table(box=None, pad_edge=False, header_style="bold")
    rows = [(stage, *cells(facts, now)) for stage, facts in states.items()]
    # An empty column would waste space on a narrow terminal.
    shown = [n for n in range(len(HEADS)) if n < 2 or any(row[n] for row in rows)]
    for head in (HEADS[n] for n in shown):
        table.add_column(head, no_wrap=head != "state", justify="left" if head in ("stage", "state") else "right")
    for row in rows:
        table.add_row(*(row[n] for n in shown))
    console.print(table, highlight=False)
    for stage, facts in states.items():
        for line in more_lines(stage, facts):
            console.print(line, markup=False, highlight=False, soft_wrap=True)


def cells(facts: Facts, now: float) -> tuple[str, ...]:
    """Return a row of the table, without the stage's name."""
    took, planned = facts.get("seconds"), facts.get("planned_seconds")
    left, last = facts.get("minutes_left"), facts.get("last_activity")
    return (
        _state(facts),
        _done(facts),
        _shown(facts.get("failed")),
        _shown(facts.get("retried")),
        _rate(facts),
        duration(60 * left) if left is not None and facts["state"] != "finished" else "",
        duration(took) if took is not None else "",
        duration(planned) if planned is not None else "",
        f"{duration(max(now - last, 0))} ago" if last is not None else "",
    )


def more_lines(stage: str, facts: Facts) -> Iterator[str]:
    """Yield why the stage ended, failed blocks, jobs and logs."""
    if facts.get("problem"):
        yield f"{stage}: {facts['problem']}"
    if last := facts.get("last_run"):
        yield f"{stage}: {_ended(last)}"
    yield from (f"{stage}: finished without {failed}" for failed in facts.get("accepted", ()))
    for block, what in facts.get("failures", {}).items():
        yield f"{stage}: block {block}: {what}"
    for role in JOB_ROLES:
        if facts.get(role):
            yield f"{stage} {role}: {facts[role]}"
    of_interest = facts["state"] != "finished" or "last_run" in facts
    logs = facts.get("logs") or ([facts["log"]] if facts.get("log") and of_interest else [])
    yield from (f"{stage} log: {log}" for log in logs)


def _ended(last: Facts) -> str:
    """Return how a run ended after the stage had finished; the earlier results are still valid."""
    begun = time.strftime(" of %Y-%m-%d %H:%M", time.localtime(last["started"])) if last.get("started") else ""
    why = f": {last['problem']}" if last.get("problem") else ""
    return f"finished before; its last run{begun} ended with exit code {last['exit_code']}{why}"


def _state(facts: Facts) -> str:
    state = str(facts["state"])
    if state == "running or killed" and "alive" in facts:
        state = "running" if facts["alive"] else "killed"
    return f"{state}, {facts[PASS]}" if facts.get(PASS) else state


def _done(facts: Facts) -> str:
    if "blocks_done" in facts and "blocks" in facts:
        return f"{facts['blocks_done']}/{facts['blocks']}"
    return f"{facts[ITERATIONS]}/{facts['iterations_wanted']} it" if ITERATIONS in facts else ""


def _rate(facts: Facts) -> str:
    if facts["state"] == "finished":
        return ""
    if "blocks_per_minute" in facts:
        return f"{facts['blocks_per_minute']:.3g}/min"
    return f"{facts['iterations_per_second']:.3g} it/s" if "iterations_per_second" in facts else ""


def _shown(value: Any) -> str:
    return "" if value is None else str(value)
