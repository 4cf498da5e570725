"""`lsdflow run --backend container`: the command lines, what the container sees of the host, and what is refused."""

from __future__ import annotations

import csv
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from lsdflow_contract import CONTRACT_VERSION
from lsdflow_contract.errors import ConfigError
from lsdflow_contract.experiment import STAGES, load_experiment
from lsdflow_launch.images.container import Containers
from lsdflow_launch.images.engines import mounts_of
from lsdflow_launch.init.draft import images_text

ID = "sha256:" + "ab" * 32
PASSWORD = "s3cret-of-the-lab"
# Answers `image inspect` from a file of facts, keeps every `run` in a list, exits with the given code.
FAKE_DOCKER = """#!{python}
import json, sys, time
from pathlib import Path
here = Path({folder!r})
if not (here / "daemon").exists():
    sys.exit(print("Cannot connect to the Docker daemon", file=sys.stderr) or 1)
if sys.argv[1:3] == ["image", "inspect"]:
    facts = json.loads((here / "images.json").read_text()).get(sys.argv[3])
    if facts is None:
        sys.exit(print("Error: No such image: " + sys.argv[3], file=sys.stderr) or 1)
    print(json.dumps([facts]))
else:
    with (here / "calls").open("a") as calls:
        calls.write(json.dumps(sys.argv[1:]) + "\\n")
    if (here / "sleep").exists():
        time.sleep(30)
    stage = next(part for part in sys.argv if part.startswith("lsdflow-")).split("-", 2)[2].rsplit("-", 1)[0]
    sys.exit(int((here / "fail").read_text()) if (here / "fail").exists() and stage == "watershed" else 0)
"""


def _facts(stage: str, **labels: str) -> dict[str, Any]:
    labels = {
        "lsdflow.stage": stage,
        "lsdflow.contract": CONTRACT_VERSION,
        "org.opencontainers.image.version": "0.1.0",
        **labels,
    }
    return {"Id": ID, "RepoDigests": [], "Config": {"Labels": labels}}


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "docker"
    folder.mkdir()
    program = folder / "docker"
    program.write_text(FAKE_DOCKER.format(python=sys.executable, folder=str(folder)))
    program.chmod(0o755)
    (folder / "daemon").touch()
    _images(folder, {f"lsdflow/{stage}:0.1.0": _facts(stage) for stage in STAGES})
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.delenv("MONGO_URI_FILE", raising=False)
    return folder


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    folder = tmp_path / "experiment"
    folder.mkdir()
    _write(folder, '[experiment]\nname = "exp"\nmode = "acrlsd"\n')
    lines = [f"{stage.upper().replace('-', '_')}_IMAGE=lsdflow/{stage}:0.1.0" for stage in STAGES]
    (folder / "images.env").write_text("\n".join(lines) + "\n")
    return folder


def _images(docker: Path, images: dict[str, Any]) -> None:
    (docker / "images.json").write_text(json.dumps(images))


def _write(folder: Path, text: str) -> None:
    (folder / "experiment.toml").write_text(text)


def _repin(folder: Path, stage: str, image: str) -> None:
    key = f"{stage.upper()}_IMAGE="
    lines = (folder / "images.env").read_text().splitlines()
    (folder / "images.env").write_text("\n".join(key + image if x.startswith(key) else x for x in lines))


def _lsdflow(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = "from lsdflow_launch.cli import main; main()"
    return subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)


