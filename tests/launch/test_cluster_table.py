"""[cluster] of the experiment file: defaults, what is refused, and that the wrappers' README knows every key."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from lsdflow_contract.errors import ConfigError
from lsdflow_contract.experiment import Experiment, ExperimentTable, load_experiment
from lsdflow_launch.slurm.submit import settings_text
from lsdflow_launch.slurm.table import BlockTable, ClusterTable, JobTable, TrainTable, cluster_of, job_settings

WRAPPERS = Path(__file__).resolve().parents[2] / "slurm_wrappers"


def _experiment(folder: Path, text: str = "", *overrides: str) -> Experiment:
    (folder / "experiment.toml").write_text(f'[experiment]\nmode = "mtlsd"\n{text}')
    return load_experiment(folder, overrides)


def _settings(experiment: Experiment) -> dict[str, str]:
    return job_settings(cluster_of(experiment), experiment)


@pytest.mark.proves("SCH-01")
def test_only_gpu_stages_ask_for_gpus_and_of_predict_only_the_workers(tmp_path: Path) -> None:
    settings = _settings(_experiment(tmp_path))
    with_gpu = {key.removesuffix("_GRES") for key in settings if key.endswith("_GRES")}
    assert with_gpu == {"TRAIN_LSD", "TRAIN_ACRLSD", "PREDICT_WORKER"}
    assert {key for key, value in settings.items() if value == "gpu"} == {f"{name}_PARTITION" for name in with_gpu}


@pytest.mark.parametrize("profile", get_args(ExperimentTable.model_fields["profile"].annotation))
def test_every_profile_has_its_resources(tmp_path: Path, profile: str) -> None:
    settings = _settings(_experiment(tmp_path, f'profile = "{profile}"\n'))
    assert int(settings["PREDICT_WORKERS"]) == (2 if profile.startswith("tiny") else 8)


def test_without_a_gpu_partition_nothing_asks_for_gpus(tmp_path: Path) -> None:
    settings = _settings(_experiment(tmp_path, '[cluster]\npartition_gpu = ""\n'))
    assert not [key for key in settings if key.endswith("_GRES")]
    assert {value for key, value in settings.items() if key.endswith("_PARTITION")} == {"cpu"}


def test_the_coordinator_of_evaluate_gets_what_a_whole_stage_gets_and_its_workers_what_workers_get(
    tmp_path: Path,
) -> None:
    """It thins the truth and draws the report; the coordinators of other stages compute no block."""
    settings = _settings(_experiment(tmp_path, 'profile = "standard"\n'))
    names = ("CPUS", "MEM", "TIME", "WORKERS", "WORKER_CPUS", "WORKER_MEM")
    of = {stage: [settings.get(f"{stage}_{name}") for name in names] for stage in ("EVALUATE", "SEGMENT", "PREPARE")}
    assert of == {
        "EVALUATE": ["4", "32G", "2-00:00:00", "8", "1", "16G"],
        "SEGMENT": ["2", "16G", "7-00:00:00", "8", "1", "16G"],
        "PREPARE": ["4", "32G", "2-00:00:00", None, None, None],
    }


def test_a_training_may_have_several_nodes(tmp_path: Path) -> None:
    assert _settings(_experiment(tmp_path, "[cluster.train-lsd]\nnodes = 2\n"))["TRAIN_LSD_NODES"] == "2"


def test_what_is_given_for_a_stage_wins_over_the_defaults(tmp_path: Path) -> None:
    text = '[cluster.predict]\nworkers = 5\nworker_mem = "3G"\nmem = "2G"\n[cluster.verify]\ntime = "10:00"\n'
    settings = _settings(_experiment(tmp_path, text, "cluster.predict.workers_at_once=2"))
    assert (settings["PREDICT_WORKERS"], settings["PREDICT_WORKERS_AT_ONCE"]) == ("5", "2")
    assert (settings["PREDICT_WORKER_MEM"], settings["PREDICT_MEM"]) == ("3G", "2G")
    assert (settings["VERIFY_TIME"], settings["WATERSHED_TIME"]) == ("10:00", "7-00:00:00")


@pytest.mark.parametrize(
    "text",
    [
        'accont = "neuro"',
        'account = "neuro; rm -rf /"',
        'account = "$(id)"',
        'images = "/a,b"',
        'modules = "apptainer; id"',
        'options = ["--wrap=id"]',
        'options = ["--export=ALL"]',
        'options = ["--comment=$(id)"]',
        'options = ["id"]',
        "warn_s = 0",
        "[cluster.predict]\nworkers = 1001",
        '[cluster.predict]\nmem = "8 GB"',
        '[cluster.predict]\ntime = "a day"',
        "[cluster.prepare]\nworkers = 2",
        "[cluster.train-lsd]\nnodes = 0",
    ],
)
def test_what_sbatch_would_misread_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError):
        cluster_of(_experiment(tmp_path, f"[cluster]\n{text}\n"))


def test_settings_are_lines_without_a_quote_inside(tmp_path: Path) -> None:
    experiment = _experiment(tmp_path, "", "experiment.name=plain", "watershed.context=8 vox", "cluster.qos=high")
    lines = settings_text(experiment).splitlines()
    assert all(re.fullmatch(r"[A-Z][A-Z_]*='[^']*'", line) for line in lines)
    assert "SET='watershed.context=8 vox'" in lines
    assert "QOS='high'" in lines
    assert not [line for line in lines if line.startswith("SET='cluster.")]
    with pytest.raises(ConfigError, match="quote"):
        settings_text(_experiment(tmp_path, "", "watershed.context='8 vox'"))


def test_the_readme_knows_every_key() -> None:
    text = (WRAPPERS / "README.md").read_text()
    tables = {
        name
        for name, field in ClusterTable.model_fields.items()
        if field.default_factory or "Table" in str(field.annotation)
    }
    keys = {*ClusterTable.model_fields, *JobTable.model_fields, *TrainTable.model_fields, *BlockTable.model_fields}
    assert [key for key in sorted(keys - tables) if f"`{key}`" not in text] == []


def test_the_example_settings_know_every_setting(tmp_path: Path) -> None:
    """For a person without lsdflow: whatever `lsdflow submit` would write is in the example as well."""
    keys = set(re.findall(r"\b([A-Z][A-Z_]+)='", (WRAPPERS / "example.settings.env").read_text()))
    lines = settings_text(_experiment(tmp_path, '[cluster]\nmodules = "apptainer"\n')).splitlines()
    # PARTITION_CPU and PARTITION_GPU are the defaults of <STAGE>_PARTITION.
    written = {key for key in (line.partition("=")[0] for line in lines) if not key.endswith("_PARTITION")}
    assert written - keys == {"EXPERIMENT"}
    assert {"PARTITION_CPU", "PARTITION_GPU"} <= keys
