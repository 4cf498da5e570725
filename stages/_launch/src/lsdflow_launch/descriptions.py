"""Plan and check stages whose inputs do not exist yet, with descriptions of these inputs.

    experiment            descriptions (a temporary folder)
    prepare   finished -> link to its volumes
    train-lsd             bundle without weights          <- train-lsd plan --descriptions FOLDER
    predict               arrays without voxels           <- predict plan --descriptions FOLDER
    ...

Every stage reads there what earlier stages wrote or described, plans or validates as usual, and writes its own
description.
"""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from lsdflow_command.machine import available_cores
from lsdflow_command.scratch import scratch_folder
from lsdflow_contract.errors import MissingInput, StageError
from lsdflow_contract.experiment import TRAININGS, Experiment
from lsdflow_contract.files import read_json, storage_errors, write_json
from lsdflow_contract.geometry import Vox3
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import read_manifest
from lsdflow_contract.sealing import seal_array
from lsdflow_launch.chain import stage_arguments, stages_of
from lsdflow_launch.commands import Ask, ask_stage
from lsdflow_launch.disk import result_folders

MISSING = {"exit_code": MissingInput.exit_code}


@contextmanager
def descriptions_of(experiment: Experiment, finished: Sequence[str], ask: Ask) -> Iterator[ExperimentLayout]:
    """Yield a folder with links to the results of finished stages; it is removed at the end.

    It is a temporary folder; for stages that run in containers it is inside the experiment, where they can read it.
    """
    root = experiment.layout.root
    parent = Path(tempfile.gettempdir()) if ask is ask_stage else root
    with ExitStack() as stack:
        with storage_errors(parent):
            folder = stack.enter_context(scratch_folder(parent, "lsdflow-descriptions"))
        layout = ExperimentLayout(folder)
        for stage in finished:
            _link_results(experiment, stage, layout)
        if experiment.layout.store.exists():
            layout.store.symlink_to(experiment.layout.store.absolute())
        yield layout


def finished_stages(experiment: Experiment) -> list[str]:
    """Return the stages whose results are used: all before the first unfinished one, and trained networks."""
    found: list[str] = []
    complete = True
    for stage in stages_of(experiment):
        done = experiment.layout.manifest(stage).exists()
        complete = complete and done
        if complete or (done and stage in TRAININGS):
            found.append(stage)
    return found


def stages_to_ask(experiment: Experiment, finished: Sequence[str]) -> list[str]:
    """Return the stages that have results or inputs; the others depend on the first unfinished stage."""
    stages = stages_of(experiment)
    first = next((stage for stage in stages if stage not in finished), None)
    return [stage for stage in stages if stage in finished or stage == first or is_begun(experiment, stage)]


def is_begun(experiment: Experiment, stage: str) -> bool:
    """Return True if a stage has written something, so part of the disk space that it needs is already used."""
    return any(folder.exists() for folder in result_folders(experiment.layout, stage))


def ask_described(experiment: Experiment, verb: str, stage: str, layout: ExperimentLayout, ask: Ask) -> Any:
    """Run a stage command with the folder of descriptions; the answer has the experiment's own paths."""
    answer = ask(stage, [*stage_arguments(verb, experiment), "--descriptions", str(layout.root)])
    return json.loads(json.dumps(answer).replace(str(layout.root), str(experiment.layout.root)))


def resize_target(layout: ExperimentLayout, planned: dict[str, Any], shape_vox: Vox3) -> dict[str, Any]:
    """Set the shape of the described target; return the plan of prepare for this target only."""
    for path in layout.target_volume.glob("**/.zarray"):
        write_json(path, {**read_json(path), "shape": list(shape_vox)})
        seal_array(path.parent)
    target = planned["target"]
    scale = math.prod(shape_vox) / math.prod(target["shape_vox"])
    scaled = {name: target[name] * scale for name in ("bytes_expected", "blocks") if name in target}
    return {"target": {**target, "shape_vox": shape_vox, **scaled}}


def plans_of(experiment: Experiment, ask: Ask, target_shape: Vox3 | None = None) -> dict[str, dict[str, Any]]:
    """Return the plan of each stage; a stage whose inputs do not exist yet plans from descriptions of them.

    target_shape: plan for a target of this shape instead (voxels, z, y, x), as if only the networks existed.
    """
    stages, finished = stages_of(experiment), finished_stages(experiment)
    if target_shape is not None:
        finished = [stage for stage in finished if stage in TRAININGS]
    with_inputs = stages_to_ask(experiment, finished) if target_shape is None else finished
    with ThreadPoolExecutor(available_cores()) as pool:
        answers = pool.map(lambda stage: _stage_plan(experiment, stage, ask), with_inputs)
        found = dict(zip(with_inputs, answers, strict=True))
    unknown = [stage for stage in stages if found.get(stage, MISSING).get("exit_code") == MissingInput.exit_code]
    if unknown:
        last = stages.index(unknown[-1])
        with descriptions_of(experiment, finished, ask) as layout:
            for stage in (s for s in stages[: last + 1] if s not in finished):
                described = ask_described(experiment, "plan", stage, layout, ask)
                if stage in unknown:
                    found[stage] = described
                if stage == stages[0] and target_shape is not None:
                    found[stage] = resize_target(layout, described, target_shape)
    return {s: {"not known yet": found[s]["what"]} if "exit_code" in found[s] else found[s] for s in stages}


def _stage_plan(experiment: Experiment, stage: str, ask: Ask) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = ask(stage, stage_arguments("plan", experiment))
    except StageError as error:
        answer = error.as_dict()
    return answer


def described_bytes(layout: ExperimentLayout, stage: str) -> float:
    """Return the bytes that a described stage is expected to write; 0 if it is not described."""
    try:
        facts: Mapping[str, Any] = read_manifest(layout, stage).facts
    except StageError:
        return 0.0
    return float(facts.get("bytes_expected", 0.0))


def _link_results(experiment: Experiment, stage: str, layout: ExperimentLayout) -> None:
    layout.manifest(stage).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(experiment.layout.manifest(stage), layout.manifest(stage))
    if stage in TRAININGS:
        layout.train_dir(stage).parent.mkdir(exist_ok=True)
        layout.train_dir(stage).symlink_to(experiment.layout.train_dir(stage).absolute())
        return
    with suppress(StageError):  # the stage that reads a damaged manifest reports it
        for output in read_manifest(experiment.layout, stage).outputs.values():
            link = layout.root / output
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to((experiment.layout.root / output).absolute())
