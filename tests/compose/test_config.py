"""What `docker compose config` makes of the files: every variant is valid, and a missing pin is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lsdflow_contract.experiment import STAGES

from .conftest import Composed

VARIANTS = (
    ("compose.yaml",),
    ("compose.yaml", "compose.gpu.yaml"),
    ("compose.yaml", "compose.mongo.yaml"),
    ("compose.yaml", "compose.mongo.yaml", "compose.gpu.yaml"),
)
KEYS = [f"{stage.upper().replace('-', '_')}_IMAGE" for stage in STAGES]


@pytest.fixture
def pinned(tmp_path: Path) -> Path:
    """A folder with pins and what compose-env writes."""
    pins = [*(f"{key}=lsdflow/stage:0.1.0" for key in KEYS), "MONGO_IMAGE=mongo:7.0.28"]
    (tmp_path / "images.env").write_text("\n".join(pins) + "\n")
    variables = {"EXPERIMENT": tmp_path, "INPUTS": "/in puts", "UID": 7, "GID": 8, "SECRETS": tmp_path / "secrets"}
    (tmp_path / "compose.env").write_text("".join(f"LSDFLOW_{k}='{v}'\n" for k, v in variables.items()))
    return tmp_path


@pytest.mark.parametrize("files", VARIANTS, ids="+".join)
def test_every_variant_is_understood(pinned: Path, files: tuple[str, ...]) -> None:
    done = Composed(pinned, files).docker("config", "--format", "json")
    assert done.returncode == 0, done.stderr
    services = json.loads(done.stdout)["services"]
    databases = {"mongo", "mongo-user"} if "compose.mongo.yaml" in files else set()
    assert set(services) == {*STAGES, "end", *databases}
    for name, service in services.items():
        assert service["read_only"], name
        assert (service["cap_drop"], service["security_opt"]) == (["ALL"], ["no-new-privileges:true"]), name
        assert not {"ports", "privileged", "cap_add", "build"} & set(service), name
    for stage in STAGES:
        volumes = {v["target"]: v.get("read_only", False) for v in services[stage]["volumes"]}
        assert volumes == {str(pinned): False, "/in puts": True}
        assert services[stage]["user"] == "7:8"
        reserved = services[stage].get("deploy", {}).get("resources", {}).get("reservations", {}).get("devices")
        gpu = "compose.gpu.yaml" in files and stage in ("train-lsd", "train-acrlsd", "predict")
        assert bool(reserved) == gpu, stage


def test_the_profile_monitoring_is_understood_and_starts_only_if_asked_for(pinned: Path) -> None:
    composed = Composed(pinned, ("compose.yaml", "compose.monitoring.yaml"))
    chain, watched = (
        composed.docker(*profile, "config", "--services") for profile in ((), ("--profile", "monitoring"))
    )
    assert chain.returncode == watched.returncode == 0, watched.stderr
    assert set(chain.stdout.split()) == {*STAGES, "end"}
    assert set(watched.stdout.split()) == {*STAGES, "end", "node-exporter", "prometheus", "grafana"}
    alone = Composed(pinned, ("compose.monitoring.yaml",)).docker(
        "--profile", "monitoring", "config", "--format", "json"
    )
    assert alone.returncode == 0, alone.stderr
    services = json.loads(alone.stdout)["services"]
    published = [port["host_ip"] for service in services.values() for port in service.get("ports", [])]
    assert published == ["127.0.0.1", "127.0.0.1"]


@pytest.mark.parametrize("key", [*KEYS, "MONGO_IMAGE"])
def test_a_missing_pin_stops_compose_and_is_named(pinned: Path, key: str) -> None:
    lines = (pinned / "images.env").read_text().splitlines()
    (pinned / "images.env").write_text("".join(f"{line}\n" for line in lines if not line.startswith(f"{key}=")))
    done = Composed(pinned, ("compose.yaml", "compose.mongo.yaml")).docker("config", "--quiet")
    assert done.returncode != 0
    assert key in done.stderr
    assert "pin it in images.env" in done.stderr


@pytest.mark.parametrize("key", ["LSDFLOW_EXPERIMENT", "LSDFLOW_UID", "LSDFLOW_SECRETS"])
def test_without_compose_env_the_missing_variable_is_named(pinned: Path, key: str) -> None:
    lines = (pinned / "compose.env").read_text().splitlines()
    (pinned / "compose.env").write_text("".join(f"{line}\n" for line in lines if not line.startswith(f"{key}=")))
    done = Composed(pinned, ("compose.yaml", "compose.mongo.yaml")).docker("config", "--quiet")
    assert done.returncode != 0
    assert key in done.stderr