def _run(experiment: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return _lsdflow("run", str(experiment), "--backend", "container", "--engine", "docker", *arguments)


def _calls(docker: Path) -> list[list[str]]:
    return [json.loads(line) for line in (docker / "calls").read_text().splitlines()] if _called(docker) else []


def _called(docker: Path) -> bool:
    return (docker / "calls").exists()


def _mounted(command: list[str]) -> dict[str, tuple[str, bool]]:
    """target -> (source, writable) of a command line's --mount options."""
    found = {}
    for option, value in itertools.pairwise(command):
        if option == "--mount":
            fields = next(csv.reader([value]))
            parts = dict(f.split("=", 1) for f in fields if "=" in f)
            found[parts["target"]] = (parts["source"], "ro" not in fields)
    return found


def test_every_stage_runs_by_the_id_of_its_checked_image_with_nothing_to_gain(docker: Path, experiment: Path) -> None:
    done = _run(experiment)
    assert done.returncode == 0, done.stderr
    calls = _calls(docker)
    assert [call[call.index(ID) + 1 :] for call in calls] == [
        ["run", "--experiment", str(experiment / "experiment.toml")]
    ] * len(STAGES)
    for call in calls:
        options = set(call[: call.index(ID)])
        assert {"--rm", "--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--init"} <= options
        assert {"--network=none", f"--user={os.getuid()}:{os.getgid()}", "--pull=never"} <= options
        assert "--privileged" not in options
        assert f"LSDFLOW_IMAGE_DIGEST={ID}" in options
        assert _mounted(call) == {str(experiment): (str(experiment), True)}


def test_every_command_is_printed_before_it_runs(docker: Path, experiment: Path) -> None:
    output = _run(experiment, "--to", "prepare").stderr
    assert "$ docker run --rm" in output
    assert f"prepare: lsdflow/prepare:0.1.0 is {ID}" in output


@pytest.mark.parametrize(("option", "given"), [("--quiet", ["LSDFLOW_LOUDNESS=quiet"]), ("--json", [])])
def test_a_stage_in_a_container_is_as_loud_as_the_command(
    docker: Path, experiment: Path, option: str, given: list[str]
) -> None:
    _run(experiment, "--to", "prepare", option)
    assert [word for word in _calls(docker)[0] if word.startswith("LSDFLOW_LOUDNESS")] == given


def test_overrides_reach_the_stage_in_the_container(docker: Path, experiment: Path) -> None:
    _run(experiment, "--set", "compute.workers=5", "--to", "prepare")
    assert _calls(docker)[0][-2:] == ["--set", "compute.workers=5"]


@pytest.mark.proves("PRD-10")
@pytest.mark.parametrize("name", ["plain", "with space", "comma,and:colon", 'quo"te', "$(touch gone)", "ü"])
def test_inputs_outside_are_mounted_read_only_at_their_own_path(
    docker: Path, experiment: Path, tmp_path: Path, name: str
) -> None:
    volume = tmp_path / name / "raw.zarr"
    (volume / "volumes" / "raw").mkdir(parents=True)
    given = json.dumps(f"../{name}/raw.zarr/volumes/raw", ensure_ascii=False)
    _write(experiment, f"[prepare.target]\nraw = {given}\ntruth = 'input/inside.zarr'\n")
    (experiment / "input" / "inside.zarr").mkdir(parents=True)
    assert _run(experiment, "--to", "prepare").returncode == 0
    assert _mounted(_calls(docker)[0]) == {
        str(experiment): (str(experiment), True),
        str(volume): (str(volume), False),
    }


def test_what_a_link_or_a_json_region_points_to_is_mounted_as_well(experiment: Path, tmp_path: Path) -> None:
    (tmp_path / "far" / "real.zarr").mkdir(parents=True)
    (tmp_path / "link.zarr").symlink_to(tmp_path / "far" / "real.zarr")
    (tmp_path / "region.json").write_text(json.dumps({"container": "far/real.zarr", "offset": [0], "size": [1]}))
    _write(experiment, '[prepare.target]\nraw = "../link.zarr"\ntruth = "../region.json"\n')
    mounts = {str(m.target): (str(m.source), m.writable) for m in mounts_of(load_experiment(experiment))}
    assert mounts[str(tmp_path / "link.zarr")] == (str(tmp_path / "far" / "real.zarr"), False)
    assert mounts[str(tmp_path / "region.json")] == (str(tmp_path / "region.json"), False)
    assert mounts[str(tmp_path / "far" / "real.zarr")] == (str(tmp_path / "far" / "real.zarr"), False)


def test_the_root_of_the_file_system_is_never_mounted(experiment: Path) -> None:
    _write(experiment, '[prepare.target]\nraw = "/"\n')
    with pytest.raises(ConfigError, match="root of the file system"):
        mounts_of(load_experiment(experiment))


def test_a_mongo_store_opens_the_network_and_gives_the_uri_by_file_alone(
    docker: Path, experiment: Path, tmp_path: Path
) -> None:
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "uri").write_text(f"mongodb://me:{PASSWORD}@127.0.0.1/exp?tlsCAFile={secrets / 'ca.crt'}\n")
    (secrets / "ca.crt").touch()
    (secrets / "other").touch()
    _write(experiment, '[experiment]\nname = "exp"\n[store]\nengine = "mongo"\nuri_file = "../secrets/uri"\n')
    done = _run(experiment, "--to", "prepare")
    call = _calls(docker)[0]
    assert "--network=host" in call
    assert f"MONGO_URI_FILE={secrets / 'uri'}" in call
    assert set(_mounted(call)) == {str(experiment), str(secrets / "uri"), str(secrets / "ca.crt")}
    assert PASSWORD not in done.stderr + done.stdout + json.dumps(call)
    _run(experiment, "--to", "prepare", "--network", "lab")
    assert "--network=lab" in _calls(docker)[1]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({"lsdflow.stage": "segment"}, "stage segment"),
        ({"lsdflow.stage": ""}, "no stage on the image"),
        ({"org.opencontainers.image.version": "0.2.0"}, "version 0.2.0"),
        ({"lsdflow.contract": "9.0.0"}, "contract 9.0.0"),
    ],
)
def test_an_image_that_is_another_one_is_refused_before_any_stage_runs(
    docker: Path, experiment: Path, labels: dict[str, str], expected: str
) -> None:
    images = {f"lsdflow/{stage}:0.1.0": _facts(stage) for stage in STAGES}
    _images(docker, images | {"lsdflow/watershed:0.1.0": _facts("watershed", **labels)})
    done = _run(experiment)
    assert done.returncode == 76
    assert expected in done.stderr
    assert "WATERSHED_IMAGE" in done.stderr
    assert not _called(docker)


