"""`lsdflow submit` of the demo by an unprivileged user: every stage from its SIF on two nodes, kept in MongoDB."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from desk import Desk
from experiments import assert_same_bits, identities, manifest
from submission import Submission

from lsdflow_contract.experiment import BLOCK_STAGES, STAGES
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.testing import made
from lsdflow_runtime.io.volumes import open_volume


def test_the_segmentation_is_that_of_a_local_run_bit_for_bit(whole: Submission, reference: Path) -> None:
    assert_same_bits(whole.experiment, reference)


def test_the_scores_counted_by_workers_are_those_of_a_local_run(whole: Submission, reference: Path) -> None:
    assert "voi" in manifest(whole.experiment, "evaluate")["facts"]
    workers = whole.number("evaluate", "workers")
    jobs = {record["job"] for record in whole.records("evaluate")}
    assert jobs
    assert all(job.startswith(f"{workers}_") for job in jobs), jobs
    assert identities(whole.experiment, ["evaluate"]) == identities(reference, ["evaluate"])


def test_the_segmentation_compared_is_not_a_trivial_one(whole: Submission) -> None:
    segmentation = open_volume(made(ExperimentLayout(whole.experiment), "segment"), "volumes/segmentation")
    assert len(np.unique(segmentation.read(segmentation.box))) > 20


def test_workers_on_both_nodes_did_blocks_of_every_stage(whole: Submission) -> None:
    for stage in ("predict", "watershed", "agglomerate"):
        assert len(whole.hosts(stage)) >= 2, f"{stage}: blocks by {whole.hosts(stage)}"


def test_every_stage_ran_in_its_container_as_the_user(whole: Submission, desk: Desk) -> None:
    for stage in STAGES:
        role = "coordinator" if stage in BLOCK_STAGES else "run"
        log = whole.log(stage, role)
        assert "exec --nv" in log, log
        assert str(desk.images.sifs[stage]) in log, log
        assert manifest(whole.experiment, stage)["writer"]["image_digest"] == desk.images.pins[stage].split("@")[1]
    assert {path.owner() for path in whole.experiment.rglob("*")} == {desk.cluster.user}


def test_the_password_is_in_no_log_manifest_or_job(whole: Submission, desk: Desk) -> None:
    secret = desk.cluster.uri_file.read_text().strip().split(":")[2].split("@")[0]
    assert len(secret) > 8
    searched = [
        path
        for path in whole.experiment.rglob("*")
        if path.is_file() and path.suffix in {".log", ".json", ".toml", ".env", ".tsv", ".html", ".txt", ".sbatch"}
    ]
    assert len(searched) > 20
    assert [str(path) for path in searched if secret in path.read_text(errors="replace")] == []
    # The accounting keeps a job; the queue forgets it minutes after its end.
    number = whole.number("watershed", "workers")
    accounting = desk.cluster.run("sacct", "-P", "--jobs", number, "--format", "JobName,SubmitLine,AdminComment").stdout
    assert "watershed" in accounting
    assert secret not in accounting


def test_the_database_lets_nobody_in_without_the_password(whole: Submission, desk: Desk) -> None:
    pymongo = pytest.importorskip("pymongo")
    address = desk.cluster.uri_file.read_text().strip().split("@")[1].split("/")[0]
    with pytest.raises(pymongo.errors.OperationFailure):
        pymongo.MongoClient(f"mongodb://{address}")[whole.database].list_collection_names()


def test_the_report_of_the_last_stage_is_there(whole: Submission) -> None:
    scores = json.loads((whole.experiment / "report" / "scores.json").read_text())
    assert scores["voi"] is not None
    assert (whole.experiment / "report" / "index.html").stat().st_size > 10_000
