"""The files of compose, read without docker, and what `lsdflow compose-env` writes beside an experiment.

tests/compose runs them for real.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from lsdflow_contract.experiment import BLOCK_STAGES, STAGES

COMPOSE = Path(__file__).resolve().parents[2] / "compose"
FILES = ("compose.yaml", "compose.mongo.yaml", "compose.gpu.yaml")


def _read(name: str) -> dict[str, Any]:
    return dict(yaml.safe_load((COMPOSE / name).read_text()))


def _key(stage: str) -> str:
    return f"{stage.upper().replace('-', '_')}_IMAGE"


def test_there_is_a_service_for_every_stage_and_each_waits_for_the_one_before() -> None:
    services = _read("compose.yaml")["services"]
    assert list(services) == [*STAGES, "end"]
    waits_for = {name: list(service.get("depends_on", {})) for name, service in services.items()}
    assert waits_for == dict(zip((*STAGES, "end"), ([], *([stage] for stage in STAGES)), strict=True))
    for service in services.values():
        for condition in service.get("depends_on", {}).values():
            assert condition == {"condition": "service_completed_successfully"}


def test_every_image_is_a_pin_that_must_be_there() -> None:
    services = _read("compose.yaml")["services"]
    for stage in STAGES:
        assert services[stage]["image"].startswith(f"${{{_key(stage)}:?"), stage
        assert services[stage]["environment"] == {"LSDFLOW_IMAGE_DIGEST": f"${{{_key(stage)}_DIGEST-}}"}
    assert _read("compose.mongo.yaml")["services"]["mongo"]["image"].startswith("${MONGO_IMAGE:?")
    for name in FILES:
        commands = [line for line in (COMPOSE / name).read_text().splitlines() if not line.strip().startswith("#")]
        assert not re.search(r"latest|:-[a-z]+/|build:", "\n".join(commands)), name


@pytest.mark.parametrize("name", ["compose.yaml", "compose.mongo.yaml"])
def test_no_service_may_write_to_its_root_or_gain_rights(name: str) -> None:
    hardened = {"read_only": True, "cap_drop": ["ALL"], "security_opt": ["no-new-privileges:true"]}
    for service, service_facts in _read(name)["services"].items():
        if "image" in service_facts:  # the others override those of compose.yaml
            assert {key: service_facts.get(key) for key in hardened} == hardened, service
            assert service_facts["user"], service
        assert not {"ports", "privileged", "cap_add", "devices", "env_file"} & set(service_facts), service


def test_stages_have_no_way_out_and_volumes_outside_cannot_be_written() -> None:
    compose = _read("compose.yaml")
    assert compose["networks"] == {"stages": {"internal": True}}
    for service in compose["services"].values():
        assert service["networks"] == ["stages"]
        writable = [v for v in service["volumes"] if not (isinstance(v, str) and v.endswith(":ro"))]
        assert [volume["target"] for volume in writable] == ["${LSDFLOW_EXPERIMENT}"]


def test_passwords_reach_the_stages_of_the_store_as_files_alone() -> None:
    compose = _read("compose.mongo.yaml")
    stages = {name: service for name, service in compose["services"].items() if name in STAGES}
    assert tuple(stages) == BLOCK_STAGES
    for service in stages.values():
        assert service["secrets"] == ["mongo_uri"]
        assert service["environment"] == {"MONGO_URI_FILE": "/run/secrets/mongo_uri"}
    assert {"--auth", "--bind_ip"} <= set(compose["services"]["mongo"]["command"])
    assert {secret["file"].rpartition("/")[2] for secret in compose["secrets"].values()} == set(compose["secrets"])


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An experiment, and a docker that has no image here."""
    docker = tmp_path / "bin" / "docker"
    docker.parent.mkdir()
    docker.write_text(f"#!{shutil.which('bash')}\necho 'Error: No such image' >&2\nexit 1\n")
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{docker.parent}:{os.environ['PATH']}")
    monkeypatch.delenv("MONGO_URI_FILE", raising=False)
    folder = tmp_path / "my exp"
    folder.mkdir()
    pins = [*(f"{_key(stage)}=lsdflow/{stage}:0.1.0" for stage in STAGES), "MONGO_IMAGE=mongo:7.0.28"]
    (folder / "images.env").write_text("\n".join(pins) + "\n")
    _write(folder)
    return folder


def _write(folder: Path, text: str = "") -> None:
    (folder / "experiment.toml").write_text(f'[experiment]\nname = "My.Exp"\nmode = "mtlsd"\n{text}')


