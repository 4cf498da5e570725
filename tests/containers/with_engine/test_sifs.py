"""Every SIF through `singularity exec` as an unprivileged user: version, labels, environment, work of the stages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lsdflow_contract.experiment import STAGES
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import read_manifest

if TYPE_CHECKING:
    from conftest import Bench, Made


def _sif_labels(bench: Bench, sif: Path) -> dict[str, str]:
    return json.loads(bench.call("singularity", "inspect", "--json", sif).stdout)["data"]["attributes"]["labels"]


def _image(bench: Bench, image: str, field: str) -> str:
    return bench.call("docker", "image", "inspect", "--format", "{{json " + field + "}}", image).stdout


@pytest.mark.parametrize("stage", STAGES)
def test_a_sif_is_named_by_stage_version_and_digest_and_keeps_every_label(
    stage: str, made: dict[str, Made], bench: Bench
) -> None:
    item = made[stage]
    image_id = json.loads(_image(bench, item.image, ".Id"))
    assert item.sif.name == f"{stage}_{item.version}_{image_id.removeprefix('sha256:')[:12]}.sif"
    found = _sif_labels(bench, item.sif)
    wanted = json.loads(_image(bench, item.image, ".Config.Labels"))
    assert {key: found.get(key) for key in wanted} == wanted
    assert found["lsdflow.image.digest"].removeprefix("sha256:")[:12] == item.sif.stem.rsplit("_", maxsplit=1)[1]


@pytest.mark.parametrize("stage", STAGES)
def test_exec_finds_the_command_and_reports_the_version_of_the_label(
    stage: str, made: dict[str, Made], bench: Bench
) -> None:
    done = bench.singularity(made[stage].sif, stage, "--version")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{stage} {bench.version_of(stage)} ")


@pytest.mark.parametrize("stage", STAGES)
def test_a_sif_validates_an_experiment(stage: str, made: dict[str, Made], reference: Path, bench: Bench) -> None:
    done = bench.singularity(
        made[stage].sif,
        stage,
        "validate",
        *bench.options("/experiment"),
        extra=("--bind", f"{reference}:/experiment:ro"),
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_entry_point_and_the_environment_of_the_image_survive(made: dict[str, Made], bench: Bench) -> None:
    sif = made["watershed"].sif
    script = bench.call("singularity", "inspect", "--runscript", sif).stdout
    assert "/opt/lsdflow/bin/entrypoint" in script
    assert "exec /opt/lsdflow/bin/watershed" in bench.singularity(sif, "cat", "/opt/lsdflow/bin/entrypoint").stdout
    lines = dict(line.split("=", 1) for line in bench.singularity(sif, "env").stdout.splitlines() if "=" in line)
    assert lines["LSDFLOW_REVISION"] == _sif_labels(bench, sif)["org.opencontainers.image.revision"]
    assert lines["PYTHONNOUSERSITE"] == "1"
    assert lines["OMP_NUM_THREADS"] == "1"
    assert lines["LANG"] == "C.UTF-8"


def test_values_of_the_environment_are_never_run(made: dict[str, Made], bench: Bench, workspace: Path) -> None:
    trap = workspace / "run-by-the-shell"
    evil = f"$(touch {trap}; echo run)"
    workspace.chmod(0o777)
    try:
        done = bench.singularity(
            made["segment"].sif,
            "python",
            "-c",
            "import os; print(os.environ['FROM_HOST'], os.environ['FROM_OPTION'], sep='|')",
            extra=("--bind", str(workspace), "--env", f"FROM_OPTION={evil}"),
            APPTAINERENV_FROM_HOST=evil,
        )
    finally:
        workspace.chmod(0o755)
    assert done.stdout.strip() == f"{evil}|{evil}", done.stderr
    assert not trap.exists()


@pytest.mark.proves("CON-02", "PRD-10")
def test_stages_in_sifs_leave_the_bits_of_the_clone(
    trained: Path, reference: Path, made: dict[str, Made], bench: Bench
) -> None:
    """One with torch and one without; tests/cluster runs all eight so."""
    for stage in ("predict", "watershed"):
        done = bench.singularity(
            made[stage].sif,
            *(stage, "run", *bench.options("/experiment")),
            extra=("--nv", "--bind", f"{trained}:/experiment", "--env", "LSDFLOW_IMAGE_DIGEST=sha256:" + "7" * 64),
        )
        assert done.returncode == 0, f"{stage}: {done.stdout}{done.stderr}"
        own, expected = (read_manifest(ExperimentLayout(f), stage) for f in (trained, reference))
        assert own.identity == expected.identity
        assert own.writer.image_digest == "sha256:" + "7" * 64
