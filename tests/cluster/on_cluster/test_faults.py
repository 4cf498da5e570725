"""What goes wrong on clusters, while a stage is at work: the run still ends, and with the same bits.

Each case runs on a copy of the trained experiment. The fault is made when some blocks of the stage are done and others
are not, which is checked, and the stages from there on end as if nothing had been.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from desk import Desk, timed
from experiments import assert_same_bits
from submission import Submission

Copied = Callable[..., Path]


def _hit(submission: Submission, stage: str, least: int = 4) -> int:
    """Wait for the middle of a stage; how many blocks are done."""
    return submission.wait_for_blocks(stage, least)


def _assert_was_in_the_middle(submission: Submission, stage: str, done: int) -> None:
    total = len(submission.records(stage))
    assert 0 < done < total, f"the fault came after {done} of {total} blocks of {stage}"


def test_a_cancelled_worker_is_not_missed(desk: Desk, copied: Copied, reference: Path) -> None:
    folder = copied("cancelled")
    with timed("scancel of one worker in predict"):
        submission = desk.submit(folder, "--from", "predict", "--to", "segment")
        done = _hit(submission, "predict")
        desk.cluster.run("scancel", f"{submission.number('predict', 'workers')}_0")
        submission.assert_completed(seconds=1500)
    _assert_was_in_the_middle(submission, "predict", done)
    assert_same_bits(folder, reference)


@pytest.mark.proves("CLD-07")
def test_a_requeued_coordinator_resumes_with_what_is_left(desk: Desk, copied: Copied, reference: Path) -> None:
    folder = copied("requeued")
    with timed("requeue of the coordinator in predict"):
        submission = desk.submit(folder, "--from", "predict", "--to", "segment")
        done = _hit(submission, "predict")
        desk.cluster.run("scontrol", "requeue", submission.number("predict", "coordinator"))
        submission.assert_completed(seconds=1500)
    _assert_was_in_the_middle(submission, "predict", done)
    assert submission.job("predict", "coordinator").restarts == 1
    assert_same_bits(folder, reference)


def test_a_node_without_power_is_replaced(desk: Desk, copied: Copied, reference: Path) -> None:
    if not desk.cluster.own_bed:
        pytest.skip("nodes are crashed on the tests' own bed only")
    folder = copied("powerless")
    with timed("power loss of the coordinator's node in predict"):
        submission = desk.submit(folder, "--from", "predict", "--to", "segment")
        done = _hit(submission, "predict")
        node = submission.job("predict", "coordinator").node
        victims = submission.working_hosts("predict")
        desk.cluster.bed("crash", node)
        try:
            submission.wait_for_blocks("predict", done + 2)
        finally:
            desk.cluster.bed("boot", node)
        submission.assert_completed(seconds=1500)
    assert node in victims, f"no worker on {node}: {victims}"
    _assert_was_in_the_middle(submission, "predict", done)
    assert submission.job("predict", "coordinator").restarts >= 1
    assert_same_bits(folder, reference)


def test_a_restarted_mongod_loses_nothing(desk: Desk, copied: Copied, reference: Path) -> None:
    if not desk.cluster.own_bed:
        pytest.skip("the server is killed on the tests' own bed only")
    folder = copied("restarted")
    with timed("SIGKILL and restart of mongod in watershed"):
        submission = desk.submit(folder, "--from", "predict", "--to", "segment")
        done = _hit(submission, "watershed")
        desk.cluster.bed("restart-mongo", "4")
        submission.assert_completed(seconds=1500)
    _assert_was_in_the_middle(submission, "watershed", done)
    assert_same_bits(folder, reference)
