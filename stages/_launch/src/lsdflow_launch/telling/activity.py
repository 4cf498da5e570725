"""What the files of a stage's runs show: whether it is alive, its speed, the retries of blocks, the newest log.

They are added to `lsdflow status` of a stage; all times are seconds since 1970.
"""

from __future__ import annotations

import csv
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lsdflow_command.attempts import DONE, FOLDER, AttemptReader
from lsdflow_command.lock_file import LockFile
from lsdflow_contract.errors import StageError
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.failed_blocks import FAILED_BLOCKS
from lsdflow_contract.files import read_json
from lsdflow_launch.planning.attempts_taken import MOST_BYTES
from lsdflow_launch.planning.stored import planned_seconds
from lsdflow_launch.telling.block_state import slurm_logs


def with_activity(experiment: Experiment, stage: str, told: Mapping[str, Any]) -> dict[str, Any]:
    """Return the status of a stage with its activity; for a stage that has not started, with the planned time only."""
    facts, found = dict(told), dict[str, Any]()
    planned = planned_seconds(experiment, stage)
    if planned is not None:
        found["planned_seconds"] = round(planned, 1)
    if facts["state"] != "not started":
        found |= _times(experiment, stage) | _blocks(experiment, stage, facts) | _training(experiment, stage, facts)
    return {**found, **facts}


def begun_last(experiment: Experiment, stage: str) -> Path | None:
    """Return the folder of the run that began last, whether it has ended or not."""
    found = experiment.layout.stage_runs(stage).glob("*/config.resolved.json")
    return max((path.parent for path in found), key=lambda folder: folder.name, default=None)


def _times(experiment: Experiment, stage: str) -> dict[str, Any]:
    runs = experiment.layout.stage_runs(stage)
    lock = LockFile(runs / "lock")
    newest = begun_last(experiment, stage)
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
    if not paths or sum(path.stat().st_size for path in paths) > MOST_BYTES:
        return found
    reader = AttemptReader(runs)
    ended = reader.ended()
    tries = Counter((a.key, a.block) for a in (*ended, *reader.without_end()))
    found["retried"] = sum(count - 1 for count in tries.values())
    begun = begun_last(experiment, stage)
    if begun is None or "blocks_done" not in facts or (begun / "outcome.json").exists():
        return found
    since = (begun / "config.resolved.json").stat().st_mtime
    done = sum(a.outcome == DONE and a.started >= since for a in ended)
    if done:
        rate = 60 * done / max(time.time() - since, 1e-3)
        left = (int(facts["blocks"]) - int(facts["blocks_done"])) / rate
        found |= {"blocks_per_minute": round(rate, 2), "minutes_left": round(left, 1)}
    return found


def _training(experiment: Experiment, stage: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the iterations of a training, their speed, and the remaining minutes at this speed."""
    begun = begun_last(experiment, stage)
    try:
        with (experiment.layout.train_dir(stage) / "loss.csv").open(newline="") as file:
            (last,) = deque(csv.DictReader(file), maxlen=1)
        done, speed = int(last["iteration"]), float(last["it_per_s"])
    except (OSError, KeyError, TypeError, ValueError):
        return {}
    config = _json(begun / "config.resolved.json").get("config", {}) if begun else {}
    wanted = config.get("max_iteration") or done
    found = {"iterations_done": done, "iterations_wanted": wanted, "iterations_per_second": speed}
    if facts["state"] != "finished" and speed > 0 and config.get("max_iteration"):
        found["minutes_left"] = round(max(wanted - done, 0) / speed / 60, 1)
    return found


def _json(path: Path) -> dict[str, Any]:
    try:
        found = read_json(path)
    except StageError:
        return {}
    return found if isinstance(found, dict) else {}
