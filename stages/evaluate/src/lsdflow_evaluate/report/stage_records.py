"""What each stage has left on disk: its runs, its log, its settings, and the state of its blocks.

Nothing has to exist or to be whole.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsdflow_command.attempts import DONE, KEY_LETTERS, Attempt, AttemptReader
from lsdflow_contract.errors import Interrupted, StageError
from lsdflow_contract.experiment import STAGES
from lsdflow_contract.files import read_json
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import Manifest, read_manifest
from lsdflow_contract.trainings import shortfall
from lsdflow_evaluate.report.data import (
    FAILED,
    FINISHED,
    NOT_STARTED,
    SHORT,
    STOPPED,
    UNENDED,
    BlockState,
    Resources,
    StageBlocks,
    StageRecord,
    StageRun,
)
from lsdflow_runtime.blocks import BlockPlan
from lsdflow_runtime.store.done_marks import BlockStore
from lsdflow_runtime.store.stores import FilesStore, Store

# So many letters of the key of a volume begin the keys of the passes that write it.
VOLUME_LETTERS = 8
LOG_LINES = 40
LOG_BYTES = 1 << 16
# Signals end a command with 128 + their number.
FIRST_SIGNAL = 128
# Of more blocks than these, the times are those of an even sample, and there is no map.
MOST_RECORDS = 2000
MOST_BLOCKS = 4_000_000


@dataclass(frozen=True)
class Source:
    """Where the report is read from: the experiment's name, stages, folders and store, and the grid of a pass by its
    stage and key."""

    name: str
    stages: tuple[str, ...]
    layout: ExperimentLayout
    store: Store
    grid_of: Callable[[str, str], BlockPlan | None]


def finished_stages(layout: ExperimentLayout) -> dict[str, Manifest]:
    """Manifests of the stages that have finished, as far as they can be read."""
    found = {}
    for stage in STAGES:
        if layout.manifest(stage).exists():
            try:
                found[stage] = read_manifest(layout, stage)
            except StageError:
                continue
    return found


def attempts_of(layout: ExperimentLayout, stage: str) -> list[Attempt]:
    """The attempts at blocks of a stage that have ended."""
    return AttemptReader(layout.stage_runs(stage)).ended()


def stage_records(
    source: Source, manifests: Mapping[str, Manifest], attempts: Mapping[str, Sequence[Attempt]], failing: bool
) -> tuple[StageRecord, ...]:
    """Every stage of the chain. The run that writes this very page has no outcome yet: it ends with the page."""
    records = [
        stage_record(source.layout, stage, manifests.get(stage), attempts.get(stage, ())) for stage in source.stages
    ]
    last = records[-1].last
    if last is None or last.exit_code is not None or not last.name.endswith(f"-{os.getpid()}"):
        return tuple(records)
    ending = replace(last, seconds=time.time() - last.started, exit_code=int(failing))
    state = FAILED if failing else FINISHED
    return (*records[:-1], replace(records[-1], runs=(*records[-1].runs[:-1], ending), state=state))


def stage_record(
    layout: ExperimentLayout, stage: str, manifest: Manifest | None, attempts: Sequence[Attempt] = ()
) -> StageRecord:
    """What there is of one stage; `attempts` at its blocks."""
    runs_folder = layout.stage_runs(stage)
    folders = sorted(p.parent for p in runs_folder.glob("*/config.resolved.json")) if runs_folder.is_dir() else []
    runs = tuple(_run(stage, folder) for folder in folders)
    log = folders[-1] / "log.txt" if folders else None
    return StageRecord(
        stage=stage,
        state=_state(runs, manifest),
        runs=runs,
        manifest=manifest,
        settings=tuple(_settings(manifest.config if manifest else _last_config(folders))),
        in_blocks=Resources.sum([_resources(asdict(attempt)) for attempt in attempts]),
        jobs=tuple(_jobs(layout.root / "runs" / "submit", stage)),
        log=_tail(log).replace(str(layout.root), ".") if log else "",
        log_path=str(log.relative_to(layout.root)) if log else "",
    )


def last_error(layout: ExperimentLayout, stage: str) -> dict[str, Any]:
    """The error (StageError.as_dict) in which the last run of a stage ended; empty if it did not."""
    folder = layout.stage_runs(stage)
    outcomes = sorted(folder.glob("*/outcome.json")) if folder.is_dir() else []
    error = _read(outcomes[-1]).get("error") if outcomes else None
    return error if isinstance(error, dict) else {}


def passes_of_stage(source: Source, stage: str, manifest: Manifest | None) -> dict[str, BlockStore]:
    """Keys and done marks of the passes whose blocks are on the page: one, except for the volumes of prepare."""
    if stage == "prepare" and manifest is not None:
        # Its marks are files, also with a MongoDB; the keys of the passes begin like that of their volume.
        store = FilesStore(source.layout.store)
        volumes = tuple(key[:VOLUME_LETTERS] for key in manifest.inputs.values())
        return {key: store.blocks(stage, key) for key in store.keys(stage) if key.startswith(volumes)}
    keys = source.store.keys(stage)
    key = select_pass(source, stage, manifest, keys) if keys else ""
    return {key: source.store.blocks(stage, key)} if key else {}


def select_pass(source: Source, stage: str, manifest: Manifest | None, keys: Sequence[str]) -> str:
    """The key of the pass on the page: the one that the manifest names, or that has the manifest's number of blocks
    (evaluate has several passes, and names none); else the newest. Empty for a manifest without a number of blocks."""
    if manifest is None or manifest.key in keys:
        return manifest.key if manifest is not None else keys[-1]
    grids = {key: source.grid_of(stage, key) for key in keys}
    wanted = manifest.facts.get("blocks")
    if wanted is None:
        return ""
    fitting = [key for key, grid in grids.items() if grid is not None and math.prod(grid.grid_shape) == wanted]
    return fitting[-1] if fitting else keys[-1]


def stage_blocks(
    source: Source, stage: str, manifest: Manifest | None, attempts: Sequence[Attempt] = ()
) -> StageBlocks | None:
    """The blocks of the finished pass, or else of the newest; of several passes their sum, without a map. None if the
    stage has no blocks.

    Raises StageError for a mark that cannot be read.
    """
    passes = passes_of_stage(source, stage, manifest)
    found = [_blocks_of(source, stage, key, marks, manifest, attempts) for key, marks in passes.items()]
    if len(found) < 2:
        return found[0] if found else None
    done, failed, total = (sum(getattr(blocks, name) for blocks in found) for name in ("done", "failed", "total"))
    return StageBlocks(done, failed, total, np.concatenate([blocks.seconds for blocks in found]))


def _blocks_of(
    source: Source,
    stage: str,
    key: str,
    marks: BlockStore,
    manifest: Manifest | None,
    attempts: Sequence[Attempt],
) -> StageBlocks:
    done, failed = marks.done(), marks.failed()
    sample = sorted(done)[:: max(1, len(done) // MOST_RECORDS)]
    seconds = {number: float(marks.record(number).get("seconds", math.nan)) for number in sample}
    planned = int(manifest.facts.get("blocks", 0)) if manifest else 0
    known = np.array(list(seconds.values()), np.float64)
    total = max(len(done) + len(failed), planned)
    found = StageBlocks(len(done), len(failed), total, known[np.isfinite(known)])
    grid = source.grid_of(stage, key)
    if grid is None or math.prod(grid.grid_shape) > MOST_BLOCKS:
        return found
    again = {a.block for a in attempts if a.key == key[:KEY_LETTERS] and a.outcome != DONE}
    return replace(found, states=states_of(grid, done, failed, again), block_shape_vox=grid.write_shape_vox)


def states_of(grid: BlockPlan, done: Iterable[int], failed: Iterable[int], again: Iterable[int]) -> NDArray[np.uint8]:
    """States (z, y, x) from block numbers (row-major); `again`: an attempt at the block has failed."""
    blocks = math.prod(grid.grid_shape)
    states = np.full(blocks, BlockState.MISSING, np.uint8)
    states[_inside(done, blocks)] = BlockState.DONE
    tried = _inside(again, blocks)
    states[tried] = np.where(states[tried] == BlockState.DONE, BlockState.RETRIED, states[tried])
    states[_inside(failed, blocks)] = BlockState.FAILED
    return states.reshape(grid.grid_shape)


def _inside(numbers: Iterable[int], blocks: int) -> NDArray[np.int64]:
    found = np.fromiter(numbers, np.int64)
    return found[found < blocks]


def _run(stage: str, folder: Path) -> StageRun:
    begun = folder / "config.resolved.json"
    outcome, config = _read(folder / "outcome.json"), _read(begun)
    error, code, resources = outcome.get("error"), outcome.get("exit_code"), outcome.get("resources")
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
        resources=_resources(resources if isinstance(resources, dict) else {}),
    )


def _resources(found: Mapping[str, Any]) -> Resources:
    return Resources(
        cpu_s=found.get("cpu_s"),
        peak_resident_bytes=found.get("peak_resident_bytes"),
        read_bytes=found.get("read_bytes"),
        written_bytes=found.get("written_bytes"),
        gpu=str(found.get("gpu", "")),
        gpu_bytes=found.get("gpu_bytes") or None,
    )


def _command(stage: str, overrides: Any) -> str:
    given = [str(o) for o in overrides] if isinstance(overrides, list) else []
    return shlex.join([stage, "run", "--experiment", "experiment.toml", *(w for o in given for w in ("--set", o))])


def _state(runs: tuple[StageRun, ...], manifest: Manifest | None) -> str:
    """As `lsdflow status` reports it: the manifest first, then how the newest run ended."""
    if manifest is not None:
        return SHORT if shortfall(manifest.facts) else FINISHED
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


def _jobs(submissions: Path, stage: str) -> Iterator[tuple[str, str]]:
    """Jobs of the newest submission to a cluster: role, number and time; and the script they ran."""
    tables = sorted(submissions.glob("*/jobs.tsv")) if submissions.is_dir() else []
    for line in tables[-1].read_text(encoding="utf-8").splitlines() if tables else ():
        words = line.split("\t")
        if words[0] == stage:
            yield " ".join(words[1:]), f"runs/submit/{tables[-1].parent.name}/{stage}.sbatch"


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
