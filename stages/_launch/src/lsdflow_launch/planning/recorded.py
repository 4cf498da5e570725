"""The recorded run: a measured run of a whole chain, with its origin, for plans of experiments that have not run.

recorded_run.json is written by `python benchmarks/record_run.py EXPERIMENT "WHERE"` from a finished experiment.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from importlib.resources import files
from typing import Any

from lsdflow_launch.planning.attempts_taken import Taken
from lsdflow_launch.planning.disk_use import DiskUse
from lsdflow_launch.planning.evidence import Made

FILE = "recorded_run.json"
NAME = "the recorded run"


def origin_of_recorded_run() -> str:
    """Return what was run, where and when."""
    return str(_content()["origin"])


def recorded_run() -> dict[str, Made]:
    """Return the use of each stage in the recorded run."""
    return {
        stage: Made(
            **{
                **made,
                "disk": DiskUse(**made["disk"]),
                "attempts": {key: Taken(**taken) for key, taken in made["attempts"].items()},
            }
        )
        for stage, made in _content()["stages"].items()
    }


def text_of(run: Mapping[str, Made], origin: str) -> str:
    """Return the text of recorded_run.json; `origin`: what was run, where and when."""
    stages = {stage: asdict(replace(made, where=NAME)) for stage, made in run.items()}
    return json.dumps({"origin": origin, "stages": stages}, indent=1, sort_keys=True) + "\n"


def _content() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(files("lsdflow_launch.planning").joinpath(FILE).read_text(encoding="utf-8"))
    return content
