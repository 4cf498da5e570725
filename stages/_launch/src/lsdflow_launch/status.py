"""`lsdflow status`: what is done of an experiment, from manifests, run folders, logs and the stages' own status.

The stage counts its blocks itself (`<stage> status`), in any store. Files of its runs show whether it is alive, its
speed, the retries of blocks and the newest log; SLURM knows the jobs. All times are seconds since 1970.
"""

from __future__ import annotations

import csv
import logging
import math
import re
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lsdflow_command.attempts import DONE, FOLDER, Attempt, AttemptReader
from lsdflow_command.lock_file import LockFile
from lsdflow_command.machine import available_cores
from lsdflow_contract.errors import MissingInput, StageError
from lsdflow_contract.experiment import BLOCK_STAGES, Experiment, load_experiment
from lsdflow_contract.failed_blocks import FAILED_BLOCKS, own_failed_blocks
from lsdflow_contract.files import read_json
from lsdflow_contract.manifest import read_manifest
from lsdflow_contract.trainings import shortfall
from lsdflow_launch.chain import stage_arguments, stages_of
from lsdflow_launch.commands import Ask, ask_stage
from lsdflow_launch.images.container import choose_ask
from lsdflow_launch.output import duration
from lsdflow_launch.slurm.jobs import job_facts, newest_submission, slurm_logs, submitted_overrides

if TYPE_CHECKING:
    from rich.console import Console

LOG = logging.getLogger("lsdflow.status")
LISTED = 10
LOG_TAIL_BYTES = 2**20
SEARCHED_LOGS = 50
# The attempts at 10^6 blocks fill some 100 MB, which would take too long to read.
MAX_ATTEMPT_BYTES = 50_000_000
HEADS = ("stage", "state", "done", "failed", "retried", "rate", "left", "took", "planned")
JOB_ROLES = ("run", "coordinator", "workers", "verify")
PASS, ITERATIONS = "pass", "iterations_done"
Facts = Mapping[str, Any]


def experiment_status(experiment: Experiment) -> dict[str, dict[str, Any]]:
    """Return the status of every stage; of a submitted stage also its jobs, if SLURM answers."""
    submission = newest_submission(experiment)
    if submission is None:
        return status_of(experiment)
    if not experiment.overrides:
        experiment = load_experiment(experiment.path, submitted_overrides(submission))
    try:
        jobs = job_facts(experiment, submission)
    except StageError as error:
        LOG.warning("nothing is known of the jobs: %s", error.message())
        jobs = {}
    states = status_of(experiment, choose_ask(experiment))
    return {stage: _with_jobs(facts, jobs.get(stage, {})) for stage, facts in states.items()}


def _with_jobs(facts: dict[str, Any], jobs: dict[str, Any]) -> dict[str, Any]:
    # Without an outcome the files do not show whether a stage is running; the queue does.
    runs = any("RUNNING" in str(jobs.get(role, "")) for role in ("run", "coordinator"))
    state = {"state": "running"} if facts["state"] == "running or killed" and runs else {}
    return {**facts, **state, **jobs}


def status_of(experiment: Experiment, ask: Ask = ask_stage) -> dict[str, dict[str, Any]]:
    """Return for each stage of the chain: state, last outcome, what the stage itself reports, and its activity."""

    def status(stage: str) -> dict[str, Any]:
        """Return the state of one stage, with its activity."""
        return with_activity(experiment, stage, _state_of(experiment, stage, ask))

    stages = stages_of(experiment)
    with ThreadPoolExecutor(available_cores()) as pool:
        return dict(zip(stages, pool.map(status, stages), strict=True))


def newest_run(experiment: Experiment, stage: str, *, refused: bool = False) -> Path | None:
    """Return the folder of the run that began last, whether it has ended or not; refused: also one with wrong settings.

    A run that is refused has an outcome, but no resolved settings.
    """
    names = ("config.resolved.json", *(("outcome.json",) if refused else ()))
    begun = {path.parent for name in names for path in experiment.layout.stage_runs(stage).glob(f"*/{name}")}
    return max(begun, key=lambda folder: folder.name, default=None)


def outcome_of(run: Path | None) -> dict[str, Any]:
    """Return the outcome of a run; {} if it has not ended, was killed, or if the file cannot be read."""
    return _json(run / "outcome.json") if run is not None else {}


