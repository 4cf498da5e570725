"""Rank of this process and number of processes of a training, from variables of torchrun, SLURM or launch.py.

torchrun: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT.
SLURM:    SLURM_PROCID, SLURM_LOCALID and SLURM_STEP_NUM_TASKS, which srun sets for its tasks; SLURM_NTASKS instead of
          the last if MASTER_ADDR is set (a wrapper passes them into a container).  A batch script without srun is one
          process, however many tasks the job has.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from lsdflow_contract.errors import ConfigError

# Set for processes that were started by the option `processes`.
STARTED_LOCALLY = "LSDFLOW_STARTED_LOCALLY"
PORTS_FROM, PORTS = 20_000, 20_000


@dataclass(frozen=True)
class Ranks:
    """This process (rank of world_size; local_rank of local_world_size on its node) and the address of the rendezvous.

    store_runs: the store is served by something other than rank 0 (torchrun, or launch.py).
    attempt: how often the processes were restarted; they never connect to those of an earlier attempt.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    address: str = "127.0.0.1"
    port: int = 0
    store_runs: bool = False
    attempt: str = "0"
    started_locally: bool = False


def ranks_of_environment(environment: Mapping[str, str]) -> Ranks:
    """Ranks from torchrun's or SLURM's variables; one process without any. Raises ConfigError if they are invalid."""
    if "RANK" in environment and "WORLD_SIZE" in environment:
        found = _of_torchrun(environment)
    else:
        found = _of_slurm(environment)
    if not 0 <= found.rank < found.world_size or not 0 <= found.local_rank < found.local_world_size:
        raise ConfigError("the ranks of the environment contradict one another", where="environment", found=found)
    return found


def of_local_process(node: Ranks, processes: int, local_rank: int) -> Ranks:
    """Ranks of one of the `processes` that the process `node` (one on each node) starts."""
    return replace(
        node,
        rank=node.rank * processes + local_rank,
        world_size=node.world_size * processes,
        local_rank=local_rank,
        local_world_size=processes,
        store_runs=True,
        started_locally=True,
    )


def as_environment(ranks: Ranks) -> dict[str, str]:
    """The environment variables from which ranks_of_environment reads these ranks."""
    return {
        "RANK": str(ranks.rank),
        "WORLD_SIZE": str(ranks.world_size),
        "LOCAL_RANK": str(ranks.local_rank),
        "LOCAL_WORLD_SIZE": str(ranks.local_world_size),
        "MASTER_ADDR": ranks.address,
        "MASTER_PORT": str(ranks.port),
        "TORCHELASTIC_USE_AGENT_STORE": str(ranks.store_runs),
        "TORCHELASTIC_RESTART_COUNT": ranks.attempt,
        STARTED_LOCALLY: "1" if ranks.started_locally else "",
    }


def _of_torchrun(environment: Mapping[str, str]) -> Ranks:
    world = _number(environment, "WORLD_SIZE", 1)
    return Ranks(
        rank=_number(environment, "RANK", 0),
        world_size=world,
        local_rank=_number(environment, "LOCAL_RANK", 0),
        local_world_size=_number(environment, "LOCAL_WORLD_SIZE", world),
        address=environment.get("MASTER_ADDR", "127.0.0.1"),
        port=_number(environment, "MASTER_PORT", 29_500),
        store_runs=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        attempt=environment.get("TORCHELASTIC_RESTART_COUNT", "0"),
        started_locally=bool(environment.get(STARTED_LOCALLY)),
    )


def _of_slurm(environment: Mapping[str, str]) -> Ranks:
    count = "SLURM_NTASKS" if "MASTER_ADDR" in environment else "SLURM_STEP_NUM_TASKS"
    world = _number(environment, count, 1)
    if world == 1 or "SLURM_PROCID" not in environment:
        return Ranks()
    nodes = _number(environment, "SLURM_STEP_NUM_NODES", _number(environment, "SLURM_NNODES", world))
    local_rank = _number(environment, "SLURM_LOCALID", 0)
    port = PORTS_FROM + _number(environment, "SLURM_JOB_ID", 0) % PORTS
    names = environment.get("SLURM_STEP_NODELIST", environment.get("SLURM_JOB_NODELIST", ""))
    return Ranks(
        rank=_number(environment, "SLURM_PROCID", 0),
        world_size=world,
        local_rank=local_rank,
        local_world_size=max(world // max(nodes, 1), local_rank + 1),
        address=environment.get("MASTER_ADDR") or first_node(names),
        port=_number(environment, "MASTER_PORT", port),
        attempt=environment.get("SLURM_RESTART_COUNT", "0"),
    )


def first_node(names: str) -> str:
    """First node of SLURM's list: "gpu[07-09,12],login" -> "gpu07". Raises ConfigError if there is none."""
    found = re.match(r"([\w.-]+)(?:\[(\d+)[^\]]*\]([\w.-]*))?", names)
    if found is None:
        raise ConfigError(
            "no address for the rendezvous", where="MASTER_ADDR", wanted="the first node", found=names or "nothing"
        )
    return "".join(part or "" for part in found.groups())


def _number(environment: Mapping[str, str], name: str, otherwise: int) -> int:
    text = environment.get(name, "")
    if not text:
        return otherwise
    if not text.isdigit():
        raise ConfigError("not a number", where=f"environment variable {name}", found=text)
    return int(text)
