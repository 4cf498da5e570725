"""All problems of a prediction that can be known before it starts; found without torch, which takes seconds to load.

Only where bf16 is set for a CPU is torch loaded: it knows what the CPU can compute in.
"""

from __future__ import annotations

from collections.abc import Callable

from lsdflow_contract.errors import StageError, problems_of
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.geometry import region_box
from lsdflow_contract.manifest import read_manifest
from lsdflow_predict.checkpoints import check_weights, choose_networks
from lsdflow_predict.config import PredictConfig
from lsdflow_predict.devices import check_precision, choose_device
from lsdflow_predict.job import STAGE, check_options, cut_up, gather, open_mask, open_raw
from lsdflow_predict.memory_needed import memory_problem
from lsdflow_predict.work import tasks_of
from lsdflow_runtime.io.volumes import Volume


def find_problems(experiment: Experiment) -> list[StageError]:
    """Every problem found, each on its own; empty if a run can start. Needs no GPU unless one is asked for."""
    config = experiment.table(STAGE, PredictConfig)
    checks: list[Callable[[], object]] = [lambda: check_options(experiment, config)]
    # Jobs of a cluster have GPUs where the machine that validates has none.
    if not experiment.uses_cluster or experiment.compute.device == "cpu":
        checks.append(lambda: check_precision(experiment, config))
        if experiment.compute.device != "auto":
            checks.append(lambda: choose_device(experiment.compute.device))
    problems = problems_of([lambda: read_manifest(experiment.layout, "prepare"), *checks])
    raws: list[Volume] = []
    problems += problems_of([lambda: raws.append(open_raw(experiment))])
    for raw in raws:
        problems += _problems_of_target(experiment, config, raw)
    return problems or problems_of([lambda: tasks_of(gather(experiment))])


def _problems_of_target(experiment: Experiment, config: PredictConfig, raw: Volume) -> list[StageError]:
    voxel_size_nm = raw.geometry.voxel_size_nm
    problems = problems_of(
        [
            lambda: open_mask(experiment, config, raw),
            lambda: region_box(config.roi, voxel_size_nm, raw.box, "predict.roi"),
            lambda: check_weights(choose_networks(experiment, config, voxel_size_nm)),
        ]
    )
    return problems or problems_of([lambda: _check_memory(experiment, config, raw)])


def _check_memory(experiment: Experiment, config: PredictConfig, raw: Volume) -> None:
    networks = choose_networks(experiment, config, raw.geometry.voxel_size_nm)
    region = region_box(config.roi, raw.geometry.voxel_size_nm, raw.box, "predict.roi")
    memory_problem(cut_up(config, networks, region, raw), networks, experiment)
