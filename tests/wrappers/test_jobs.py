"""What a job does, by the scripts beside pipeline.sh: the checked SIF, the line of the container, the way back."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from .conftest import ADDRESS, DIGEST, Cluster, write_sif

JOB = {"SLURM_JOB_ID": "104"}
OTHER = "sha256:" + "cd34" * 16
PASSWORD = "s3cret-of-the-lab"


def _run(cluster: Cluster, submission: Path, stage: str, *role: str, **more: str) -> subprocess.CompletedProcess[str]:
    return cluster.run(["bash", submission / f"{stage}.sbatch", submission, *role], **{**JOB, **more})


def _executed(cluster: Cluster) -> list[list[str]]:
    return [call for call in cluster.calls("singularity") if call[0] == "exec"]


def _exec_ends_with(cluster: Cluster, code: int) -> None:
    """The exit code of `singularity exec`; `inspect` continues to answer."""
    cluster.answer("exec", code=code)


def _pin(submission: Path, stage: str, image: str) -> None:
    key = f"{stage.upper()}_IMAGE="
    lines = (submission / "images.env").read_text().splitlines()
    (submission / "images.env").write_text("".join((key + image if x.startswith(key) else x) + "\n" for x in lines))


def _set(submission: Path, *lines: str) -> None:
    with (submission / "settings.env").open("a") as file:
        file.writelines(f"{line}\n" for line in lines)


# --- which SIF ------------------------------------------------------------------------------------------------------
def test_a_sif_of_another_stage_version_or_digest_is_refused(
    cluster: Cluster, submission: Path, tmp_path: Path
) -> None:
    name = f"watershed_0.1.0_{DIGEST[7:19]}.sif"
    for stage, version, digest in (
        ("segment", "0.1.0", DIGEST),
        ("watershed", "0.2.0", DIGEST),
        ("watershed", "0.1.0", OTHER),
    ):
        write_sif(tmp_path / "images", stage, version, digest, name=name)
        done = _run(cluster, submission, "watershed", "verify")
        assert done.returncode == 76
        assert f"found: {stage} {version} {digest}" in done.stderr
        assert "correct WATERSHED_IMAGE" in done.stderr
    assert _executed(cluster) == []


def test_a_missing_sif_says_how_to_make_it(cluster: Cluster, submission: Path, tmp_path: Path) -> None:
    (tmp_path / "images" / f"watershed_0.1.0_{DIGEST[7:19]}.sif").unlink()
    write_sif(tmp_path / "images", "watershed", "0.0.9")
    done = _run(cluster, submission, "watershed", "verify")
    assert done.returncode == 66
    assert f"watershed_0.0.9_{DIGEST[7:19]}.sif" in done.stderr
    assert f"make sif STAGE=watershed SIF_DIR={tmp_path / 'images'}" in done.stderr


@pytest.mark.parametrize(
    "image",
    ["lsdflow/watershed:latest", "lsdflow/watershed", "", f"lsdflow/watershed@{DIGEST}", "lsdflow/watershed:1 --nv"],
)
def test_a_pin_without_a_fixed_version_is_refused(cluster: Cluster, submission: Path, image: str) -> None:
    _pin(submission, "watershed", image)
    done = _run(cluster, submission, "watershed", "verify")
    assert done.returncode == 78
    assert "WATERSHED_IMAGE" in done.stderr
    assert cluster.calls("singularity") == []


def test_a_pin_without_digest_wants_a_single_sif_of_its_version(
    cluster: Cluster, submission: Path, tmp_path: Path
) -> None:
    _pin(submission, "watershed", "lsdflow/watershed:0.1.0")
    assert _run(cluster, submission, "watershed", "verify").returncode == 0
    assert f"LSDFLOW_IMAGE_DIGEST={DIGEST}" in _executed(cluster)[0]
    write_sif(tmp_path / "images", "watershed", digest=OTHER)
    done = _run(cluster, submission, "watershed", "verify")
    assert done.returncode == 76
    assert "a pin with @sha256:" in done.stderr


def test_a_job_keeps_to_the_pins_of_its_submission(
    cluster: Cluster, submission: Path, experiment: Path, tmp_path: Path
) -> None:
    (experiment / "images.env").write_text("WATERSHED_IMAGE=lsdflow/watershed:0.9.9\n")
    assert _run(cluster, submission, "watershed", "verify").returncode == 0
    assert str(tmp_path / "images" / f"watershed_0.1.0_{DIGEST[7:19]}.sif") in _executed(cluster)[0]


# --- how it is called -----------------------------------------------------------------------------------------------
@pytest.mark.proves("SCH-04")
def test_the_whole_line_of_a_worker(cluster: Cluster, submission: Path, experiment: Path, tmp_path: Path) -> None:
    _set(submission, "BIND_RO='/data/volumes'", "BIND='/scratch/lab'", "SET='watershed.block_shape=128 vox'")
    array = {"SLURM_ARRAY_JOB_ID": "102", "SLURM_ARRAY_TASK_ID": "3", "SLURM_RESTART_COUNT": "2"}
    cores = {"SLURM_CPUS_PER_TASK": "4", "SLURM_NODEID": "0"}
    done = _run(
        cluster,
        submission,
        "watershed",
        "work",
        "101",
        **array,
        **cores,
        CUDA_VISIBLE_DEVICES="1",
        TMPDIR=str(tmp_path),
    )
    assert done.returncode == 0, done.stderr
    (call,) = _executed(cluster)
    (temporary,) = {word.removesuffix(":/tmp") for word in call if word.endswith(":/tmp")}
    assert temporary.startswith(f"{tmp_path}/lsdflow-102_3-")
    assert call == [
        *("exec", "--nv", "--cleanenv", "--no-eval", "--no-home", "--no-mount", "tmp", "--pwd", str(experiment)),
        *("--bind", "/data/volumes:/data/volumes:ro", "--bind", str(experiment), "--bind", "/scratch/lab"),
        *("--bind", f"{temporary}:/tmp", "--env", "TMPDIR=/tmp"),
        *("--env", f"LSDFLOW_IMAGE_DIGEST={DIGEST}", "--env", f"LSDFLOW_HOST={ADDRESS}"),
        *("--env", f"LSDFLOW_SUBMISSION={submission.name}", "--env", "LSDFLOW_JOB=102_3 restart 2"),
        *("--env", "CUDA_VISIBLE_DEVICES=1", "--env", "SLURM_CPUS_PER_TASK=4", "--env", "SLURM_NODEID=0"),
        str(tmp_path / "images" / f"watershed_0.1.0_{DIGEST[7:19]}.sif"),
        *("watershed", "worker", "--experiment", f"{experiment}/experiment.toml"),
        *("--set", "watershed.block_shape=128 vox"),
    ]
    assert not Path(temporary).exists()


def _passed_on(call: list[str]) -> set[str]:
    """NAME=value of all variables that the container gets."""
    return {call[i + 1] for i, word in enumerate(call) if word == "--env"}


@pytest.mark.parametrize("role", ["run", "step"])
def test_a_training_gets_the_cores_of_its_job(cluster: Cluster, submission: Path, role: str) -> None:
    given = {
        "SLURM_CPUS_PER_TASK": "6",
        "SLURM_JOB_CPUS_PER_NODE": "6(x2),12",
        "SLURM_TASKS_PER_NODE": "1(x2),2",
        "SLURM_NODEID": "2",
    }
    done = _run(cluster, submission, "train-lsd", role, **given)
    assert done.returncode == 0, done.stderr
    (call,) = _executed(cluster)
    assert {f"{name}={value}" for name, value in given.items()} <= _passed_on(call)


@pytest.mark.parametrize(
    ("stage", "role", "words"),
    [
        ("watershed", ["coordinate"], ["watershed", "run", "--set", "compute.runner=cluster"]),
        ("watershed", ["verify"], ["watershed", "verify"]),
        ("prepare", ["run"], ["prepare", "run"]),
        ("train-lsd", ["run"], ["train-lsd", "run"]),
        ("evaluate", ["verify"], ["evaluate", "verify"]),
    ],
)
def test_each_role_is_a_verb_of_the_stage(
    cluster: Cluster, submission: Path, experiment: Path, stage: str, role: list[str], words: list[str]
) -> None:
    assert _run(cluster, submission, stage, *role).returncode == 0
    (call,) = _executed(cluster)
    arguments = call[call.index(stage) :]
    assert arguments == [*words[:2], "--experiment", f"{experiment}/experiment.toml", *words[2:]]


def test_a_role_that_is_none_is_a_usage_error(cluster: Cluster, submission: Path) -> None:
    assert _run(cluster, submission, "watershed", "run").returncode == 2
    assert _executed(cluster) == []


def test_the_password_is_bound_as_a_file_and_appears_nowhere_else(
    cluster: Cluster, submission: Path, tmp_path: Path
) -> None:
    uri = tmp_path / "mongo.uri"
    uri.write_text(f"mongodb://me:{PASSWORD}@db/exp\n")
    _set(submission, f"MONGO_URI_FILE='{uri}'")
    done = _run(cluster, submission, "watershed", "coordinate")
    (call,) = _executed(cluster)
    assert f"{uri}:{uri}:ro" in call
    assert f"MONGO_URI_FILE={uri}" in call
    everything = done.stdout + done.stderr + (cluster.folder / "calls").read_text()
    assert PASSWORD not in everything


@pytest.mark.parametrize(
    "value", ["$(touch {mark})", "`touch {mark}`", 'a"b; touch {mark}', "* ? [a]", "-x --nv", "a\\nb"]
)
def test_a_value_is_never_evaluated(cluster: Cluster, submission: Path, tmp_path: Path, value: str) -> None:
    mark = tmp_path / "executed"
    text = value.format(mark=mark)
    _set(submission, f"SET='predict.note={text}'", f"BIND='/data/{text}'")
    done = _run(cluster, submission, "watershed", "coordinate")
    assert done.returncode == 0, done.stderr
    (call,) = _executed(cluster)
    assert {f"predict.note={text}", f"/data/{text}"} <= set(call)
    printed = next(line for line in done.stderr.splitlines() if line.startswith("$ singularity"))
    cluster.run(["bash", "-c", printed.removeprefix("$ ")])
    assert _executed(cluster)[1] == call
    assert not mark.exists()


def test_the_address_for_workers_is_of_the_named_interface(cluster: Cluster, submission: Path) -> None:
    _set(submission, "INTERFACE='ib0'")
    cluster.answer("ip", "3: ib0    inet 10.9.8.7/16 brd 10.9.255.255 scope global ib0\n")
    _run(cluster, submission, "watershed", "coordinate")
    assert "LSDFLOW_HOST=10.9.8.7" in _executed(cluster)[0]
    assert cluster.calls("ip") == [["-o", "-4", "address", "show", "dev", "ib0"]]


def test_a_node_without_address_is_refused(cluster: Cluster, submission: Path) -> None:
    cluster.answer("hostname", "127.0.0.1 ::1\n")
    done = _run(cluster, submission, "watershed", "coordinate")
    assert done.returncode == 78
    assert "no address that workers could reach" in done.stderr
    assert _executed(cluster) == []


# --- how it ends ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("code", [0, 65, 70, 79])
def test_the_exit_code_of_the_stage_is_that_of_the_job(cluster: Cluster, submission: Path, code: int) -> None:
    _exec_ends_with(cluster, code)
    assert _run(cluster, submission, "watershed", "coordinate").returncode == code
    assert cluster.calls("scontrol") == []


@pytest.mark.parametrize(
    ("stage", "role"),
    [("watershed", "coordinate"), ("watershed", "verify"), ("train-lsd", "run"), ("prepare", "run")],
)
def test_a_stage_that_fails_leaves_a_report_and_its_own_exit_code(
    cluster: Cluster, submission: Path, experiment: Path, tmp_path: Path, stage: str, role: str
) -> None:
    _set(submission, "SET='segment.threshold=0.4'")
    _exec_ends_with(cluster, 70)
    assert _run(cluster, submission, stage, role).returncode == 70
    _, report = _executed(cluster)
    sif = str(tmp_path / "images" / f"evaluate_0.1.0_{DIGEST[7:19]}.sif")
    assert report[report.index(sif) :] == [
        *(sif, "evaluate", "report", "--experiment", f"{experiment}/experiment.toml"),
        *("--set", "segment.threshold=0.4"),
    ]


@pytest.mark.parametrize(
    ("stage", "role", "code"),
    [
        ("watershed", ["coordinate"], 0),
        ("watershed", ["coordinate"], 75),
        ("watershed", ["work", "101"], 70),
        ("evaluate", ["verify"], 70),
    ],
)
def test_workers_interrupted_jobs_and_evaluate_itself_write_no_report(
    cluster: Cluster, submission: Path, stage: str, role: list[str], code: int
) -> None:
    _exec_ends_with(cluster, code)
    _run(cluster, submission, stage, *role)
    assert ["report" in call for call in _executed(cluster)] == [False]


def test_a_report_that_cannot_be_written_changes_no_exit_code(
    cluster: Cluster, submission: Path, experiment: Path, tmp_path: Path
) -> None:
    (tmp_path / "images" / f"evaluate_0.1.0_{DIGEST[7:19]}.sif").unlink()
    _exec_ends_with(cluster, 65)
    done = _run(cluster, submission, "watershed", "coordinate")
    assert done.returncode == 65
    assert "error: no SIF of evaluate" in done.stderr
    assert f"no report of the failure: lsdflow report {experiment}" in done.stderr
    assert len(_executed(cluster)) == 1


def _interrupted(cluster: Cluster, submission: Path, number: int, *role: str, **more: str) -> tuple[int, str]:
    """A job that a signal stops: exit code and output."""
    (cluster.folder / "sleeps").touch()
    command: list[str | Path] = ["bash", submission / "watershed.sbatch", submission, *role]
    child = cluster.start(command, **{**JOB, **more})
    cluster.wait_for("up")
    os.kill(child.pid, number)
    output = child.communicate(timeout=600)[1]
    return child.returncode, output


@pytest.mark.proves("TRB-26")
def test_a_job_whose_time_is_up_goes_back_into_the_queue_before_it_ends(cluster: Cluster, submission: Path) -> None:
    code, output = _interrupted(cluster, submission, signal.SIGUSR2, "coordinate")
    assert code == 75
    assert cluster.calls("scontrol") == [["requeue", "104"]]
    assert "ended with exit code 75 after SIGUSR2" in output


def test_a_job_never_ends_before_its_program_however_often_it_is_signalled(cluster: Cluster, submission: Path) -> None:
    (cluster.folder / "sleeps").touch()
    child = cluster.start(["bash", submission / "watershed.sbatch", submission, "coordinate"], **JOB)
    cluster.wait_for("up")
    for number in (signal.SIGUSR2, signal.SIGUSR2, signal.SIGTERM):
        os.kill(child.pid, number)
        time.sleep(0.2)
    assert child.poll() is None
    output = child.communicate(timeout=600)[1]
    assert (cluster.folder / "stopped").exists(), output
    assert child.returncode == 75
    assert cluster.calls("scontrol") == []


def test_a_task_of_an_array_goes_back_under_its_own_number(cluster: Cluster, submission: Path) -> None:
    cluster.answer("squeue", "RUNNING\n")
    array = {"SLURM_ARRAY_JOB_ID": "102", "SLURM_ARRAY_TASK_ID": "3"}
    assert _interrupted(cluster, submission, signal.SIGUSR2, "work", "101", **array)[0] == 75
    assert cluster.calls("scontrol") == [["requeue", "102_3"]]


def test_a_cancelled_job_does_not_come_back(cluster: Cluster, submission: Path) -> None:
    code, output = _interrupted(cluster, submission, signal.SIGTERM, "coordinate")
    assert code == 75
    assert "after SIGTERM" in output
    assert cluster.calls("scontrol") == []


def test_a_stage_that_stopped_by_itself_comes_back_as_well(cluster: Cluster, submission: Path) -> None:
    _exec_ends_with(cluster, 75)
    assert _run(cluster, submission, "watershed", "coordinate").returncode == 75
    assert cluster.calls("scontrol") == [["requeue", "104"]]


def test_a_job_comes_back_so_often_and_no_more(cluster: Cluster, submission: Path) -> None:
    _exec_ends_with(cluster, 75)
    assert _run(cluster, submission, "watershed", "coordinate", SLURM_RESTART_COUNT="19").returncode == 75
    done = _run(cluster, submission, "watershed", "coordinate", SLURM_RESTART_COUNT="20")
    assert done.returncode == 70
    assert "after 20 restarts" in done.stderr
    assert len(cluster.calls("scontrol")) == 1


def test_a_requeue_that_slurm_refuses_is_reported(cluster: Cluster, submission: Path) -> None:
    _exec_ends_with(cluster, 75)
    cluster.answer("scontrol", code=1)
    done = _run(cluster, submission, "watershed", "coordinate")
    assert done.returncode == 69
    assert "submit it again" in done.stderr


@pytest.mark.parametrize(
    ("answer", "squeue_code", "code", "requeued"),
    [
        ("RUNNING\n", 0, 75, True),
        ("", 0, 0, False),
        ("slurm_load_jobs error: Invalid job id specified\n", 1, 0, False),
        ("Unable to contact slurm controller\n", 1, 75, True),
    ],
)
def test_a_worker_comes_back_only_while_its_coordinator_may_be_there(
    cluster: Cluster, submission: Path, answer: str, squeue_code: int, code: int, requeued: bool
) -> None:
    _exec_ends_with(cluster, 75)
    cluster.answer("squeue", answer, squeue_code)
    assert _run(cluster, submission, "watershed", "work", "101").returncode == code
    assert cluster.calls("scontrol") == ([["requeue", "104"]] if requeued else [])


def test_verify_cancels_workers_that_wait_first_and_all_others_when_it_has_looked(
    cluster: Cluster, submission: Path
) -> None:
    assert _run(cluster, submission, "watershed", "verify").returncode == 0
    assert cluster.calls("scancel") == [["--quiet", "--state=PENDING", "102"], ["--quiet", "102"]]


def test_verify_that_is_stopped_leaves_running_workers_alone(cluster: Cluster, submission: Path) -> None:
    _exec_ends_with(cluster, 75)
    _run(cluster, submission, "watershed", "verify")
    assert cluster.calls("scancel") == [["--quiet", "--state=PENDING", "102"]]


# --- training on several nodes -------------------------------------------------------------------------------------
def test_each_step_of_a_training_loads_the_modules(cluster: Cluster, submission: Path, tmp_path: Path) -> None:
    _set(submission, "MODULES='singularity'")
    assert _run(cluster, submission, "train-lsd", "step", **cluster.module(tmp_path)).returncode == 0
    assert (cluster.folder / "modules").read_text() == "load singularity\n"


def test_a_training_on_several_nodes_is_one_step_a_node(cluster: Cluster, submission: Path) -> None:
    assert _run(cluster, submission, "train-lsd", "run", SLURM_NNODES="4").returncode == 0
    assert cluster.calls("srun") == [
        [
            *("--nodes=4", "--ntasks=4", "--ntasks-per-node=1", "--kill-on-bad-exit=1"),
            *("bash", f"{submission}/train-lsd.sbatch", str(submission), "step"),
        ]
    ]
    assert _executed(cluster) == []


def test_each_step_of_a_training_has_the_cores_that_were_asked_for_on_a_node(
    cluster: Cluster, submission: Path
) -> None:
    given = {"SLURM_NNODES": "2", "SLURM_CPUS_PER_TASK": "8"}
    assert _run(cluster, submission, "train-lsd", "run", **given).returncode == 0
    (call,) = cluster.calls("srun")
    assert call.index("--cpus-per-task=8") < call.index("bash")


def test_a_step_passes_its_number_among_the_nodes_to_the_training(
    cluster: Cluster, submission: Path, experiment: Path
) -> None:
    given = {
        "MASTER_ADDR": "10.1.2.3",
        "MASTER_PORT": "20123",
        "SLURM_PROCID": "2",
        "SLURM_NTASKS": "3",
        "SLURM_LOCALID": "0",
        "SLURM_NNODES": "3",
        "SLURM_RESTART_COUNT": "1",
        "SLURM_STEP_NUM_TASKS": "3",
        "SLURM_STEP_NUM_NODES": "3",
        "SLURM_STEP_NODELIST": "gpu[09-10],big",
        "SLURM_STEP_TASKS_PER_NODE": "1(x3)",
        "SLURMD_NODENAME": "big",
    }
    done = _run(cluster, submission, "train-acrlsd", "step", **given)
    assert done.returncode == 0, done.stderr
    (call,) = _executed(cluster)
    assert {f"{name}={value}" for name, value in {**JOB, **given}.items()} <= _passed_on(call)
    assert call[-4:] == ["train-acrlsd", "run", "--experiment", f"{experiment}/experiment.toml"]


def test_the_steps_of_a_training_meet_at_the_first_node_at_a_port_of_the_job(
    cluster: Cluster, submission: Path
) -> None:
    (cluster.folder / "bin" / "srun").unlink()
    (cluster.folder / "bin" / "srun").write_text('#!/bin/bash\necho "$MASTER_ADDR:$MASTER_PORT" >&2\n')
    (cluster.folder / "bin" / "srun").chmod(0o755)
    done = _run(cluster, submission, "train-lsd", "run", SLURM_NNODES="2", SLURM_JOB_ID="40123")
    assert "10.1.2.3:20123" in done.stderr


def test_a_training_of_which_a_node_was_killed_comes_back(cluster: Cluster, submission: Path) -> None:
    cluster.answer("srun", code=137)
    assert _run(cluster, submission, "train-lsd", "run", SLURM_NNODES="2").returncode == 75
    assert cluster.calls("scontrol") == [["requeue", "104"]]


def test_an_interrupted_training_on_several_nodes_comes_back_as_one_job(cluster: Cluster, submission: Path) -> None:
    cluster.answer("srun", code=75)
    assert _run(cluster, submission, "train-lsd", "run", SLURM_NNODES="2").returncode == 75
    assert cluster.calls("scontrol") == [["requeue", "104"]]


def test_a_step_uses_the_named_interface_and_passes_on_the_memory_of_the_job(
    cluster: Cluster, submission: Path
) -> None:
    _set(submission, "INTERFACE='ib0'")
    cluster.answer("ip", "3: ib0    inet 10.9.8.7/16 brd 10.9.255.255 scope global ib0\n")
    given = {"SLURM_MEM_PER_NODE": "8192", "SLURM_MEM_PER_CPU": "1024"}
    assert _run(cluster, submission, "train-lsd", "step", **given).returncode == 0
    wanted = {"GLOO_SOCKET_IFNAME=ib0", "NCCL_SOCKET_IFNAME=ib0", *(f"{k}={v}" for k, v in given.items())}
    assert wanted <= set(_executed(cluster)[0])


def test_the_steps_of_a_job_get_its_environment(cluster: Cluster, submission: Path) -> None:
    script = cluster.folder / "bin" / "srun"
    script.write_text('#!/bin/bash\necho "exported: $SLURM_EXPORT_ENV" >&2\n')
    done = _run(cluster, submission, "train-lsd", "run", SLURM_NNODES="2", SLURM_EXPORT_ENV="NONE")
    assert "exported: ALL" in done.stderr


def test_the_settings_limit_the_restarts_and_without_a_job_nothing_is_requeued(
    cluster: Cluster, submission: Path
) -> None:
    _exec_ends_with(cluster, 75)
    _set(submission, "MAX_RESTARTS='1'")
    assert _run(cluster, submission, "watershed", "coordinate", SLURM_RESTART_COUNT="1").returncode == 70
    assert _run(cluster, submission, "watershed", "coordinate", SLURM_JOB_ID="").returncode == 75
    assert cluster.calls("scontrol") == []


def test_a_setting_with_a_control_character_is_refused(cluster: Cluster, submission: Path) -> None:
    _set(submission, "SET='a\tb'")
    done = _run(cluster, submission, "watershed", "coordinate")
    assert done.returncode == 78
    assert "a control character" in done.stderr
