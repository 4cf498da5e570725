"""All checks of the doctor. Those that load libraries run last, as they would slow down earlier measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lsdflow_contract.errors import MissingInput, StageError
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_launch.doctor.containers import container_findings
from lsdflow_launch.doctor.finding import Finding, fail
from lsdflow_launch.doctor.folder import folder_findings
from lsdflow_launch.doctor.gpu import gpu_findings
from lsdflow_launch.doctor.machine import commands, machine
from lsdflow_launch.doctor.scheduler import scheduler_findings
from lsdflow_launch.doctor.store import store_findings

Check = Callable[[], Iterator[Finding]]


def findings(folder: Path) -> list[Finding]:
    """Return the findings for the folder of an existing or future experiment."""
    experiment, problems = _experiment(folder)
    quick: list[Check] = [
        machine,
        lambda: folder_findings(folder),
        container_findings,
        lambda: scheduler_findings(experiment),
    ]
    slow: list[Check] = [gpu_findings, lambda: store_findings(experiment), commands]
    return [*problems, *_side_by_side(quick), *_side_by_side(slow)]


def _side_by_side(checks: list[Check]) -> list[Finding]:
    with ThreadPoolExecutor(len(checks)) as pool:
        return [line for lines in pool.map(lambda check: list(check()), checks) for line in lines]


def _experiment(folder: Path) -> tuple[Experiment | None, list[Finding]]:
    try:
        return load_experiment(folder), []
    except MissingInput:
        return None, []
    except StageError as error:
        return None, [fail("experiment file", f"{error.where}: {error.what}", error.fix or "lsdflow validate DIR")]
