"""All problems of a prediction that can be known before it starts; found without torch, which takes seconds to load.

Only where bf16 is set for a CPU is torch loaded: it knows what the CPU can compute in.
"""

from __future__ import annotations

from collections.abc import Callable

from lsdflow_contract.described import TARGET, DescribedVolume, training_volumes
from lsdflow_contract.errors import ContractMismatch, StageError, problems_of
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.manifest import read_manifest
from lsdflow_contract.region import region_box
from lsdflow_predict.checkpoints import check_weights, choose_networks, same_size
from lsdflow_predict.config import PredictConfig
from lsdflow_predict.devices import check_precision, choose_device
from lsdflow_predict.job import STAGE, check_options, cut_up, gather, open_mask, open_raw
from lsdflow_predict.memory_needed import memory_problem
from lsdflow_predict.scheme import largest_shapes
from lsdflow_predict.work import tasks_of
from lsdflow_runtime.volumes import Volume


def find_problems(experiment: Experiment) -> list[StageError]:
    """Every problem found, each on its own; empty if a run can start. Needs no GPU unless one is asked for."""
    config = experiment.table(STAGE, PredictConfig)
    checks: list[Callable[[], object]] = [lambda: check_options(experiment, config)]
    # Jobs of a cluster have GPUs where the machine that validates has none.
    if "cluster" not in experiment.tables or experiment.compute.device == "cpu":
        checks.append(lambda: check_precision(experiment, config))
        if experiment.compute.device != "auto":
            checks.append(lambda: choose_device(experiment.compute.device))
    if TARGET in experiment.described and not experiment.layout.target_volume.exists():
        return problems_of(checks) + _problems_before_prepare(experiment, config)
    problems = problems_of([lambda: read_manifest(experiment.layout, "prepare"), *checks])
    raws: list[Volume] = []
    problems += problems_of([lambda: raws.append(open_raw(experiment))])
    for raw in raws:
        problems += _problems_of_target(experiment, config, raw)
    return problems or problems_of([task.require_ours for task in tasks_of(gather(experiment))])


def _problems_before_prepare(experiment: Experiment, config: PredictConfig) -> list[StageError]:
    """Against the volumes that prepare has still to make."""
    target = experiment.described[TARGET]
    size_nm = target.voxel_size_nm
    return problems_of(
        [
            lambda: region_box(config.roi, size_nm, target.geometry.box, "predict.roi"),
            # without a network any output will do: only the lengths of the table are checked
            lambda: largest_shapes(config, (1, 1, 1), size_nm, one_pass=True),
            lambda: _check_trained_size(experiment, config, target),
            lambda: check_weights(choose_networks(experiment, config, size_nm)),
        ]
    )


def _check_trained_size(experiment: Experiment, config: PredictConfig, target: DescribedVolume) -> None:
    """ContractMismatch (76) for a target of other voxels than the volumes that its network will be trained on."""
    training = training_volumes(experiment.described)
    chosen = experiment.tables.get("train-acrlsd", {}).get("volumes") or list(training)
    own = config.checkpoint == "best" and not experiment.layout.manifest("train-acrlsd").exists()
    for name in chosen if own and not config.allow_voxel_size_mismatch else ():
        volume = training.get(name)
        if volume is not None and not same_size(volume.voxel_size_nm, target.voxel_size_nm):
            raise ContractMismatch(
                "the target has another voxel size than the training volumes",
                where=target.where,
                wanted=f"{volume.voxel_size_nm} nm (z, y, x), as {volume.where}",
                found=f"{target.voxel_size_nm} nm",
                hint="give volumes of one voxel size (resample one of them, or correct its voxel_size), or set "
                "predict.allow_voxel_size_mismatch = true",
            )


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