def _state_of(experiment: Experiment, stage: str, ask: Ask) -> dict[str, Any]:
    """Return the state of a stage, and what its manifest or the stage itself reports."""
    newest = newest_run(experiment, stage, refused=True)
    last = outcome_of(newest)
    try:
        manifest = read_manifest(experiment.layout, stage)
    except MissingInput:
        manifest = None
    except StageError as error:
        return {"state": "damaged", "problem": error.what}
    if manifest is not None:
        return {
            "state": "finished",
            "seconds": round(manifest.facts.get("seconds", 0.0), 1),
            "identity": manifest.identity[:12],
            **({"shortfall": lacks} if (lacks := shortfall(manifest.facts)) else {}),
            **({"accepted": [str(block) for block in failed]} if (failed := own_failed_blocks(manifest)) else {}),
            **(_failed_since(experiment, stage, newest, last) if newest is not None else {}),
        }
    if newest is None:
        return {"state": "not started"}
    answer = ask(stage, stage_arguments("status", experiment))
    state = f"ended with exit code {last['exit_code']}" if "exit_code" in last else "running or killed"
    more = {} if "exit_code" in answer else {k: v for k, v in answer.items() if k not in ("stage", "finished")}
    return {"state": state, "problem": (last.get("error") or {}).get("what", ""), **more}


def _failed_since(experiment: Experiment, stage: str, newest: Path, last: Facts) -> dict[str, Any]:
    """Return how the newest run of a finished stage failed without changing the stage, for example with other settings.

    `last_run`: when it began (seconds since 1970), exit code, what was wrong; {} if it ended well.
    """
    if not last.get("exit_code"):
        return {}
    if (newest / "outcome.json").stat().st_mtime < experiment.layout.manifest(stage).stat().st_mtime:
        return {}  # other processes finished the stage later: jobs of a cluster, an import
    ended = {"started": last.get("started"), "exit_code": last["exit_code"]}
    return {"last_run": {**ended, "problem": (last.get("error") or {}).get("what", "")}}


def progress_of(experiment: Experiment, stage: str, ask: Ask) -> str:
    """Return the progress of a running stage as text; empty if it does not report blocks."""
    facts = {"state": "running", **ask(stage, stage_arguments("status", experiment))}
    return progress_text(with_activity(experiment, stage, facts))


def progress_text(facts: Mapping[str, Any]) -> str:
    """Return '12 of 40 blocks done, 1 failed, 3.2 a minute, 8.8 minutes left', as far as the facts are known."""
    if "blocks_done" not in facts:
        return ""
    pass_ = f"{facts['pass']}: " if "pass" in facts else ""
    parts = [f"{pass_}{facts['blocks_done']} of {facts['blocks']} blocks done"]
    parts += [f"{facts['failed']} failed"] if facts.get("failed") else []
    if "minutes_left" in facts:
        parts += [f"{facts['blocks_per_minute']} a minute", f"{facts['minutes_left']} minutes left"]
    return ", ".join(parts)


def with_activity(experiment: Experiment, stage: str, status: Facts) -> dict[str, Any]:
    """Return the status of a stage with its activity; for a stage that has not started, with the planned time only."""
    facts, found = _with_logs_of_blocks(experiment, stage, status), dict[str, Any]()
    planned = planned_seconds(experiment, stage)
    if planned is not None:
        found["planned_seconds"] = round(planned, 1)
    if facts["state"] != "not started":
        found |= _times(experiment, stage) | _blocks(experiment, stage, facts) | _training(experiment, stage, facts)
    return {**found, **facts}


def planned_seconds(experiment: Experiment, stage: str) -> float | None:
    """Return the walltime of a stage that plan.json predicts; None without a plan, or one made after the stage."""
    try:
        found = read_json(experiment.layout.plan)["stages"][stage]
        return found["walltime_s"]["value"] if found["share_left"] else None
    except (StageError, KeyError, TypeError):
        return None