def test_a_tag_that_has_moved_since_it_was_pinned_is_refused(docker: Path, experiment: Path) -> None:
    _repin(experiment, "watershed", "lsdflow/watershed:0.1.0@sha256:" + "cd" * 32)
    done = _run(experiment)
    assert done.returncode == 76
    assert "cd" * 32 in done.stderr
    assert ID in done.stderr
    assert not _called(docker)


@pytest.mark.parametrize("registry_knows", [True, False])
def test_a_pinned_digest_is_the_registrys_or_the_id_of_a_local_image(
    docker: Path, experiment: Path, registry_knows: bool
) -> None:
    digest = "sha256:" + "ef" * 32 if registry_knows else ID
    facts = _facts("prepare") | {"RepoDigests": [f"lsdflow/prepare@{digest}"] if registry_knows else []}
    # What was pulled by digest has no tag.
    _images(docker, {f"lsdflow/prepare@{digest}" if registry_knows else "lsdflow/prepare:0.1.0": facts})
    _repin(experiment, "prepare", f"lsdflow/prepare:0.1.0@{digest}")
    assert _run(experiment, "--to", "prepare").returncode == 0
    assert f"LSDFLOW_IMAGE_DIGEST={digest}" in _calls(docker)[0]


def test_an_image_that_is_not_here_says_how_to_get_it(docker: Path, experiment: Path) -> None:
    _images(docker, {})
    done = _run(experiment)
    assert done.returncode == 66
    assert "docker pull lsdflow/prepare:0.1.0" in done.stderr
    assert "make image STAGE=prepare" in done.stderr


def test_a_daemon_that_does_not_answer_is_no_missing_image(docker: Path, experiment: Path) -> None:
    (docker / "daemon").unlink()
    done = _run(experiment)
    assert done.returncode == 69
    assert "Cannot connect" in done.stderr


def test_the_exit_code_comes_through_and_the_report_is_still_made(docker: Path, experiment: Path) -> None:
    (docker / "fail").write_text("79")
    assert _run(experiment, "--from", "watershed").returncode == 79
    names = [call[call.index("--name") + 1] for call in _calls(docker)]
    assert [name.rsplit("-", 1)[0] for name in names] == ["lsdflow-exp-watershed", "lsdflow-exp-evaluate"]


