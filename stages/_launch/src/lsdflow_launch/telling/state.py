"""What is done of an experiment, from manifests, run folders and the stages' own status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lsdflow_command.machine import available_cores
from lsdflow_contract.errors import MissingInput, NotInstalled, StageError
from lsdflow_contract.experiment import STAGES, Experiment
from lsdflow_contract.failed_blocks import own_failed_blocks
from lsdflow_contract.files import read_json
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import read_manifest
from lsdflow_launch.chain import stage_arguments, stages_of
from lsdflow_launch.commands import ask_stage
from lsdflow_launch.descriptions import (
    Ask,
    ask_described,
    described_bytes,
    descriptions_of,
    finished_stages,
    is_begun,
    stages_to_ask,
)
from lsdflow_launch.slurm.problems import cluster_problems
from lsdflow_launch.telling.ending import outcome_of
from lsdflow_launch.whole import whole_problems

WHOLE = "experiment"


def status_of(experiment: Experiment, ask: Ask = ask_stage) -> dict[str, dict[str, Any]]:
    """Return for each stage of the chain: state, seconds, last outcome, and the status of the stage itself."""
    stages = stages_of(experiment)
    with ThreadPoolExecutor(available_cores()) as pool:
        return dict(zip(stages, pool.map(lambda stage: _stage_status(experiment, stage, ask), stages), strict=True))


@dataclass(frozen=True)
class Wanted:
    """What is to be run: these stages (None = all).

    in_images: pinned images run the stages, so the packages of this machine do not matter.
    on_cluster: also check the partitions and SIFs that the jobs need.
    """

    stages: tuple[str, ...] | None = None
    in_images: bool = False
    on_cluster: bool = False

    def has(self, problem: Mapping[str, Any]) -> bool:
        """Return True for a package that is missing here, but is in the images."""
        return self.in_images and problem.get("error") == NotInstalled.__name__


def problems_of(
    experiment: Experiment, ask: Ask = ask_stage, wanted: Wanted | None = None
) -> dict[str, list[dict[str, Any]]]:
    """Return all problems that the stages find, by stage, and those of the experiment as a whole; leaves no files.

    A stage whose inputs do not exist yet is checked against descriptions of them; stages after the last one to run are
    not checked.
    """
    wanted = wanted or Wanted()
    stages, finished = stages_of(experiment, last=(wanted.stages or STAGES)[-1]), finished_stages(experiment)
    with_inputs = [stage for stage in stages_to_ask(experiment, finished) if stage in stages]
    with ThreadPoolExecutor(available_cores()) as pool, descriptions_of(experiment, finished, ask) as layout:
        of_results = pool.map(lambda stage: ask(stage, stage_arguments("validate", experiment)), with_inputs)
        of_descriptions = _validated_in_turn(experiment, layout, [s for s in stages if s not in finished], ask)
        found = of_descriptions | dict(zip(with_inputs, map(_listed, of_results), strict=True))
        to_come = {s: described_bytes(layout, s) for s in of_descriptions if not is_begun(experiment, s)}
    told = {}
    for stage in stages:
        if any(_made_later(problem, stage, experiment) for problem in found[stage]):
            found[stage] = of_descriptions.get(stage, found[stage])
        told[stage] = [p for p in found[stage] if not (_made_later(p, stage, experiment) or wanted.has(p))]
    of_cluster = [p.as_dict() for p in cluster_problems(experiment, stages)] if wanted.on_cluster else []
    return {**told, WHOLE: [*whole_problems(experiment, to_come, wanted.in_images), *of_cluster]}


def _validated_in_turn(
    experiment: Experiment, layout: ExperimentLayout, stages: Sequence[str], ask: Ask
) -> dict[str, list[dict[str, Any]]]:
    """Return the problems of each stage, found with the descriptions that the stages before it write."""
    found = {}
    for stage in stages:
        # `prepare validate` reads the voxels of its sources; a description needs only their metadata.
        answer = ask_described(experiment, "plan" if stage == STAGES[0] else "validate", stage, layout, ask)
        found[stage] = _listed(answer)
    return found


def _listed(answer: Any) -> list[dict[str, Any]]:
    return answer if isinstance(answer, list) else [answer]


def _made_later(problem: dict[str, Any], stage: str, experiment: Experiment) -> bool:
    """Return True for an artifact that is missing because a stage of the chain has not run yet."""
    missing = problem["exit_code"] == MissingInput.exit_code and str(experiment.layout.root) in problem["where"]
    earlier = stages_of(experiment, last=stage)[:-1]
    return missing and not all(experiment.layout.manifest(s).exists() for s in earlier)


def _last_outcome(experiment: Experiment, stage: str) -> dict[str, Any] | None:
    """Return the outcome of the run that began last; None if it has not ended, or if there was no run."""
    newest = _newest_run(experiment, stage)
    outcome: dict[str, Any] | None = None
    if newest is not None and (newest / "outcome.json").exists():
        outcome = read_json(newest / "outcome.json")
    return outcome


def _newest_run(experiment: Experiment, stage: str) -> Path | None:
    runs = experiment.layout.stage_runs(stage)
    begun = {path.parent for name in ("outcome.json", "config.resolved.json") for path in runs.glob(f"*/{name}")}
    return max(begun, key=lambda folder: folder.name, default=None)


def _failed_since(experiment: Experiment, stage: str) -> dict[str, Any]:
    """Return how the newest run of a finished stage failed without changing the stage, for example with other settings.

    `last_run`: when it began (seconds since 1970), exit code, what was wrong; {} if it ended well.
    """
    newest = _newest_run(experiment, stage)
    last = outcome_of(newest) if newest is not None else {}
    if newest is None or not last.get("exit_code"):
        return {}
    if (newest / "outcome.json").stat().st_mtime < experiment.layout.manifest(stage).stat().st_mtime:
        return {}  # other processes finished the stage later: jobs of a cluster, an import
    told = {"started": last.get("started"), "exit_code": last["exit_code"]}
    return {"last_run": {**told, "problem": (last.get("error") or {}).get("what", "")}}


def _stage_status(experiment: Experiment, stage: str, ask: Ask) -> dict[str, Any]:
    last = _last_outcome(experiment, stage)
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
            **({"accepted": [str(block) for block in failed]} if (failed := own_failed_blocks(manifest)) else {}),
            **_failed_since(experiment, stage),
        }
    if last is None and not any(experiment.layout.stage_runs(stage).glob("*/config.resolved.json")):
        return {"state": "not started"}
    told = ask(stage, stage_arguments("status", experiment))
    state = "running or killed" if last is None else f"ended with exit code {last['exit_code']}"
    problem = (last or {}).get("error") or {}
    more = {} if "exit_code" in told else {k: v for k, v in told.items() if k not in ("stage", "finished")}
    return {"state": state, "problem": problem.get("what", ""), **more}
