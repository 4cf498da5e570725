"""Which processes train together: TF_CONFIG, or the tasks of a SLURM step."""

from __future__ import annotations

import json

import pytest

from lsdflow_contract.errors import ConfigError
from lsdflow_tensorflow.cluster import Cluster, expand_nodes, find_cluster


def tf_config(cluster, kind, index):
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})}


def step(**changed):
    return {
        "SLURM_STEP_NUM_TASKS": "5",
        "SLURM_PROCID": "3",
        "SLURM_JOB_ID": "4007",
        "SLURM_STEP_NODELIST": "gpu[09-10],big",
        "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
        **changed,
    }


def test_without_both_a_process_is_alone() -> None:
    assert find_cluster({}) == find_cluster({"SLURM_STEP_NUM_TASKS": "1"}) == Cluster()
    assert find_cluster(tf_config({"worker": ["a:1"]}, "worker", 0)) == Cluster()
    assert (Cluster().size, Cluster().is_chief) == (1, True)


def test_tf_config_names_workers_and_the_chief_comes_first() -> None:
    assert find_cluster(tf_config({"worker": ["a:1", "b:2"]}, "worker", 1)) == Cluster(("a:1", "b:2"), 1)
    both = {"chief": ["c:3"], "worker": ["a:1", "b:2"]}
    assert find_cluster(tf_config(both, "worker", 1)) == Cluster(("c:3", "a:1", "b:2"), 2)
    assert find_cluster(tf_config(both, "chief", 0)).is_chief


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        tf_config({"worker": ["a:1", "b"]}, "worker", 0)["TF_CONFIG"],
        tf_config({"worker": ["a:1", "a:1"]}, "worker", 0)["TF_CONFIG"],
        tf_config({"worker": ["a:1", "b:1"]}, "worker", 2)["TF_CONFIG"],
        tf_config({"worker": ["a:1", "b:1"], "ps": ["c:1"]}, "worker", 0)["TF_CONFIG"],
        tf_config({"worker": ["a:1", "b:1"]}, "evaluator", 0)["TF_CONFIG"],
    ],
)
def test_a_tf_config_that_makes_no_sense_is_refused(text) -> None:
    with pytest.raises(ConfigError, match="TF_CONFIG"):
        find_cluster({"TF_CONFIG": text})


def test_the_tasks_of_a_slurm_step_are_workers_in_the_order_of_its_nodes() -> None:
    found = find_cluster(step())
    assert [worker.split(":")[0] for worker in found.workers] == ["gpu09", "gpu09", "gpu10", "gpu10", "big"]
    assert len(set(found.workers)) == 5
    assert found.rank == 3
    assert found.workers != find_cluster(step(SLURM_JOB_ID="4008")).workers


@pytest.mark.parametrize(
    "changed",
    [{"SLURMD_NODENAME": "gpu09"}, {"SLURM_STEP_TASKS_PER_NODE": "2"}, {"SLURM_PROCID": "9"}, {"SLURM_JOB_ID": ""}],
)
def test_slurm_variables_that_contradict_are_refused(changed) -> None:
    with pytest.raises(ConfigError):
        find_cluster(step(**changed))


TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
STEP_WITHOUT_NODES = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_NNODES": "2", "MASTER_ADDR": "10.1.2.3"}


@pytest.mark.parametrize("several", [TORCHRUN, STEP_WITHOUT_NODES])
def test_processes_that_would_all_be_chiefs_are_refused(several) -> None:
    with pytest.raises(ConfigError, match="several processes") as caught:
        find_cluster(several)
    assert (caught.value.wanted, caught.value.found) == ("a cluster of 2", "one of 1")
    two = tf_config({"worker": ["a:1", "b:2"]}, "worker", 1)
    assert find_cluster(several | two).rank == 1


def test_the_steps_of_a_training_in_containers_are_one_cluster() -> None:
    nodes = {"SLURM_NTASKS": "3", "SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_NUM_NODES": "3", "SLURM_NNODES": "3"}
    given = step(SLURM_STEP_TASKS_PER_NODE="1(x3)", SLURM_PROCID="2", MASTER_ADDR="10.1.2.3", **nodes)
    found = find_cluster(given | {"MASTER_PORT": "24007", "SLURM_LOCALID": "0", "SLURMD_NODENAME": "big"})
    assert [worker.split(":")[0] for worker in found.workers] == ["gpu09", "gpu10", "big"]
    assert (found.rank, found.is_chief) == (2, False)


def test_lists_of_nodes_are_expanded_as_slurm_writes_them() -> None:
    assert expand_nodes("n[1-2,07]-x,m,k[099-100]") == ["n1-x", "n2-x", "n07-x", "m", "k099", "k100"]
