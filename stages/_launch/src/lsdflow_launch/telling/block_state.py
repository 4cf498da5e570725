"""What `lsdflow status` reports about the blocks of a stage: how many are done, which failed and why.

The stage counts them itself (`<stage> status`), in any store; the logs of its jobs are in runs/<stage>/.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lsdflow_contract.experiment import Experiment

LISTED = 10
LOG_TAIL_BYTES = 2**20
SEARCHED_LOGS = 50


def with_blocks(experiment: Experiment, stage: str, told: Mapping[str, Any]) -> dict[str, Any]:
    """Return the status of a stage, with the logs of failed blocks."""
    facts = dict(told)
    if "done" not in facts or "blocks" not in facts:
        return facts
    facts["blocks_done"] = int(facts.pop("done"))
    failures = facts.pop("failures", {})
    if failures:
        listed = sorted(failures.items(), key=lambda item: int(item[0]))[:LISTED]
        facts["failures"] = {n: what + _log_of_block(experiment, stage, int(n)) for n, what in listed}
    return facts


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


def slurm_logs(experiment: Experiment, stage: str) -> list[Path]:
    """Return the logs of a stage's jobs, the newest first."""
    logs = (experiment.layout.stage_runs(stage) / "slurm").glob("*.log")
    return sorted(logs, key=lambda p: p.stat().st_mtime, reverse=True)


def _log_of_block(experiment: Experiment, stage: str, block: int) -> str:
    """Return ' (log: ...)': the newest job log that names the block; empty if there is none."""
    named = re.compile(rf"\bblock {block}\b".encode())
    for log in slurm_logs(experiment, stage)[:SEARCHED_LOGS]:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LOG_TAIL_BYTES))
            if named.search(file.read()):
                return f" (log: {log})"
    return ""
