"""What a user does with a run in the queue: inspect, cancel, resume; and what the queue does when a stage fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from desk import Desk, timed
from experiments import write_volumes

Copied = Callable[..., Path]
# So many blocks of predict that it is still at work after its status was read.
MANY_BLOCKS = {"block_shape": "12 vox", "tile_shape": "12 vox"}


@pytest.mark.proves("SCH-05")
def test_status_reports_jobs_and_blocks_and_cancel_ends_them_all(desk: Desk, copied: Copied) -> None:
    folder = copied("cancel", predict=MANY_BLOCKS)
    with timed("status and cancel in the middle of predict"):
        submission = desk.submit(folder, "--from", "predict", "--to", "segment")
        submission.wait_for_blocks("predict", 2)
        status = json.loads(desk.cluster.run(desk.lsdflow, "status", folder, "--json").stdout)
        cancelled = desk.cluster.run(desk.lsdflow, "cancel", folder).stdout
        states = submission.wait_for_end(seconds=300)
    predict = status["predict"]
    assert "RUNNING" in predict["coordinator"]
    assert submission.number("predict", "workers") in predict["workers"]
    assert 0 < predict["blocks_done"] < predict["blocks"], predict
    assert "PENDING (Dependency)" in status["watershed"]["coordinator"]
    assert submission.number("segment", "verify") in cancelled
    assert states == {key: {"CANCELLED"} for key in states}
    assert not (folder / "manifests" / "predict.json").exists()


def test_workers_can_be_added_while_a_stage_runs(desk: Desk, copied: Copied) -> None:
    folder = copied("added", predict=MANY_BLOCKS, cluster={"predict": {"workers": 1}})
    submission = desk.submit(folder, "--from", "predict", "--to", "predict")
    submission.wait_for_blocks("predict", 1)
    desk.cluster.run(desk.lsdflow, "scale", folder, "predict=2")
    first, added = [number for stage, role, number in submission.rows() if (stage, role) == ("predict", "workers")]
    desk.cluster.run("scancel", first)
    submission.assert_completed(seconds=1200)
    jobs = {record["job"].split("_")[0] for record in submission.records("predict")}
    assert added in jobs, f"none of the added workers ({added}) did a block: {jobs}"


@pytest.mark.proves("SCH-07")
def test_a_failed_stage_stops_the_chain(desk: Desk) -> None:
    folder = desk.write("failed", cluster={"options": ["--hold"]})
    write_volumes(folder)
    submission = desk.submit(folder, "--to", "watershed")
    (folder / "input" / "volume.hdf").unlink()
    desk.cluster.run("scontrol", "release", *(number for _, _, number in submission.rows()))
    states = submission.wait_for_end(seconds=400)
    assert states.pop(("prepare", "run")) == {"FAILED"}
    assert submission.exit_code("prepare", "run") == 66
    assert states == {key: {"CANCELLED"} for key in states}
    status = json.loads(desk.cluster.run(desk.lsdflow, "status", folder, "--json").stdout)
    assert "exit code 66" in status["prepare"]["run"]
    report = (folder / "report" / "index.html").read_text(encoding="utf-8")
    assert "volume.hdf" in report, "the failed job left a report that names what is missing"
