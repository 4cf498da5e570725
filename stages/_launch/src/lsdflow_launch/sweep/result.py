"""What a run of a sweep records: its claim while it is computed, and its result (result.json).

Claim: a file on shared storage, so only one process at a time, on any machine, computes a run. If two processes hold a
claim by mistake, they write identical results, because results are written only once. The claim saves the second one
the computation, also for a stage that has no lock of its own.
Result: written only by the run itself; `sweep merge` reads it.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from lsdflow_command.lock_file import EXPIRY_SECONDS, Holder, LockFile
from lsdflow_contract import CONTRACT_VERSION
from lsdflow_contract.errors import BadData, OutputConflict, StageError
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.files import read_json
from lsdflow_contract.hashing import hash_of_file
from lsdflow_contract.manifest import read_manifest, require_contract
from lsdflow_contract.model import StrictModel
from lsdflow_contract.sealing import read_sealed, write_sealed
from lsdflow_contract.software import source_revision
from lsdflow_launch.chain import stages_of

LOG = logging.getLogger("lsdflow.sweep")


class AtWorkElsewhere(OutputConflict):
    """Another process holds the claim."""


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Hold the claim of an experiment folder within the `with` block. Raises AtWorkElsewhere (73) if it is held."""
    claim = claim_of(folder)
    with claim.held(
        lambda found, age_s: _refusal(claim, found, age_s),
        lost=lambda: LOG.warning("another process took over: %s", claim.path),
    ):
        yield


def claim_of(folder: Path) -> LockFile:
    """Return the claim file of an experiment folder."""
    return LockFile(folder / "runs" / "sweep" / "claim")


def _refusal(claim: LockFile, found: Holder, age_s: float) -> OutputConflict:
    return AtWorkElsewhere(
        "another process works on this run",
        where=claim.path,
        found=f"{found.host}, process {found.pid}; last sign of life {age_s:.0f} s ago",
        fix=f"wait until it ends; if it is dead, run again in {EXPIRY_SECONDS:.0f} s",
    )


class RunResult(StrictModel):
    """The result of a run."""

    contract: str = CONTRACT_VERSION
    run: str
    at: dict[str, str] = Field(description="its labels on the axes")
    status: Literal["done", "failed"]
    exit_code: int
    failed_stage: str = ""
    error: dict[str, Any] = Field(default_factory=dict, description="the error of the failed stage, as it reported it")
    scores: dict[str, float] = Field(default_factory=dict, description="numbers of report/scores.json")
    chosen: dict[str, str] = Field(default_factory=dict, description="words of it: the merge function")
    seconds: dict[str, float] = Field(default_factory=dict, description="run time of every stage")
    shared: tuple[str, ...] = Field(default=(), description="stages made once for several runs, and linked")
    identities: dict[str, str] = Field(default_factory=dict, description="of the result of every stage")
    writers: dict[str, dict[str, str]] = Field(default_factory=dict, description="version and image of every stage")
    experiment_hash: str = Field(default="", description="sha256 of the run's experiment file")
    host: str = ""
    job: str = ""
    revision: str = ""
    ended: float = Field(default=0.0, description="seconds since 1970, UTC")


def write_result(
    path: Path, experiment: Experiment, at: Mapping[str, str], ended: Mapping[str, Any], shared: tuple[str, ...]
) -> RunResult:
    """Collect and write the result of a run that ended; `ended`: exit_code, failed_stage and error of the chain."""
    finished = {}
    for stage in stages_of(experiment):
        if experiment.layout.manifest(stage).exists():
            finished[stage] = read_manifest(experiment.layout, stage)
    done = ended["exit_code"] == 0
    scores = _scores(experiment) if done else {}
    result = RunResult(
        run=experiment.path.parent.name,
        at=dict(at),
        status="done" if done else "failed",
        **ended,
        scores={k: float(v) for k, v in scores.items() if isinstance(v, int | float) and not isinstance(v, bool)},
        chosen={k: v for k, v in scores.items() if isinstance(v, str)},
        seconds={stage: float(manifest.facts.get("seconds", 0.0)) for stage, manifest in finished.items()},
        shared=tuple(stage for stage in shared if stage in finished),
        identities={stage: manifest.identity for stage, manifest in finished.items()},
        writers={stage: manifest.writer.model_dump() for stage, manifest in finished.items()},
        experiment_hash=hash_of_file(experiment.path),
        host=socket.gethostname(),
        job=os.environ.get("SLURM_JOB_ID", ""),
        revision=source_revision(),
        ended=time.time(),
    )
    write_sealed(path, json.loads(result.model_dump_json()))
    return result


def read_result(path: Path) -> RunResult | None:
    """Return a run's result; None if it has none. Raises BadData (65) if it is damaged, ContractMismatch (76)."""
    if not path.is_file():
        return None
    fix = "remove it and run the sweep"
    raw = read_sealed(path, fix)
    require_contract(str(raw.get("contract", "")), path)
    try:
        return RunResult.model_validate(raw)
    except ValidationError as error:
        raise BadData("damaged result of a run", where=path, found=error, fix=fix) from error


def last_error(experiment: Experiment, stage: str) -> dict[str, Any]:
    """Return the error that the stage's newest run reported."""
    outcomes = sorted(experiment.layout.stage_runs(stage).glob("*/outcome.json"))
    try:
        return dict(read_json(outcomes[-1]).get("error") or {}) if outcomes else {}
    except StageError as error:
        return error.as_dict()


def _scores(experiment: Experiment) -> dict[str, Any]:
    path = experiment.layout.report / "scores.json"
    return read_sealed(path, "run: evaluate run") if path.exists() else {}
