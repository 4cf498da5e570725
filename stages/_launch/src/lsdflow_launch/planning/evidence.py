"""Evidence about a stage: finished blocks of this experiment, a measured block, or another experiment.

1. here      finished blocks (`<stage> plan`: taken) and bytes on the disk
2. measured  a block, or some training steps, computed into a temporary folder (`<stage> measure`)
3. like      a finished experiment that the user names, or the recorded one, scaled to this experiment

The recorded run is a measured run of a whole chain, with its origin, for experiments that have not run.
`python benchmarks/record_run.py EXPERIMENT "WHERE"` writes recorded_run.json from a finished experiment.
"""

from __future__ import annotations

import csv
import json
import logging
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Self

from lsdflow_command.attempts import DONE, FOLDER, KEY_LETTERS, AttemptReader
from lsdflow_contract.errors import MissingInput, StageError, fix_of
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.files import read_json, storage_errors
from lsdflow_contract.manifest import read_manifest
from lsdflow_launch.chain import BLOCK_STAGES, stage_arguments
from lsdflow_launch.commands import Ask
from lsdflow_launch.planning.resources import DiskUse, disk_use, result_folders

# The attempts at 10^6 blocks fill some 100 MB, which would take too long to read.
MAX_ATTEMPT_BYTES = 50_000_000
LOG = logging.getLogger("lsdflow.plan")
Facts = dict[str, Any]
FILE = "recorded_run.json"
RECORDED_RUN = "the recorded run"


@dataclass(frozen=True)
class Quantity:
    """A number. value: None if not known. source: origin, or why not known. at_least: the value is a lower bound."""

    value: float | None
    source: str
    at_least: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return the number as stored in plan.json."""
        return {"value": self.value, "from": self.source, **({"at_least": True} if self.at_least else {})}

    @classmethod
    def of_dict(cls, stored: dict[str, Any]) -> Self:
        """Read the number from its form in plan.json."""
        return cls(stored.get("value"), str(stored.get("from", "")), bool(stored.get("at_least", False)))

    def times(self, factor: float, why: str = "") -> Quantity:
        """Return the value times a factor; `why` is added to the source."""
        if self.value is None:
            return self
        return replace(self, value=self.value * factor, source=f"{self.source}{why}")


def unknown(why: str) -> Quantity:
    """Return a number that is not known."""
    return Quantity(None, why)


def first_known(found: Iterable[Quantity], why_not: str) -> Quantity:
    """Return the first number that is known; if there is none, an unknown one with all reasons."""
    listed = list(found)
    for quantity in listed:
        if quantity.value is not None:
            return quantity
    reasons = dict.fromkeys(q.source for q in listed if q.source)
    return unknown("; ".join(reasons) or why_not)


def total(parts: Iterable[Quantity]) -> Quantity:
    """Return the sum; `at_least` if a part is not known, unknown if no part is known."""
    listed = list(parts)
    values = [q.value for q in listed if q.value is not None]
    sources = "; ".join(dict.fromkeys(q.source for q in listed))
    if not values:
        return unknown(sources)
    return Quantity(sum(values), sources, len(values) < len(listed) or any(q.at_least for q in listed))


@dataclass(frozen=True)
class AttemptUse:
    """Of the successful attempts: their number, the mean bytes read by each, and the largest GPU memory of one."""

    blocks: int
    read_bytes: float
    gpu_bytes: int


def use_of_attempts(runs: Path) -> dict[str, AttemptUse]:
    """Return the use of each pass by the first letters of its key; empty without attempts, or if they are too many."""
    paths = list((runs / FOLDER).glob("*.tsv"))
    if sum(path.stat().st_size for path in paths) > MAX_ATTEMPT_BYTES:
        return {}
    done = [attempt for attempt in AttemptReader(runs).ended() if attempt.outcome == DONE]
    found = {}
    for key in dict.fromkeys(attempt.key for attempt in done):
        of_pass = [attempt for attempt in done if attempt.key == key]
        mean = sum(attempt.read_bytes for attempt in of_pass) / len(of_pass)
        found[key] = AttemptUse(len(of_pass), mean, max(attempt.gpu_bytes for attempt in of_pass))
    return found


def of_key(found: dict[str, AttemptUse], key: str) -> AttemptUse | None:
    """Return the use of the pass with this key; None if it is not known."""
    return found.get(key[:KEY_LETTERS])


@dataclass(frozen=True)
class StageRecord:
    """One stage of an experiment: its plan with the use of finished blocks, and the files on the disk."""

    facts: Facts
    disk: DiskUse
    manifest: Facts = field(default_factory=dict)
    seconds: float | None = None
    where: str = "here"
    finished: bool = False
    workers: int = 1
    attempts: dict[str, AttemptUse] = field(default_factory=dict)


@dataclass(frozen=True)
class Evidence:
    """All evidence about one stage. `measured` and `like` are empty where there is none.

    like: the stage in other experiments, the best comparison first. has_gpu: the workers will have GPUs.
    """

    here: StageRecord
    measured: Facts = field(default_factory=dict)
    like: tuple[StageRecord, ...] = ()
    has_gpu: bool = False


def record_of(experiment: Experiment, stage: str, facts: Facts, where: str = "here") -> StageRecord:
    """Return what an experiment already has of a stage."""
    finished = True
    try:
        manifest = read_manifest(experiment.layout, stage).facts
    except StageError:
        manifest, finished = speed_so_far(experiment.layout.train_dir(stage) / "loss.csv"), False
    disk, seconds = disk_use(result_folders(experiment.layout, stage)), seconds_of_runs(experiment, stage)
    workers = 1 if experiment.compute.runner == "serial" else experiment.compute.workers
    attempts = use_of_attempts(experiment.layout.stage_runs(stage))
    return StageRecord(facts, disk, manifest, seconds, where, finished, workers, attempts)


def seconds_of_runs(experiment: Experiment, stage: str) -> float | None:
    """Return the seconds of all ended runs of a stage, from their outcomes; None if there is none."""
    found = [read_json(path) for path in experiment.layout.stage_runs(stage).glob("*/outcome.json")]
    seconds = [float(outcome.get("seconds", 0.0)) for outcome in found]
    return sum(seconds) if seconds else None


def speed_so_far(losses: Path) -> Facts:
    """Return the iterations and the speed of an unfinished training; empty if there is none."""
    try:
        with losses.open(newline="") as file:
            # The row of a validation has no speed.
            last = deque((row for row in csv.DictReader(file) if row["it_per_s"]), maxlen=1)
        return {"iteration": int(last[0]["iteration"]), "it_per_s": float(last[0]["it_per_s"])} if last else {}
    except (OSError, KeyError, TypeError, ValueError):
        return {}


def mean_use_of_blocks(record: StageRecord) -> Facts:
    """Return the mean use of the blocks of a finished stage with one pass, from its manifest; otherwise empty."""
    manifest = record.manifest
    if not record.finished or "seconds_in_blocks" not in manifest or "passes" in record.facts:
        return {}
    blocks = int(manifest["blocks"])
    per_block = manifest["seconds_in_blocks"] / blocks
    return {"records": blocks, "seconds_per_block": per_block, "peak_rss_mib": manifest["peak_rss_mib"]}


def seconds_outside_blocks(record: StageRecord) -> float | None:
    """Return the seconds of a finished stage outside its blocks: start, tables, scores, a report.

    The number of workers is read from the experiment file. None if the stage has not finished.
    """
    passes = [(p["taken"], int(p["blocks"])) for p in passes_of(record.facts).values() if p.get("taken")]
    mean_use = mean_use_of_blocks(record)
    if not passes and mean_use:
        passes = [(mean_use, int(mean_use["records"]))]
    if not record.finished or record.seconds is None or not passes:
        return None
    in_blocks: float = sum(use["seconds_per_block"] * blocks / min(record.workers, blocks) for use, blocks in passes)
    return max(record.seconds - in_blocks, 0.0)


def passes_of(facts: Mapping[str, Any]) -> dict[str, Facts]:
    """Return the passes of a stage's plan by name; the pass of a stage with one pass has the name ""."""
    passes: dict[str, Facts] = facts.get("passes") or {"": dict(facts)}
    return passes


