"""validate reports partitions and SIFs that are not there. Here sinfo is a script; tests/cluster has the real one."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lsdflow_contract.experiment import STAGES, load_experiment
from lsdflow_launch.cli import app
from lsdflow_launch.preflight import cluster_problems
from lsdflow_launch.slurm.dry_run import missing_for_jobs, rows_of_jobs, show_jobs
from lsdflow_launch.slurm.jobs import Partition, existing_partitions

ROWS = ("cpu*|up|2|1-00:00:00|(null)", "gpu|up|1|4:00:00|(null)", "gpu|up|3|4:00:00|gpu:a100:4", "old|up|1|infinite|")
Sinfo = Callable[..., None]


@pytest.fixture
def sinfo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sinfo:
    """A sinfo that prints these lines, alone on PATH: this machine may have a SLURM of its own."""
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))

    def put(*lines: str) -> None:
        text = "\n".join(lines)
        (programs / "sinfo").write_text(f"#!{sys.executable}\nprint({text!r})\n")
        (programs / "sinfo").chmod(0o755)

    put(*ROWS)
    return put


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An experiment for a cluster; SIFs of all stages are there."""
    (tmp_path / "experiment.toml").write_text('[cluster]\nimages = "sifs"\n')
    (tmp_path / "sifs").mkdir()
    for stage in STAGES:
        (tmp_path / "sifs" / f"{stage}_1.0.0.sif").touch()
    lines = [f"{stage.upper().replace('-', '_')}_IMAGE=lsdflow/{stage}:1.0.0\n" for stage in STAGES]
    (tmp_path / "images.env").write_text("".join(lines))
    return tmp_path


def found(folder: Path, *settings: str, stages: tuple[str, ...] = STAGES) -> list[tuple[int, str]]:
    problems = cluster_problems(load_experiment(folder, settings), stages)
    return [(problem.exit_code, problem.what) for problem in problems]


@pytest.mark.usefixtures("sinfo")
def test_lines_of_a_partition_are_joined() -> None:
    assert existing_partitions()["gpu"] == Partition("gpu", "up", 4, "4:00:00", has_gpu=True)
    assert not existing_partitions()["cpu"].has_gpu


@pytest.mark.usefixtures("sinfo")
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ([], []),
        (["cluster.partition_gpu=a100"], [(78, "the cluster has no partition a100")]),
        (["cluster.partition_gpu=cpu"], [(78, "the partition cpu has no GPU")]),
        (["cluster.partition_gpu="], []),
        (["cluster.partition_cpu=big"], [(78, "the cluster has no partition big")]),
        (["cluster.segment.partition=old"], []),
        (["cluster.segment.partition=cpu,new"], [(78, "the cluster has no partition new")]),
        (["cluster.watershed.worker_partition=new"], [(78, "the cluster has no partition new")]),
    ],
)
def test_each_partition_of_the_jobs_must_be_there_and_have_gpus_where_they_are_wanted(
    folder: Path, settings: list[str], expected: list[tuple[int, str]]
) -> None:
    assert found(folder, *settings) == expected


@pytest.mark.usefixtures("sinfo")
def test_only_the_stages_that_are_to_run_count(folder: Path) -> None:
    assert found(folder, "cluster.partition_gpu=a100", stages=("prepare", "watershed")) == []


@pytest.mark.usefixtures("sinfo")
def test_every_missing_sif_is_reported(folder: Path) -> None:
    for stage in ("watershed", "segment"):
        (folder / "sifs" / f"{stage}_1.0.0.sif").unlink()
    assert found(folder) == [(66, "the SIF of watershed is not there"), (66, "the SIF of segment is not there")]
    (folder / "images.env").unlink()
    assert found(folder) == [(66, "no pinned images")]


def test_where_slurm_is_not_nothing_is_known(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(folder))
    assert found(folder, "cluster.partition_gpu=a100") == []


@pytest.mark.usefixtures("sinfo")
def test_an_experiment_without_the_table_asks_for_no_cluster(folder: Path) -> None:
    (folder / "experiment.toml").write_text("")
    assert found(folder) == []


@pytest.mark.usefixtures("sinfo")
def test_validate_reports_them_with_the_problems_of_the_stages(folder: Path) -> None:
    words = ["validate", str(folder), "--json", "--set", "cluster.partition_gpu=a100"]
    answer = json.loads(CliRunner().invoke(app, words).stdout)
    (problem,) = answer["experiment"]
    assert problem["what"] == "the cluster has no partition a100"
    assert problem["where"] == f"{folder / 'experiment.toml'}: [cluster], jobs of train-lsd"


def dry_run(folder: Path, *settings: str) -> tuple[dict[tuple[str, str], list[str]], list[str]]:
    """The rows of the jobs by stage and jobs, and what is missing."""
    experiment = load_experiment(folder, settings)
    rows = rows_of_jobs(experiment, ("train-acrlsd", "predict"))
    missing = missing_for_jobs(experiment, ("train-acrlsd", "predict"))
    return {(r["stage"], r["jobs"]): list(r.values())[2:] for r in rows}, [problem["what"] for problem in missing]


def test_a_dry_run_lists_the_resources_of_every_kind_of_job(folder: Path, sinfo: Sinfo) -> None:
    del sinfo
    tiny = ("experiment.profile=tiny", "cluster.predict.workers_at_once=1", "cluster.train-acrlsd.nodes=2")
    rows, missing = dry_run(folder, *tiny)
    assert rows == {
        ("train-acrlsd", "1 run on 2 nodes"): ["gpu", "2", "6G", "4:00:00", "gpu:1"],
        ("predict", "1 coordinator"): ["cpu", "1", "1G", "4:00:00", ""],
        ("predict", "2 workers, 1 at once"): ["gpu", "1", "2G", "4:00:00", "gpu:1"],
        ("each", "2 verify"): ["cpu", "1", "1G", "1:00:00", ""],
    }
    assert missing == ["no sbatch here"]


def test_a_dry_run_lists_all_that_is_missing_at_once(folder: Path, sinfo: Sinfo, capsys) -> None:
    (folder / "sifs" / "predict_1.0.0.sif").unlink()
    wanted = ["no sbatch here", "the cluster has no partition big", "the SIF of predict is not there"]
    assert dry_run(folder, "cluster.partition_cpu=big")[1] == wanted
    sinfo()
    (folder / "bin" / "sinfo").unlink()
    assert dry_run(folder)[1][1] == "the partitions are not compared with those of the cluster: gpu, cpu"
    experiment = load_experiment(folder)
    show_jobs(rows_of_jobs(experiment, STAGES[:2]), missing_for_jobs(experiment, STAGES))
    text = capsys.readouterr().out
    assert text.splitlines()[0].split() == ["stage", "jobs", "partition", "cores", "memory", "time", "GPU"]
    assert text.index("missing here for a submission:") < text.index("the SIF of predict") < text.index("commands:")
