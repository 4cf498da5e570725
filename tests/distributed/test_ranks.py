"""Which process of how many this is, from the variables of torchrun, SLURM or launch.py."""

from __future__ import annotations

import pytest

from lsdflow_contract.errors import ConfigError
from lsdflow_training.processes.ranks import Ranks, as_environment, first_node, of_local_process, ranks_of_environment

SRUN = {"SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_NUM_NODES": "2"}


def test_without_variables_it_is_alone() -> None:
    assert ranks_of_environment({}) == Ranks()


def test_a_batch_script_without_srun_is_one_process_however_many_tasks_the_job_has() -> None:
    assert ranks_of_environment({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7"}).world_size == 1


@pytest.mark.proves("DDP-01")
def test_torchrun_is_understood() -> None:
    given = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    where = {"MASTER_ADDR": "n1", "MASTER_PORT": "123", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    assert ranks_of_environment(given | where) == Ranks(3, 4, 1, 2, "n1", 123, store_runs=True)


@pytest.mark.proves("DDP-02")
def test_the_rendezvous_of_tasks_of_srun_is_the_first_node_at_a_port_of_the_job() -> None:
    job = {"SLURM_STEP_NODELIST": "gpu[07-08]", "SLURM_JOB_ID": "40123", "SLURM_RESTART_COUNT": "2"}
    assert ranks_of_environment(SRUN | job) == Ranks(5, 8, 1, 4, "gpu07", 20123, attempt="2")


def test_a_container_with_a_given_address_needs_no_list_of_nodes() -> None:
    given = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0", "SLURM_NNODES": "2"}
    found = ranks_of_environment(given | {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "20001"})
    assert found == Ranks(1, 2, 0, 1, "10.0.0.1", 20001)


def test_a_container_that_also_knows_its_step_has_the_same_rendezvous() -> None:
    given = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0", "SLURM_NNODES": "2"}
    where = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "20001", "SLURM_RESTART_COUNT": "1"}
    of_step = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "gpu[07-08]"}
    more = {"SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_JOB_ID": "40123", "SLURMD_NODENAME": "gpu08"}
    found = ranks_of_environment(given | where | of_step | more)
    assert found == ranks_of_environment(given | where) == Ranks(1, 2, 0, 1, "10.0.0.1", 20001, attempt="1")


@pytest.mark.parametrize("names", ["gpu[07-09,12],login", "gpu07,gpu08", "gpu07"])
def test_the_first_of_a_list_of_nodes(names: str) -> None:
    assert first_node(names) == "gpu07"


def test_no_address_for_the_rendezvous_is_an_error() -> None:
    with pytest.raises(ConfigError, match="MASTER_ADDR"):
        ranks_of_environment(SRUN)


@pytest.mark.parametrize("wrong", [{"RANK": "4", "WORLD_SIZE": "4"}, {"RANK": "x", "WORLD_SIZE": "4"}])
def test_variables_that_contradict_are_an_error(wrong: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        ranks_of_environment(wrong)


def test_processes_of_a_node_read_what_they_were_given() -> None:
    node = Ranks(rank=1, world_size=2, address="10.0.0.1", port=5, attempt="3")
    mine = of_local_process(node, 4, 2)
    assert (mine.rank, mine.world_size, mine.local_rank, mine.local_world_size) == (6, 8, 2, 4)
    assert ranks_of_environment(as_environment(mine)) == mine
