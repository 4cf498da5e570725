"""What every stage left about itself: its runs, its manifest, its log. Nothing here has to exist or be whole."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from lsdflow_command.attempts import AttemptReader
from lsdflow_contract.errors import Interrupted, StageError
from lsdflow_contract.experiment import STAGES, Experiment
from lsdflow_contract.files import read_json
from lsdflow_contract.hashing import hash_of
from lsdflow_contract.manifest import Manifest
from lsdflow_evaluate.report.records import (
    FAILED,
    FINISHED,
    NOT_STARTED,
    STOPPED,
    UNENDED,
    StageRecord,
    StageRun,
    Taken,
)
from lsdflow_evaluate.shown.block_maps import block_map, taken_by

LOG_LINES = 40
LOG_BYTES = 1 << 16
# Signals end a command with 128 + their number.
FIRST_SIGNAL = 128


def stages_of_mode(experiment: Experiment) -> tuple[str, ...]:
    """The stages of the experiment's chain: train-lsd is needed for acrlsd alone."""
    return tuple(stage for stage in STAGES if stage != "train-lsd" or experiment.common.mode == "acrlsd")


def stage_record(experiment: Experiment, stage: str, manifest: Manifest | None) -> StageRecord:
    """What there is of one stage."""
    folders = _run_folders(experiment, stage)
    runs = tuple(_run(stage, folder) for folder in folders)
    log = folders[-1] / "log.txt" if folders else None
    root = experiment.layout.root
    attempts = AttemptReader(experiment.layout.stage_runs(stage)).ended()
    record = StageRecord(
        stage=stage,
        state=_state(runs, manifest),
        runs=runs,
        blocks=block_map(experiment, stage, manifest, attempts),
        taken_in_blocks=taken_by(attempts),
        jobs=tuple(_jobs(root / "runs" / "submit", stage)),
        log=_tail(log).replace(str(root), ".") if log else "",
        log_path=str(log.relative_to(root)) if log else "",
        settings=tuple(_settings(manifest.config if manifest else _last_config(folders))),
    )
    return _with_manifest(record, manifest) if manifest else record


def _with_manifest(record: StageRecord, manifest: Manifest) -> StageRecord:
    if record.taken.peak_resident_bytes is None and "peak_rss_mib" in manifest.facts:
        # Runs of before resources were recorded.
        record = replace(
            record, taken_in_blocks=Taken(peak_resident_bytes=int(manifest.facts["peak_rss_mib"] * (1 << 20)))
        )
    facts = {k: v for k, v in manifest.facts.items() if isinstance(v, str | int | float) and not isinstance(v, bool)}
    told: dict[str, Any] = {
        "key": manifest.key,
        "identity": manifest.identity,
        "contract": manifest.contract,
        "config_hash": hash_of(manifest.config),
        "inputs": tuple(manifest.inputs.items()),
        "outputs": tuple(manifest.outputs.items()),
        "facts": tuple((k, f"{v:,.6g}" if isinstance(v, float) else str(v)) for k, v in facts.items()),
    }
    return replace(record, **told)


def _run_folders(experiment: Experiment, stage: str) -> list[Path]:
    folder = experiment.layout.stage_runs(stage)
    return sorted(p.parent for p in folder.glob("*/config.resolved.json")) if folder.is_dir() else []


def _run(stage: str, folder: Path) -> StageRun:
    outcome, config = _read(folder / "outcome.json"), _read(folder / "config.resolved.json")
    begun = folder / "config.resolved.json"
    error = outcome.get("error")
    code = outcome.get("exit_code")
    return StageRun(
        stage=stage,
        name=folder.name,
        started=float(outcome.get("started") or begun.stat().st_mtime),
        seconds=float(outcome["seconds"]) if "seconds" in outcome else None,
        exit_code=int(code) if code is not None else None,
        what=str(error.get("what", "")) if isinstance(error, dict) else "",
        host=str(outcome.get("host", "")),
        job=str(outcome.get("job", "")),
        command=_command(stage, config.get("overrides")),
        taken=_taken(outcome.get("resources")),
    )


def _taken(resources: Any) -> Taken:
    found = resources if isinstance(resources, dict) else {}
    return Taken(
        cpu_s=found.get("cpu_s"),
        peak_resident_bytes=found.get("peak_resident_bytes"),
        read_bytes=found.get("read_bytes"),
        written_bytes=found.get("written_bytes"),
        gpu=str(found.get("gpu", "")),
        gpu_bytes=found.get("gpu_bytes") or None,
    )


def _command(stage: str, overrides: Any) -> str:
    told = [str(o) for o in overrides] if isinstance(overrides, list) else []
    return shlex.join([stage, "run", "--experiment", "experiment.toml", *(w for o in told for w in ("--set", o))])


def _state(runs: tuple[StageRun, ...], manifest: Manifest | None) -> str:
    """As `lsdflow status` says it: the manifest first, then how the newest run ended."""
    if manifest is not None:
        return FINISHED
    if not runs:
        return NOT_STARTED
    code = runs[-1].exit_code
    if code is None:
        return UNENDED
    return STOPPED if code == Interrupted.exit_code or code >= FIRST_SIGNAL or code == 0 else FAILED


def _last_config(folders: list[Path]) -> dict[str, Any]:
    config = _read(folders[-1] / "config.resolved.json").get("config") if folders else None
    return config if isinstance(config, dict) else {}


def _settings(config: dict[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """The table as dotted keys; lists stay together."""
    for name, value in config.items():
        if isinstance(value, dict) and value:
            yield from _settings(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", json.dumps(value)


def _jobs(submissions: Path, stage: str) -> Iterator[str]:
    """Jobs of the newest submission to a cluster: role, number, time, and the script they ran."""
    tables = sorted(submissions.glob("*/jobs.tsv")) if submissions.is_dir() else []
    for line in tables[-1].read_text(encoding="utf-8").splitlines() if tables else ():
        words = line.split("\t")
        if words[0] == stage:
            script = f"runs/submit/{tables[-1].parent.name}/{stage}.sbatch"
            yield f"{' '.join(words[1:])}: {script}"


def _tail(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LOG_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(lines[-LOG_LINES:])


def _read(path: Path) -> dict[str, Any]:
    try:
        found = read_json(path)
    except StageError:
        return {}
    return found if isinstance(found, dict) else {}
