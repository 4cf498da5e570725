"""A signal ends the work, also one whose exception Python drops: raised in a finaliser, or under an `except`."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace

import pytest

from lsdflow_command.interruption import end_if_asked, interrupt_on_signals
from lsdflow_contract.errors import Interrupted
from lsdflow_contract.experiment import Experiment
from lsdflow_runtime.engine.blockwise import run_task, status_task

Make = Callable[..., Experiment]


class Dropping:
    """Stopped while it is finalised: Python drops what a handler raises there."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


def dropped_signal() -> None:
    Dropping()


pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def test_work_continues_after_a_dropped_signal_until_it_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lsdflow_command.interruption.SAME_SECONDS", 0.0)
    reached = []

    def work() -> None:
        with interrupt_on_signals():
            end_if_asked()
            dropped_signal()
            reached.append("after it")
            end_if_asked()
            reached.append("never")

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Interrupted, match="SIGTERM"):
        work()
    assert reached == ["after it"]
    assert signal.getsignal(signal.SIGTERM) == before


def test_without_a_signal_nobody_is_stopped() -> None:
    end_if_asked()
    with interrupt_on_signals():
        end_if_asked()


@pytest.mark.parametrize("runner", ["serial", "daisy"])
def test_blocks_end_after_a_signal_that_was_dropped(make_experiment: Make, runner: str) -> None:
    from lsdflow_toy.stage import block_task

    experiment = make_experiment("a", f"compute.runner={runner}")
    task = block_task(experiment)
    dropped_signal_before = replace(task, open=_losing(task.open)) if runner == "serial" else task

    def work() -> None:
        with interrupt_on_signals():
            if runner == "daisy":
                dropped_signal()
            run_task(dropped_signal_before)

    with pytest.raises(Interrupted):
        work()
    assert status_task(task)["done"] == (1 if runner == "serial" else 0)


def _losing(opened: Callable[..., object]) -> Callable[..., object]:
    """The same blocks, each of which loses a signal."""
    from contextlib import contextmanager

    @contextmanager
    def open_them():
        with opened() as function:

            def block(of: object) -> object:
                dropped_signal()
                return function(of)

            yield block

    return open_them