def speed_so_far(losses: Path) -> dict[str, Any]:
    """Return the iterations and the speed of an unfinished training; empty if there is none."""
    try:
        with losses.open(newline="") as file:
            # The row of a validation has no speed.
            last = deque((row for row in csv.DictReader(file) if row["it_per_s"]), maxlen=1)
        return {"iteration": int(last[0]["iteration"]), "it_per_s": float(last[0]["it_per_s"])} if last else {}
    except (OSError, KeyError, TypeError, ValueError):
        return {}


def _with_logs_of_blocks(experiment: Experiment, stage: str, status: Facts) -> dict[str, Any]:
    """Return the status of a stage with the names of --json for its blocks, and the logs of failed ones."""
    facts = dict(status)
    if stage not in BLOCK_STAGES or "done" not in facts or "blocks" not in facts:
        return facts
    facts["blocks_done"] = int(facts.pop("done"))
    if failures := facts.pop("failures", {}):
        listed = sorted(failures.items(), key=lambda item: int(item[0]))[:LISTED]
        facts["failures"] = {n: what + _log_of_block(experiment, stage, int(n)) for n, what in listed}
    return facts


def _log_of_block(experiment: Experiment, stage: str, block: int) -> str:
    """Return ' (log: ...)': the newest job log that names the block; empty if there is none."""
    named = re.compile(rf"\bblock {block}\b".encode())
    for log in slurm_logs(experiment, stage)[:SEARCHED_LOGS]:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LOG_TAIL_BYTES))
            if named.search(file.read()):
                return f" (log: {log})"
    return ""


def _times(experiment: Experiment, stage: str) -> dict[str, Any]:
    runs = experiment.layout.stage_runs(stage)
    lock = LockFile(runs / "lock")
    newest = newest_run(experiment, stage)
    logs = [*slurm_logs(experiment, stage)[:1], *([newest / "log.txt"] if newest else [])]
    stamps = [stamp for path in (*logs, *_signs(experiment, stage)) if (stamp := _stamp(path)) is not None]
    present = sorted((path for path in logs if path.is_file()), key=lambda path: path.stat().st_mtime)
    return {
        **({"alive": lock.live_holder() is not None} if lock.path.exists() else {}),
        **({"last_activity": max(stamps)} if stamps else {}),
        **({"log": str(present[-1])} if present else {}),
    }


def _signs(experiment: Experiment, stage: str) -> Iterator[Path]:
    """Yield the files, other than logs, that a running stage updates."""
    yield from (experiment.layout.stage_runs(stage) / FOLDER).glob("*.tsv")
    yield experiment.layout.train_dir(stage) / "loss.csv"


