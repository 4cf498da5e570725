"""Which processes train together: those of TF_CONFIG if it is set, else the tasks of a SLURM step, else only this one.

    TF_CONFIG = {"cluster": {"worker": ["node1:12340", "node2:12340"]}, "task": {"type": "worker", "index": 0}}

Worker 0 is the chief: it alone writes checkpoints and all other files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from lsdflow_contract.errors import ConfigError
from lsdflow_training.processes.ranks import ranks_of_environment
from lsdflow_training.settings import TrainingSettings

FIRST_PORT = 12_000
PORTS_PER_JOB = 10
JOBS_WITH_OWN_PORTS = 2_000


@dataclass(frozen=True)
class Cluster:
    """Addresses "host:port" of all workers, and the rank of this process; no addresses mean a single process."""

    workers: tuple[str, ...] = ()
    rank: int = 0

    @property
    def size(self) -> int:
        """Number of processes."""
        return max(1, len(self.workers))

    @property
    def is_chief(self) -> bool:
        """Whether this process writes."""
        return self.rank == 0


def find_cluster(environment: Mapping[str, str]) -> Cluster:
    """The cluster that the environment describes.

    Raises ConfigError if the variables are invalid, or if more processes were started than belong to the cluster: the
    extra ones would all be chiefs and write the same files.
    """
    if environment.get("TF_CONFIG"):
        found = _from_tf_config(environment["TF_CONFIG"])
    elif int(environment.get("SLURM_STEP_NUM_TASKS") or 1) > 1:
        found = _from_slurm(environment)
    else:
        found = Cluster()
    started = ranks_of_environment(environment).world_size
    if started > found.size:
        raise ConfigError(
            "several processes were started that TensorFlow does not know of",
            where="WORLD_SIZE (torchrun)" if "WORLD_SIZE" in environment else "SLURM_NTASKS, SLURM_STEP_NUM_TASKS",
            wanted=f"a cluster of {started}",
            found=f"one of {found.size}",
            fix="start them by srun, give each a TF_CONFIG, or start one alone: `processes` is for its devices",
        )
    return found


def _from_tf_config(text: str) -> Cluster:
    try:
        content: Any = json.loads(text)
        cluster = {str(kind): [str(a) for a in addresses] for kind, addresses in content["cluster"].items()}
        kind, index = str(content["task"]["type"]), int(content["task"]["index"])
        workers = (*cluster.get("chief", ()), *cluster["worker"])
        rank = index + (len(cluster.get("chief", ())) if kind == "worker" else 0)
        unknown = (set(cluster) | {kind}) - {"chief", "worker"}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _not_a_cluster(text, f"{type(error).__name__}: {error}") from error
    addressed = all(re.fullmatch(r"[^:\s]+:\d+", address) for address in workers)
    if unknown or not addressed or not 0 <= index < len(cluster.get(kind, ())) or len(set(workers)) < len(workers):
        raise _not_a_cluster(text, "other kinds of tasks, an address without port or twice, or an index outside")
    return Cluster(workers, rank) if len(workers) > 1 else Cluster()


def _not_a_cluster(text: str, reason: str) -> ConfigError:
    return ConfigError(
        "TF_CONFIG does not describe a cluster of workers",
        where=f"TF_CONFIG={text[:200]}",
        wanted='{"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker", "index": 0}}',
        found=reason,
        fix="correct it, or unset it: in a SLURM step it is made from SLURM's own variables",
    )


def _from_slurm(environment: Mapping[str, str]) -> Cluster:
    """One worker per task of the step, in the order of the nodes (srun's default, --distribution=block)."""
    try:
        rank, job = int(environment["SLURM_PROCID"]), int(environment["SLURM_JOB_ID"])
        nodes = expand_nodes(environment["SLURM_STEP_NODELIST"])
        tasks = _expand_counts(environment["SLURM_STEP_TASKS_PER_NODE"])
        port = FIRST_PORT + (job % JOBS_WITH_OWN_PORTS) * PORTS_PER_JOB
        workers = tuple(f"{n}:{port + task}" for n, count in zip(nodes, tasks, strict=True) for task in range(count))
        host = workers[rank].split(":")[0]
    except (KeyError, ValueError, IndexError) as error:
        found = f"{type(error).__name__}: {error}"
        raise ConfigError("SLURM's variables do not describe this step", where="SLURM_STEP_*", found=found) from error
    here = environment.get("SLURMD_NODENAME", host)
    if here != host:
        raise ConfigError(
            "the tasks of this step are not in the order of its nodes",
            where=f"task {rank}",
            wanted=host,
            found=here,
            fix="srun --distribution=block, or set TF_CONFIG yourself",
        )
    return Cluster(workers, rank)


def expand_nodes(text: str) -> list[str]:
    """Expand SLURM's list of nodes, "gpu[01-03,7],big", to the single names. Raises ValueError for an invalid list."""
    nodes = []
    for part in re.findall(r"[^,\[\]]+(?:\[[^\]]*\])?[^,\[\]]*", text):
        name, _, rest = part.partition("[")
        if not rest:
            nodes.append(name)
            continue
        inside, _, after = rest.partition("]")
        for item in inside.split(","):
            begin, _, end = item.partition("-")
            for number in range(int(begin), int(end or begin) + 1):
                nodes.append(f"{name}{number:0{len(begin)}d}{after}")
    return nodes


def _expand_counts(text: str) -> list[int]:
    """ "2(x3),1" -> [2, 2, 2, 1]."""
    counts: list[int] = []
    for item in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", item)
        if match is None:
            msg = f"not a number of tasks: {item}"
            raise ValueError(msg)
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def shared_among(settings: TrainingSettings, cluster: Cluster) -> TrainingSettings:
    """The settings with one patch per replica in each step. TF_CONFIG may list processes that SLURM does not have.

    Raises ConfigError for the first option that only torch supports.
    """
    step, distribution = settings.step, settings.distribution
    only_torch = {
        "precision": (settings.precision, settings.precision in ("auto", "float32")),
        "optimizer": (step.optimizer, step.optimizer == "adam"),
        "weight_decay": (step.weight_decay, step.weight_decay == 0),
        "clip_gradient": (step.clip_gradient, step.clip_gradient is None),
        "batch_size": (step.batch_size, step.batch_size == 1),
        "accumulate": (step.accumulate, step.accumulate == 1),
        "checkpoint_activations": (step.checkpoint_activations, not step.checkpoint_activations),
        "strategy": (distribution.strategy, distribution.strategy == "ddp"),
        "average_decay": (settings.average_decay, settings.average_decay is None),
        "patience_iterations": (settings.patience, settings.patience is None),
        "profile_steps": (settings.records.profile_steps, settings.records.profile_steps == 0),
        "mlflow": (settings.records.mlflow, settings.records.mlflow is None),
    }
    for name, (value, possible) in only_torch.items():
        if not possible:
            raise ConfigError(
                "this option is there with torch only",
                where=f"{settings.stage}.{name}",
                found=f'{value} with backend = "tensorflow"',
                fix='leave it out, or choose backend = "torch"',
            )
    return replace(settings, step=replace(step, effective_batch=cluster.size * distribution.processes))