def _compose_env(folder: Path) -> subprocess.CompletedProcess[str]:
    program = "from lsdflow_launch.cli import main; main()"
    command = [sys.executable, "-c", program, "compose-env", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _values(folder: Path) -> dict[str, str]:
    lines = (folder / "compose.env").read_text().splitlines()
    return {key: value.strip("'") for key, _, value in (x.partition("=") for x in lines if not x.startswith("#"))}


def test_compose_env_names_this_experiment_and_its_user(experiment: Path, tmp_path: Path) -> None:
    volumes = tmp_path / "volumes"
    for name in ("a.zarr", "b.zarr"):
        (volumes / name).mkdir(parents=True)
    _write(experiment, '[prepare.target]\nraw = "../volumes/a.zarr"\ntruth = "../volumes/b.zarr"\n')
    done = _compose_env(experiment)
    assert done.returncode == 0, done.stderr
    assert _values(experiment) == {
        "COMPOSE_PROJECT_NAME": "lsdflow-my-exp",
        "LSDFLOW_EXPERIMENT": str(experiment),
        "LSDFLOW_UID": str(os.getuid()),
        "LSDFLOW_GID": str(os.getgid()),
        "LSDFLOW_INPUTS": str(volumes),
        **{f"{_key(stage)}_DIGEST": "" for stage in STAGES},
    }
    assert done.stdout.splitlines()[-1].startswith("next: docker compose -f compose/compose.yaml '--env-file=")
    assert not (experiment / "secrets").exists()


def test_what_a_stage_writes_down_is_the_digest_of_its_image_alone(experiment: Path, tmp_path: Path) -> None:
    digest, image_id = (f"sha256:{letter * 64}" for letter in "ab")
    pins = (experiment / "images.env").read_text()
    pins = pins.replace("lsdflow/predict:0.1.0", f"registry/lsdflow/predict:0.1.0@{digest}")
    (experiment / "images.env").write_text(pins)
    labels = {"lsdflow.stage": "segment", "org.opencontainers.image.version": "0.1.0", "lsdflow.contract": "2.0"}
    facts = [{"Id": image_id, "RepoDigests": [], "Config": {"Labels": labels}}]
    (tmp_path / "segment.json").write_text(json.dumps(facts))
    docker = f"""#!{shutil.which("bash")}
[[ $* == *lsdflow/segment* ]] && cat '{tmp_path}/segment.json' && exit 0
echo 'Error: No such image' >&2; exit 1
"""
    (tmp_path / "bin" / "docker").write_text(docker)
    done = _compose_env(experiment)
    assert done.returncode == 0, done.stderr
    found = {key: value for key, value in _values(experiment).items() if key.endswith("_DIGEST") and value}
    assert found == {"PREDICT_IMAGE_DIGEST": digest, "SEGMENT_IMAGE_DIGEST": image_id}


def test_compose_env_makes_passwords_once_and_for_the_owner_alone(experiment: Path) -> None:
    _write(experiment, '[store]\nengine = "mongo"\n')
    done = _compose_env(experiment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith("up --attach-dependencies --no-attach mongo end")
    secrets = experiment / "secrets"
    first = {path.name: path.read_text() for path in secrets.iterdir()}
    assert set(first) == {"mongo_uri", "mongo_admin_password"}
    assert re.fullmatch(r"mongodb://lsdflow:[\w-]{40,}@mongo:27017/My_Exp\n", first["mongo_uri"])
    assert {oct(path.stat().st_mode & 0o777) for path in (secrets, *secrets.iterdir())} == {"0o700", "0o600"}
    assert _compose_env(experiment).returncode == 0
    assert {path.name: path.read_text() for path in secrets.iterdir()} == first
    assert not [word for word in first.values() if word.strip() in done.stdout + done.stderr]
    (secrets / "mongo_uri").chmod(0o640)
    refused = _compose_env(experiment)
    assert refused.returncode == 77
    assert "chmod 600" in refused.stderr


def test_compose_env_wants_a_pin_for_all_that_compose_starts(experiment: Path) -> None:
    pins = (experiment / "images.env").read_text()
    for key in (*map(_key, STAGES), "MONGO_IMAGE"):
        _write(experiment, '[store]\nengine = "mongo"\n')
        (experiment / "images.env").write_text(re.sub(rf"^{key}=.*\n", "", pins, flags=re.MULTILINE))
        done = _compose_env(experiment)
        assert done.returncode == 78, key
        assert key in done.stderr
    assert not (experiment / "compose.env").exists()


def test_compose_env_refuses_inputs_that_no_one_folder_holds(experiment: Path) -> None:
    _write(experiment, f'[prepare.target]\nraw = "{COMPOSE}"\ntruth = "/etc/hostname"\n')
    done = _compose_env(experiment)
    assert done.returncode == 78
    assert "all over the machine" in done.stderr


@pytest.mark.parametrize(
    "uri", ["mongodb://lsdflow:se/cret@mongo:27017/a", "mongo://lsdflow:secret@mongo/a", "mongodb://mongo:27017/secret"]
)
def test_a_wrong_uri_ends_mongo_user_with_78_and_shows_nothing_of_it(tmp_path: Path, uri: str) -> None:
    (tmp_path / "mongo_uri").write_text(uri)
    program = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1]); import mongo_user;"
        " mongo_user.SECRETS = Path(sys.argv[2]); sys.exit(mongo_user.main())"
    )
    command = [sys.executable, "-B", "-c", program, str(COMPOSE), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 78, done.stderr
    assert done.stderr.startswith("mongo-user: ")
    assert "cret" not in done.stderr
