"""`sbatch slurm_wrappers/<stage>.sbatch EXPERIMENT`: a whole stage in one job, without lsdflow or a settings file."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from .conftest import DIGEST, STAGES, WRAPPERS, Cluster, write_sif

JOB = {"SLURM_JOB_ID": "104", "SLURM_CPUS_PER_TASK": "3"}
SIF = f"watershed_0.1.0_{DIGEST[7:19]}.sif"


@pytest.fixture
def spool(tmp_path: Path, cluster: Cluster, experiment: Path) -> Path:
    """The copy of the script that SLURM runs, alone in its folder; the job's record names the original."""
    folder = tmp_path / "spool"
    folder.mkdir()
    shutil.copy(WRAPPERS / "watershed.sbatch", folder / "slurm_script")
    cluster.answer(
        "scontrol", f"JobId=104 JobName=watershed\n   Command={WRAPPERS}/watershed.sbatch {experiment.name}\n"
    )
    write_sif(experiment / "images", "watershed")
    return folder / "slurm_script"


def _run(
    cluster: Cluster, spool: Path, experiment: Path, *more: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """The job of `sbatch .../watershed.sbatch exp`, called in the folder above the experiment."""
    command: list[str | Path] = ["bash", spool, experiment.name, *more]
    return cluster.run(command, cwd=experiment.parent, **{**JOB, **environment})


def _executed(cluster: Cluster) -> list[str]:
    (call,) = [call for call in cluster.calls("singularity") if call[0] == "exec"]
    return call


def test_a_task_of_an_array_finds_the_other_files_although_slurm_shows_a_record_of_each_task(
    cluster: Cluster, spool: Path, experiment: Path
) -> None:
    record = f"JobId=10{{}} ArrayTaskId={{}}\n   Command={WRAPPERS}/watershed.sbatch {experiment.name}\n\n"
    cluster.answer("scontrol", record.format(4, 2) + record.format(5, 1))
    done = _run(cluster, spool, experiment)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("script", [*STAGES, "sweep"])
def test_every_wrapper_says_how_it_is_called(cluster: Cluster, script: str) -> None:
    done = cluster.run(["bash", WRAPPERS / f"{script}.sbatch", "--help"])
    assert done.returncode == 0, done.stderr
    assert f"slurm_wrappers/{script}.sbatch" in done.stdout.splitlines()[0]
    assert "--cpus-per-task" in done.stdout
    assert done.stderr == ""
    nothing = cluster.run(["bash", WRAPPERS / f"{script}.sbatch"])
    assert (nothing.returncode, nothing.stderr, nothing.stdout) == (2, done.stdout, "")


def test_the_whole_stage_runs_in_the_pinned_image_on_the_cores_of_the_job(
    cluster: Cluster, spool: Path, experiment: Path
) -> None:
    done = _run(cluster, spool, experiment, "--set", "watershed.block_shape=128 vox", "--json")
    assert done.returncode == 0, done.stderr
    call = _executed(cluster)
    assert call[:2] == ["exec", "--nv"]
    assert call[call.index(str(experiment / "images" / SIF)) + 1 :] == [
        *("watershed", "run", "--experiment", f"{experiment}/experiment.toml"),
        *("--set", "compute.runner=daisy", "--set", "compute.workers=3"),
        *("--set", "watershed.block_shape=128 vox", "--json"),
    ]
    assert f"LSDFLOW_IMAGE_DIGEST={DIGEST}" in call
    assert cluster.calls("scontrol") == [["show", "job", "104"]]


def test_the_experiment_may_be_its_file_and_another_verb_may_be_named(
    cluster: Cluster, spool: Path, experiment: Path
) -> None:
    file = experiment / "other.toml"
    (experiment / "experiment.toml").rename(file)
    done = cluster.run(["bash", spool, file, "verify"], **JOB)
    assert done.returncode == 0, done.stderr
    call = _executed(cluster)
    assert call[call.index("watershed") :][:4] == ["watershed", "verify", "--experiment", str(file)]


def test_predict_has_a_worker_for_each_gpu_of_the_job(cluster: Cluster, experiment: Path) -> None:
    write_sif(experiment / "images", "predict")
    done = cluster.run(["bash", WRAPPERS / "predict.sbatch", experiment], **JOB, CUDA_VISIBLE_DEVICES="0,1")
    assert done.returncode == 0, done.stderr
    assert "compute.workers=2" in _executed(cluster)


@pytest.mark.parametrize("named", ["file", "file, absolute", "variable", "variable, relative"])
def test_the_folder_of_images_is_that_of_the_file_else_of_the_variable(
    cluster: Cluster, spool: Path, experiment: Path, named: str
) -> None:
    sifs = experiment.parent / "sifs"
    write_sif(sifs, "watershed")
    shutil.rmtree(experiment / "images")
    variable = {"variable": str(sifs), "variable, relative": "sifs"}.get(named, str(experiment.parent / "nowhere"))
    line = {"file": 'images = "../sifs"', "file, absolute": f"images='{sifs}'"}.get(named, "# no images")
    text = f'[segment]\nimages = "wrong"\n[cluster] # of the lab\n{line} # here\n[cluster.predict]\nimages = "wrong"\n'
    (experiment / "experiment.toml").write_text(text)
    done = _run(cluster, spool, experiment, LSDFLOW_IMAGES=variable)
    assert done.returncode == 0, done.stderr
    assert str(sifs / SIF) in _executed(cluster)


def test_a_missing_image_says_where_it_was_searched_and_how_it_is_made(
    cluster: Cluster, spool: Path, experiment: Path
) -> None:
    shutil.rmtree(experiment / "images")
    done = _run(cluster, spool, experiment)
    assert done.returncode == 66
    assert str(experiment / "images" / SIF) in done.stderr
    assert f"make sif STAGE=watershed SIF_DIR={experiment / 'images'}" in done.stderr
    assert "LSDFLOW_IMAGES" in done.stderr


@pytest.mark.proves("SCH-04")
def test_inputs_outside_of_the_experiment_are_bound_to_be_read(
    cluster: Cluster, spool: Path, experiment: Path, tmp_path: Path
) -> None:
    volume, truth, mask = tmp_path / "data" / "volume.zarr", tmp_path / "data" / "truth.hdf", tmp_path / "mask.hdf"
    (volume / "volumes" / "raw").mkdir(parents=True)
    (experiment / "inside").mkdir()
    truth.touch()
    mask.touch()
    lines = f'[prepare.target]\nraw = "{volume}/volumes/raw" # the lab\'s\n'
    relative = f"truth = '{os.path.relpath(truth, experiment)}'\nname = \"inside\"\n"
    (experiment / "experiment.toml").write_text(lines + relative)
    done = _run(cluster, spool, experiment, "--set", f"watershed.mask={mask}")
    assert done.returncode == 0, done.stderr
    call = _executed(cluster)
    bound = [call[i + 1] for i, word in enumerate(call) if word == "--bind"]
    assert bound[:-1] == [f"{path}:{path}:ro" for path in (volume, truth, mask)] + [str(experiment)]


def test_the_settings_file_of_an_experiment_has_priority(
    cluster: Cluster, spool: Path, experiment: Path, tmp_path: Path
) -> None:
    write_sif(tmp_path / "sifs", "watershed")
    (experiment / "experiment.toml").write_text(f'[cluster]\nimages = "{experiment / "images"}"\nmodules = "other"\n')
    lines = (
        f"IMAGES='{tmp_path / 'sifs'}'",
        "MODULES='singularity cuda/12'",
        "SET='watershed.size=7'",
        "BIND='/scratch'",
    )
    (experiment / "settings.env").write_text("".join(f"{line}\n" for line in lines))
    done = _run(cluster, spool, experiment, **cluster.module(tmp_path))
    assert done.returncode == 0, done.stderr
    call = _executed(cluster)
    assert str(tmp_path / "sifs" / SIF) in call
    assert call[call.index("/scratch") - 1] == "--bind"
    assert call[call.index("watershed.size=7") - 1] == "--set"
    assert (cluster.folder / "modules").read_text() == "load singularity cuda/12\n"


def test_modules_of_the_experiment_file_bring_the_program_of_the_containers(
    cluster: Cluster, spool: Path, experiment: Path, tmp_path: Path
) -> None:
    (experiment / "experiment.toml").write_text('[cluster]\nmodules = "singularity"\n')
    loaded = tmp_path / "loaded"
    loaded.mkdir()
    (cluster.folder / "bin" / "singularity").rename(loaded / "singularity")
    done = _run(cluster, spool, experiment, **cluster.module(loaded))
    assert done.returncode == 0, done.stderr
    assert _executed(cluster)[0] == "exec"


def test_a_module_that_is_not_there_is_an_error(
    cluster: Cluster, spool: Path, experiment: Path, tmp_path: Path
) -> None:
    (experiment / "experiment.toml").write_text('[cluster]\nmodules = "nothing"\n')
    done = _run(cluster, spool, experiment, **cluster.module(tmp_path))
    assert done.returncode == 66
    assert "module load nothing failed" in done.stderr
    assert cluster.calls("singularity") == []


def test_the_script_of_all_stages_may_be_submitted_with_the_name_of_one(
    cluster: Cluster, spool: Path, experiment: Path
) -> None:
    shutil.copy(WRAPPERS / "stage.sbatch", spool)
    cluster.answer("scontrol", f"JobId=104 JobName=stage.sbatch\n   Command={WRAPPERS}/stage.sbatch watershed exp\n")
    done = cluster.run(["bash", spool, "watershed", experiment], cwd=experiment.parent, **JOB)
    assert done.returncode == 0, done.stderr
    assert "watershed" in _executed(cluster)
    unknown = cluster.run(["bash", spool, "flood", experiment], **JOB)
    assert unknown.returncode == 2
    assert "no stage flood" in unknown.stderr


@pytest.mark.parametrize("code", [0, 65, 79])
def test_the_exit_code_of_the_stage_is_that_of_the_job(
    cluster: Cluster, spool: Path, experiment: Path, code: int
) -> None:
    cluster.answer("exec", code=code)
    assert _run(cluster, spool, experiment).returncode == code
    assert _executed(cluster)[0] == "exec"


def test_a_job_that_is_stopped_before_its_time_limit_goes_back_into_the_queue(
    cluster: Cluster, spool: Path, experiment: Path
) -> None:
    (cluster.folder / "sleeps").touch()
    child = cluster.start(["bash", spool, experiment], **JOB)
    cluster.wait_for("up")
    os.kill(child.pid, signal.SIGUSR2)
    output = child.communicate(timeout=600)[1]
    assert child.returncode == 75, output
    assert cluster.calls("scontrol")[-1] == ["requeue", "104"]


def test_without_the_other_files_of_the_wrappers_the_job_says_what_to_set(
    cluster: Cluster, spool: Path, experiment: Path
) -> None:
    cluster.answer("scontrol", "slurm_load_jobs error: Invalid job id specified\n", code=1)
    done = _run(cluster, spool, experiment)
    assert done.returncode == 66
    assert "LSDFLOW_WRAPPERS" in done.stderr
    assert _run(cluster, spool, experiment, LSDFLOW_WRAPPERS=str(WRAPPERS)).returncode == 0


def test_what_is_no_experiment_or_several_nodes_are_refused(cluster: Cluster, spool: Path, experiment: Path) -> None:
    assert cluster.run(["bash", spool, experiment / "nowhere"], **JOB).returncode == 66
    done = _run(cluster, spool, experiment, SLURM_NNODES="2")
    assert done.returncode == 2
    assert "lsdflow submit" in done.stderr
    assert cluster.calls("singularity") == []


def test_resources_of_a_stage_by_hand_are_not_those_of_a_chain(
    cluster: Cluster, experiment: Path, settings: Path
) -> None:
    command: list[str | Path] = [WRAPPERS / "pipeline.sh", "--experiment", experiment, "--settings", settings]
    assert cluster.run(command).returncode == 0
    (submission,) = (experiment / "runs" / "submit").iterdir()
    assert "\n#SBATCH" in (WRAPPERS / "predict.sbatch").read_text()
    assert [name for name in STAGES if "\n#SBATCH" in (submission / f"{name}.sbatch").read_text()] == []


def test_the_whole_container_of_an_array_is_bound_and_a_path_that_cannot_be_is_refused(
    cluster: Cluster, spool: Path, experiment: Path, tmp_path: Path
) -> None:
    volume, colon = tmp_path / "volume.n5", tmp_path / "a:b"
    (volume / "raw").mkdir(parents=True)
    colon.mkdir()
    (experiment / "experiment.toml").write_text(f'raw = "{volume}/raw"\n')
    assert _run(cluster, spool, experiment).returncode == 0
    assert f"{volume}:{volume}:ro" in _executed(cluster)
    (experiment / "experiment.toml").write_text(f'raw = "{colon}"\n')
    done = _run(cluster, spool, experiment)
    assert done.returncode == 78
    assert str(colon) in done.stderr


def test_the_file_of_the_database_may_be_named_by_the_variable(
    cluster: Cluster, spool: Path, experiment: Path, tmp_path: Path
) -> None:
    uri = tmp_path / "uri"
    uri.touch()
    assert _run(cluster, spool, experiment, MONGO_URI_FILE=str(uri)).returncode == 0
    assert f"MONGO_URI_FILE={uri}" in _executed(cluster)


def test_predict_without_gpus_has_a_worker_for_each_core_and_apptainer_serves_as_well(
    cluster: Cluster, experiment: Path
) -> None:
    write_sif(experiment / "images", "predict")
    program = cluster.folder / "bin" / "singularity"
    script = program.read_text().replace("Path(sys.argv[0]).name", '"singularity"', 1)
    program.with_name("apptainer").write_text(script)
    program.with_name("apptainer").chmod(0o755)
    program.unlink()
    # This machine may have the real one: everything else of its programs.
    others = cluster.folder / "others"
    others.mkdir()
    for path in (p for folder in ("/usr/bin", "/bin") for p in Path(folder).iterdir()):
        if path.name not in ("singularity", "apptainer") and not (others / path.name).is_symlink():
            (others / path.name).symlink_to(path)
    search = f"{program.parent}:{others}"
    done = cluster.run(["bash", WRAPPERS / "predict.sbatch", experiment], PATH=search, **JOB)
    assert done.returncode == 0, done.stderr
    assert "compute.workers=3" in _executed(cluster)
