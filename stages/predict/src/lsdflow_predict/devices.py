"""The device that a worker works on."""

from __future__ import annotations

from lsdflow_contract.errors import ConfigError
from lsdflow_contract.experiment import Experiment
from lsdflow_network.devices import gpu_count, require_precision
from lsdflow_predict.config import PredictConfig


def choose_device(wanted: str, worker: int = 0) -> str:
    """The torch device of `worker`: "auto" takes the GPUs in turn, or the CPU if there is none.

    Raises ConfigError if a GPU is asked for and there is none.
    """
    count = gpu_count()
    if wanted == "auto":
        return f"cuda:{worker % count}" if count else "cpu"
    if wanted == "cuda" and count:
        return f"cuda:{worker % count}"
    number = int(wanted.partition(":")[2] or 0)
    if wanted.startswith("cuda") and number >= count:
        raise ConfigError(
            "there is no such GPU",
            where="compute.device",
            wanted=wanted,
            found=f"{count} GPUs",
            fix='device = "auto" or "cpu"; in a container: was it started with --nv / --gpus?',
        )
    return wanted


def check_precision(experiment: Experiment, config: PredictConfig) -> None:
    """ConfigError for bf16 on a CPU that cannot compute in it. Workers in other jobs each check their own CPU."""
    compute = experiment.compute
    if config.precision == "bf16" and compute.runner != "cluster" and not compute.device.startswith("cuda"):
        require_precision(choose_device(compute.device), config.precision, "predict.precision")