def _stamp(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def _blocks(experiment: Experiment, stage: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return blocks of a finished stage, attempts beyond the first, and the speed since the newest run began."""
    found: dict[str, Any] = {}
    manifest = _json(experiment.layout.manifest(stage)).get("facts", {})
    if facts["state"] == "finished" and "blocks" in manifest:
        failed = sum(f["stage"] == stage and not f["part"] for f in manifest.get(FAILED_BLOCKS, ()))
        found |= {"blocks": manifest["blocks"], "blocks_done": manifest["blocks"] - failed, "failed": failed}
    runs = experiment.layout.stage_runs(stage)
    paths = list((runs / FOLDER).glob("*.tsv"))
    if not paths or sum(path.stat().st_size for path in paths) > MAX_ATTEMPT_BYTES:
        return found
    reader = AttemptReader(runs)
    ended = reader.ended()
    found |= _retries([*ended, *reader.without_end()])
    begun = newest_run(experiment, stage)
    if begun is None or "blocks_done" not in facts or (begun / "outcome.json").exists():
        return found
    since = (begun / "config.resolved.json").stat().st_mtime
    done = sum(a.outcome == DONE and a.started >= since for a in ended)
    if done:
        rate = 60 * done / max(time.time() - since, 1e-3)
        left = (int(facts["blocks"]) - int(facts["blocks_done"])) / rate
        found |= {"blocks_per_minute": round(rate, 2), "minutes_left": round(left, 1)}
    return found


def _retries(attempts: Sequence[Attempt]) -> dict[str, Any]:
    """Return how many attempts followed others at the same block, and why: [{block, why, attempts}], newest first.

    The reason is how the attempt before ended; the process of an attempt without an end was lost.
    """
    latest: dict[tuple[str, int], Attempt] = {}
    why: dict[tuple[int, str], int] = {}
    for attempt in sorted(attempts, key=lambda a: a.started):
        if (before := latest.get((attempt.key, attempt.block))) is not None:
            place = f"worker {before.pid} on {before.host}"
            text = f"{before.error or before.outcome} in {place}" if before.outcome else f"{place} was lost"
            why[attempt.block, text] = why.pop((attempt.block, text), 0) + 1
        latest[attempt.key, attempt.block] = attempt
    reasons = [{"block": block, "why": text, "attempts": count} for (block, text), count in reversed(why.items())]
    return {"retried": sum(why.values()), **({"retries": reasons[:LISTED]} if reasons else {})}


def _training(experiment: Experiment, stage: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the iterations of a training, of how many, their speed, and the remaining minutes at this speed."""
    begun, finished = newest_run(experiment, stage), facts["state"] == "finished"
    last = speed_so_far(experiment.layout.train_dir(stage) / "loss.csv")
    known = _json(experiment.layout.manifest(stage)).get("facts", {}) if finished else facts
    done, speed = known.get("iteration") or last.get("iteration"), last.get("it_per_s") or known.get("it_per_s")
    if done is None or speed is None:
        return {}
    config = _json(begun / "config.resolved.json").get("config", {}) if begun else {}
    wanted = known.get("max_iteration") or config.get("max_iteration") or done
    found = {ITERATIONS: done, "iterations_wanted": wanted, "iterations_per_second": speed}
    if not finished and speed > 0 and wanted > done:
        ends = min(wanted / speed / 60, config.get("max_minutes") or math.inf)
        found["minutes_left"] = round(max(ends - done / speed / 60, 0), 1)
    return found


def _json(path: Path) -> dict[str, Any]:
    try:
        found = read_json(path)
    except StageError:
        return {}
    return found if isinstance(found, dict) else {}


def show_status(states: Mapping[str, Facts], console: Console, now: float | None = None) -> None:
    """Print the table (done: blocks, or iterations), then further lines for the stages that have them."""
    from rich.table import Table

    now = time.time() if now is None else now
    table = Table(box=None, pad_edge=False, header_style="bold")
    rows = [(stage, *cells(facts, now)) for stage, facts in states.items()]
    # An empty column would waste space on a narrow terminal.
    columns = [n for n in range(len(HEADS)) if n < 2 or any(row[n] for row in rows)]
    for head in (HEADS[n] for n in columns):
        table.add_column(head, no_wrap=head != "state", justify="left" if head in ("stage", "state") else "right")
    for row in rows:
        table.add_row(*(row[n] for n in columns))
    console.print(table, highlight=False)
    for stage, facts in states.items():
        for line in more_lines(stage, facts):
            console.print(line, markup=False, highlight=False, soft_wrap=True)


def cells(facts: Facts, now: float) -> tuple[str, ...]:
    """Return a row of the table, without the stage's name."""
    took, planned = facts.get("seconds"), facts.get("planned_seconds")
    left = facts.get("minutes_left")
    return (
        _state(facts, now),
        _done(facts),
        _cell(facts.get("failed")),
        _cell(facts.get("retried")),
        _rate(facts),
        duration(60 * left) if left is not None and facts["state"] != "finished" else "",
        duration(took) if took is not None else "",
        duration(planned) if planned is not None else "",
    )


def more_lines(stage: str, facts: Facts) -> Iterator[str]:
    """Yield why the stage ended, failed blocks, jobs and logs."""
    yield from (f"{stage}: {facts[why]}" for why in ("problem", "shortfall") if facts.get(why))
    if last := facts.get("last_run"):
        yield f"{stage}: {_ended(last)}"
    for retry in facts.get("retries", ()):
        again = f", {retry['attempts']} times" if retry["attempts"] > 1 else ""
        yield f"{stage}: block {retry['block']} was tried again: {retry['why']}{again}"
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


def _state(facts: Facts, now: float) -> str:
    state, last = str(facts["state"]), facts.get("last_activity")
    if state == "running or killed" and "alive" in facts:
        state = "running" if facts["alive"] else "killed"
    if state != "finished" and last is not None:
        state += f" (last sign {duration(max(round(now - last), 0))} ago)"
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


def _cell(value: Any) -> str:
    return "" if value is None else str(value)
