"""`lsdflow pull` with a stand-in of docker. With a real registry and Apptainer: tests/containers/with_engine."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from lsdflow_contract import CONTRACT_VERSION
from lsdflow_contract.errors import StorageFailure
from lsdflow_contract.experiment import STAGES
from lsdflow_launch.cli import app
from lsdflow_launch.images.engines import Apptainer
from lsdflow_launch.images.pins import key_of, read_pins

DIGEST = "sha256:" + "ab" * 32
# It has the images of the files in its folder; `pull` gets every image but those of a registry that is closed.
DOCKER = """#!{bash}
here=$(dirname "$0") name=$(tr / + <<<"${{@: -1}}")
echo "$*" >>"$here/calls"
case $1 in
  image) if [[ -e $here/$name ]]; then cat "$here/$name"; else echo "Error: No such image" >&2; exit 1; fi ;;
  pull) if [[ $name == closed* ]]; then echo "denied: requested access" >&2; exit 1; fi
    stage=${{name%@*}}; sed "s/STAGE/${{stage##*+}}/g" "$here/facts" >"$here/$name" ;;
esac
"""


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "docker"
    folder.mkdir()
    (folder / "docker").write_text(DOCKER.format(bash=shutil.which("bash")))
    (folder / "docker").chmod(0o755)
    labels = {
        "lsdflow.stage": "STAGE",
        "lsdflow.contract": CONTRACT_VERSION,
        "org.opencontainers.image.version": "1.2.0",
    }
    facts = {"Id": DIGEST, "RepoDigests": [f"lab/STAGE@{DIGEST}"], "Config": {"Labels": labels}}
    (folder / "facts").write_text(json.dumps([facts]))
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    (tmp_path / "experiment.toml").write_text('[experiment]\nname = "exp"\nmode = "mtlsd"\n')
    _pin(tmp_path, f"lab/{{}}:1.2.0@{DIGEST}")
    return tmp_path


def _pin(folder: Path, image: str) -> None:
    (folder / "images.env").write_text("".join(f"{key_of(s)}={image.format(s)}\n" for s in STAGES))


def _pull(experiment: Path, *words: str) -> Result:
    return CliRunner().invoke(app, ["pull", str(experiment), "--engine", "docker", *words])


def _pulled(docker: Path) -> list[str]:
    return [line.split()[-1] for line in (docker / "calls").read_text().splitlines() if line.startswith("pull ")]


def test_the_images_of_the_stages_that_run_are_pulled_by_digest_and_only_once(docker: Path, experiment: Path) -> None:
    done = _pull(experiment, "--json")
    assert done.exit_code == 0, done.output
    wanted = [stage for stage in STAGES if stage != "train-lsd"]
    assert {stage: facts["pulled"] for stage, facts in json.loads(done.stdout)["images"].items()} == dict.fromkeys(
        wanted, True
    )
    assert _pulled(docker) == [f"lab/{stage}@{DIGEST}" for stage in wanted]
    again = _pull(experiment)
    assert f"segment: lab/segment:1.2.0@{DIGEST} is here" in again.stdout
    assert len(_pulled(docker)) == len(wanted)


def test_a_folder_of_sifs_that_cannot_be_made_is_named(experiment: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    pin = read_pins(experiment / "images.env")["PREPARE_IMAGE"]
    with pytest.raises(StorageFailure, match="file/sifs"):
        Apptainer("apptainer", tmp_path / "file" / "sifs").pull("prepare", pin)


def test_a_pin_without_digest_is_not_pulled(docker: Path, experiment: Path) -> None:
    _pin(experiment, "lab/{}:1.2.0")
    done = _pull(experiment, "--to", "prepare")
    assert done.exit_code == 78
    assert "no digest: PREPARE_IMAGE\n" in done.stderr
    assert not (docker / "calls").exists()


def test_a_registry_that_gives_nothing_is_named_with_its_answer(
    docker: Path, experiment: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    _pin(experiment, f"closed/{{}}:1.2.0@{DIGEST}")
    done = _pull(experiment)
    assert done.exit_code == 69
    assert "denied: requested access" in capfd.readouterr().err
    assert "PREPARE_IMAGE" in done.stderr


def test_an_image_of_another_version_under_that_digest_is_refused(docker: Path, experiment: Path) -> None:
    _pin(experiment, f"lab/{{}}:1.3.0@{DIGEST}")
    done = _pull(experiment)
    assert done.exit_code == 76
    assert "another version" in done.stderr
