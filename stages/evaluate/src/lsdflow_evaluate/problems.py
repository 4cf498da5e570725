"""All problems of an evaluation that can be known before it starts; what scores and draws takes long to load."""

from __future__ import annotations

from collections.abc import Callable

from lsdflow_contract.errors import ConfigError, MissingInput, StageError, problems_of
from lsdflow_contract.experiment import Experiment
from lsdflow_evaluate.config import MONGO, STAGE, EvaluateConfig
from lsdflow_evaluate.scores.scored_regions import scored_regions
from lsdflow_runtime.io.target import knows_target, open_truth, target_grid


def find_problems(experiment: Experiment) -> list[StageError]:
    """All problems that can be seen now; what earlier stages have not made yet is no problem."""
    config = experiment.table(STAGE, EvaluateConfig)
    checks: list[Callable[[], object]] = []
    if config.skeletons not in ("auto", "truth", "none"):
        checks.append(lambda: _require_skeletons(experiment, config))
    if knows_target(experiment):
        checks.append(lambda: _require_regions(experiment, config))
    return problems_of(checks)


def _require_skeletons(experiment: Experiment, config: EvaluateConfig) -> None:
    path = experiment.resolve(config.skeletons)
    if config.skeletons.startswith(MONGO):
        name, _, source = config.skeletons.removeprefix(MONGO).partition("@")
        if not name or not source:
            wanted = '"mongo:NAME@FILE": the name of the skeletons, and a file with a MongoDB URI or a folder of a dump'
            raise ConfigError("no name or no source of skeletons", where="evaluate.skeletons", wanted=wanted)
        path = experiment.resolve(source)
    if not path.exists():
        raise MissingInput("no skeletons there", where=path, fix='"truth", "auto", "none", or a file or folder')


def _require_regions(experiment: Experiment, config: EvaluateConfig) -> None:
    grid = target_grid(experiment)
    truth = open_truth(experiment, config.truth_dataset, grid)
    if truth is None:
        if config.roi is not None or config.threshold_roi is not None or config.regions:
            raise MissingInput(
                "a region to score, but no truth",
                where="evaluate.roi, threshold_roi or regions",
                fix="give prepare.target.truth, or take the region out of [evaluate]",
            )
        return
    scored_regions(experiment, config, grid, truth.labels.box)