def measure(experiment: Experiment, stages: Sequence[str], ask: Ask) -> dict[str, Facts]:
    """Measure a block or some steps of each stage, one stage after another, in a temporary folder beside the results.

    For a stage that cannot run yet, the result is {"not known": why}.
    """
    with storage_errors(experiment.layout.root):
        folder = Path(tempfile.mkdtemp(prefix=".measure-", dir=experiment.layout.root))
    try:
        return {stage: _measured(experiment, stage, folder, ask) for stage in stages}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _measured(experiment: Experiment, stage: str, folder: Path, ask: Ask) -> Facts:
    LOG.info("%s: %s measured", stage, "a block is" if stage in BLOCK_STAGES else "some steps are")
    started = time.monotonic()
    try:
        answer = ask(stage, [*stage_arguments("measure", experiment), "--into", str(folder / stage)])
    except StageError as error:
        answer = error.as_dict()
    seconds = time.monotonic() - started
    shutil.rmtree(folder / stage, ignore_errors=True)
    if "exit_code" in answer:
        return {"not known": _why_not(answer)}
    # Starting the command, opening inputs and loading networks happen once, for any number of blocks.
    to_start = seconds - answer["seconds"] - answer.get("seconds_of_first_block", 0.0)
    return {**answer, "seconds_to_start": max(to_start, 0.0)}


def _why_not(error: Mapping[str, Any]) -> str:
    """Return the reason of a failed measurement; with a fix, unless a missing input will be made by the chain."""
    if error["exit_code"] == MissingInput.exit_code:
        return f"nothing can be measured yet: {error['what']}"
    return f"not measured: {error['what']}" + (f" ({fix})" if (fix := fix_of(error)) else "")


def require_finished_something(like: Experiment, records: Mapping[str, StageRecord]) -> None:
    """Raise MissingInput (66) for an experiment of which no stage has finished."""
    if not any(m.finished for m in records.values()):
        raise MissingInput(
            "no stage of that experiment has finished", where=like.layout.root, fix="name one that was run with --like"
        )


def origin_of_recorded_run() -> str:
    """Return what was run, where and when."""
    return str(_recorded_content()["origin"])


def recorded_run() -> dict[str, StageRecord]:
    """Return the use of each stage in the recorded run."""
    return {
        stage: StageRecord(
            **{
                **record,
                "disk": DiskUse(**record["disk"]),
                "attempts": {key: AttemptUse(**use) for key, use in record["attempts"].items()},
            }
        )
        for stage, record in _recorded_content()["stages"].items()
    }


def text_of(run: Mapping[str, StageRecord], origin: str) -> str:
    """Return the text of recorded_run.json; `origin`: what was run, where and when."""
    stages = {stage: asdict(replace(record, where=RECORDED_RUN)) for stage, record in run.items()}
    return json.dumps({"origin": origin, "stages": stages}, indent=1, sort_keys=True) + "\n"


def _recorded_content() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(files("lsdflow_launch.planning").joinpath(FILE).read_text(encoding="utf-8"))
    return content