def test_no_image_for_the_report_leaves_the_exit_code_of_the_stage(docker: Path, experiment: Path) -> None:
    (docker / "fail").write_text("79")
    _images(docker, {"lsdflow/watershed:0.1.0": _facts("watershed")})
    done = _run(experiment, "--from", "watershed", "--to", "watershed")
    assert done.returncode == 79
    assert "no report" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_signals_are_passed_on_to_the_container(docker: Path, experiment: Path, number: signal.Signals) -> None:
    (docker / "sleep").touch()
    program = "from lsdflow_launch.cli import main; main()"
    arguments = ["run", str(experiment), "--backend", "container", "--engine", "docker"]
    child = subprocess.Popen([sys.executable, "-c", program, *arguments])
    deadline = time.monotonic() + 600
    while not _called(docker) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(child.pid, number)
    assert child.wait(timeout=600) == 128 + number


def test_an_unknown_engine_or_place_is_a_usage_error(docker: Path, experiment: Path) -> None:
    assert _lsdflow("run", str(experiment), "--backend", "container", "--engine", "dokcer").returncode == 2
    assert _lsdflow("run", str(experiment), "--backend", "containers").returncode == 2
    assert not _called(docker)


def _sif(folder: Path, name: str) -> Path:
    """A file, and an `apptainer` that prints its labels."""
    folder.mkdir(exist_ok=True)
    (folder / name).touch()
    return folder / name


@pytest.fixture
def apptainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    labels = _facts("prepare", **{"lsdflow.image.digest": ID})["Config"]["Labels"]
    metadata = json.dumps({"data": {"attributes": {"labels": labels}}})
    program = folder / "apptainer"
    program.write_text(f"#!{shutil.which('bash')}\ncat <<'END'\n{metadata}\nEND\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return tmp_path / "sifs"


def test_a_sif_is_found_by_version_and_digest_and_executed_without_a_shell(apptainer: Path, experiment: Path) -> None:
    sif = _sif(apptainer, f"prepare_0.1.0_{ID[7:19]}.sif")
    _repin(experiment, "prepare", f"lsdflow/prepare:0.1.0@{ID}")
    _write(experiment, '[cluster]\nimages = "../sifs"\n')
    containers = Containers(load_experiment(experiment), "singularity")
    command = containers.command("prepare", ["run", "--experiment", "here"])
    assert command[:2] == ["apptainer", "exec"]
    assert {"--cleanenv", "--no-eval", "--no-home", f"LSDFLOW_IMAGE_DIGEST={ID}"} <= set(command)
    assert command[-5:] == [str(sif), "prepare", "run", "--experiment", "here"]
    assert _mounted(command) == {str(experiment): (str(experiment), True)}


def test_two_sifs_of_a_version_want_a_digest_in_the_pin(apptainer: Path, experiment: Path) -> None:
    _sif(apptainer, "prepare_0.1.0_aaaaaaaaaaaa.sif")
    done = _run_sif(experiment, apptainer)
    assert "$ apptainer exec" in done.stderr
    _sif(apptainer, "prepare_0.1.0_bbbbbbbbbbbb.sif")
    done = _run_sif(experiment, apptainer)
    assert done.returncode == 78
    assert "PREPARE_IMAGE" in done.stderr


def _run_sif(experiment: Path, sifs: Path) -> subprocess.CompletedProcess[str]:
    options = ["--backend", "container", "--engine", "apptainer", "--images", str(sifs), "--to", "prepare"]
    return _lsdflow("run", str(experiment), *options)


def test_a_sif_that_is_not_there_or_no_folder_says_what_to_do(apptainer: Path, experiment: Path) -> None:
    done = _run_sif(experiment, apptainer)
    assert done.returncode == 66
    assert "make sif STAGE=prepare" in done.stderr
    done = _lsdflow("run", str(experiment), "--backend", "container", "--engine", "singularity")
    assert done.returncode == 78
    assert "--images" in done.stderr


def test_a_new_experiment_pins_the_sifs_of_its_folder_by_their_digest(apptainer: Path) -> None:
    installed = images_text(["prepare", "segment"]).splitlines()[-2:]
    version = installed[0].partition(":")[2]
    _sif(apptainer, f"prepare_{version}_{ID[7:19]}.sif")
    assert images_text(["prepare", "segment"], apptainer).splitlines()[-2:] == [f"{installed[0]}@{ID}", installed[1]]
    _sif(apptainer, f"prepare_{version}_aaaaaaaaaaaa.sif")
    assert images_text(["prepare", "segment"], apptainer).splitlines()[-2:] == installed
