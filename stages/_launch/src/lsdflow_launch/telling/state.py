"""What of an experiment is done: from manifests, run folders and the stages' own status."""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lsdflow_command.cores import available_cores
from lsdflow_contract.described import Described, read_described
from lsdflow_contract.errors import MadeOtherwise, MissingInput, NotInstalled, StageError, UsageError
from lsdflow_contract.experiment import STAGES, Experiment
from lsdflow_contract.files import read_json
from lsdflow_contract.manifest import read_manifest
from lsdflow_launch.chain import stage_arguments, stages_of
from lsdflow_launch.commands import ask_stage
from lsdflow_launch.telling.ending import outcome_of
from lsdflow_launch.whole import Ask, whole_problems

WHOLE = "experiment"


def status_of(experiment: Experiment, ask: Ask = ask_stage) -> dict[str, dict[str, Any]]:
    """For each stage of the chain: state, seconds, last outcome, and what the stage itself says."""
    stages = stages_of(experiment)
    with ThreadPoolExecutor(available_cores()) as pool:
        return dict(zip(stages, pool.map(lambda stage: _stage_status(experiment, stage, ask), stages), strict=True))


@dataclass(frozen=True)
class Wanted:
    """What is to be run: these stages (none = all), and whether results of other settings give way.

    in_images: by images that are pinned, so that the packages of this machine do not matter.
    """

    replace: bool = False
    stages: tuple[str, ...] | None = None
    in_images: bool = False

    def gives_way(self, problem: Mapping[str, Any], stage: str) -> bool:
        """True for results of other settings that are replaced, or left alone, and for packages that images have."""
        if self.in_images and problem.get("error") == NotInstalled.__name__:
            return True
        left_alone = self.stages is not None and stage not in self.stages
        return problem.get("error") == MadeOtherwise.__name__ and (self.replace or left_alone)


def problems_of(
    experiment: Experiment, ask: Ask = ask_stage, wanted: Wanted | None = None
) -> dict[str, list[dict[str, Any]]]:
    """All problems that the stages find, by stage, and those of the experiment as a whole; writes nothing."""
    wanted = wanted or Wanted()
    stages, first = stages_of(experiment), stages_of(experiment)[0]
    with ThreadPoolExecutor(available_cores()) as pool:
        of_sources = pool.submit(ask, first, stage_arguments("validate", experiment))
        described = _described(experiment, ask)
        whole = pool.submit(whole_problems, experiment, described, wanted.in_images)
        answers = pool.map(lambda stage: _validated(ask, stage, experiment, described), stages[1:])
        found = dict(zip(stages, (of_sources.result(), *answers), strict=True))
    listed = {stage: answer if isinstance(answer, list) else [answer] for stage, answer in found.items()}
    told = {
        s: [p for p in problems if not (_made_later(p, s, experiment) or wanted.gives_way(p, s))]
        for s, problems in listed.items()
    }
    return {**told, WHOLE: whole.result()}


def _described(experiment: Experiment, ask: Ask) -> Described:
    """The volumes that prepare makes; none where it cannot tell (its settings are wrong, or an older image)."""
    told = ask(STAGES[0], stage_arguments("describe", experiment))
    try:
        return read_described(json.dumps(told))
    except UsageError:
        return {}


def _validated(ask: Ask, stage: str, experiment: Experiment, described: Described) -> Any:
    """The problems that a stage finds. It is given the description of volumes that are not made yet."""
    words = stage_arguments("validate", experiment)
    if not described or experiment.layout.manifest(STAGES[0]).exists():
        return ask(stage, words)
    told = {label: volume.model_dump(mode="json") for label, volume in described.items()}
    answer = ask(stage, [*words, "--described", json.dumps(told)])
    is_older = isinstance(answer, dict) and answer.get("exit_code") == UsageError.exit_code
    return ask(stage, words) if is_older else answer


def _made_later(problem: dict[str, Any], stage: str, experiment: Experiment) -> bool:
    """True for an artefact that is missing because a stage of the chain has still to make it."""
    missing = problem["exit_code"] == MissingInput.exit_code and str(experiment.layout.root) in problem["where"]
    earlier = stages_of(experiment, last=stage)[:-1]
    return missing and not all(experiment.layout.manifest(s).exists() for s in earlier)


def _last_outcome(experiment: Experiment, stage: str) -> dict[str, Any] | None:
    """The outcome of the run that began last; None if it has none (yet), or if there was no run."""
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
    """How the newest run of a finished stage ended, if it left the stage as it was: with other settings, for example.

    `last_run`: when it began (seconds since 1970), exit code, what was wrong; {} if it ended well.
    """
    newest = _newest_run(experiment, stage)
    last = outcome_of(newest) if newest is not None else {}
    if newest is None or not last.get("exit_code"):
        return {}
    if (newest / "outcome.json").stat().st_mtime < experiment.layout.manifest(stage).stat().st_mtime:
        return {}  # what was left of the work was done by others: jobs of a cluster, an import
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
            **_failed_since(experiment, stage),
        }
    if last is None and not any(experiment.layout.stage_runs(stage).glob("*/config.resolved.json")):
        return {"state": "not started"}
    told = ask(stage, stage_arguments("status", experiment))
    state = "running or killed" if last is None else f"ended with exit code {last['exit_code']}"
    problem = (last or {}).get("error") or {}
    more = {} if "exit_code" in told else {k: v for k, v in told.items() if k not in ("stage", "finished")}
    return {"state": state, "problem": problem.get("what", ""), **more}
