"""Processes that stop, fail, are killed or do not come: all end, with the same reason, and resume to the same bits."""

from __future__ import annotations

import signal

import pytest

torch = pytest.importorskip("torch")

from disturbances import be_asked_to_stop, be_killed, drift, find_no_patch, run_out_of_memory, see_nan  # noqa: E402
from worlds import Training  # noqa: E402

from lsdflow_contract.errors import Interrupted, StoreUnreachable  # noqa: E402
from lsdflow_network.bundle import tensors_equal  # noqa: E402
from lsdflow_training.processes.collectives import open_group  # noqa: E402
from lsdflow_training.processes.ranks import Ranks  # noqa: E402
from lsdflow_training.processes.rendezvous import LOOPBACK, serve  # noqa: E402


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Two processes to iteration 4, undisturbed."""
    undisturbed = Training.made(tmp_path_factory.mktemp("whole"))
    assert undisturbed.live(2, "max_iteration=4") == [0, 0], undisturbed.errors
    return undisturbed


def test_a_signal_to_one_of_two_stops_both_with_a_checkpoint_and_they_resume_to_the_same_bits(training, whole) -> None:
    cut = training("cut")
    assert cut.live(2, "max_iteration=4", before=[None, be_asked_to_stop]) == [75, 75]
    assert cut.iterations() == [2]
    assert cut.live(2, "max_iteration=4") == [0, 0], cut.errors
    assert tensors_equal(cut.weights(4), whole.weights(4))
    assert cut.losses() == whole.losses()


def test_the_others_of_a_killed_process_end_with_75_and_they_resume_to_the_same_bits(training, whole) -> None:
    cut = training("cut")
    options = ("max_iteration=4", "checkpoint_every=1")
    assert cut.live(2, *options, before=[None, be_killed]) == [75, -signal.SIGKILL]
    assert isinstance(cut.errors[0], Interrupted)
    assert cut.iterations() == [1]
    assert cut.live(2, *options) == [0, 0], cut.errors
    assert tensors_equal(cut.weights(4), whole.weights(4))


def test_one_loss_that_is_not_finite_ends_all_naming_process_and_batch(training) -> None:
    spoilt = training("spoilt")
    assert spoilt.live(2, before=[None, see_nan]) == [65, 65]
    for error in spoilt.errors.values():
        assert error.what == "the loss is not finite"
        assert error.where == "iteration 1, process 1, batch 2"
        assert error.fix.endswith("there is no checkpoint yet")
    assert spoilt.iterations() == []


@pytest.mark.proves("DDP-04", "TRB-23")
def test_weights_that_differ_are_found_and_the_process_named(training) -> None:
    drifting = training("drifting", checkpoint_every=2)
    assert drifting.live(2, before=[None, drift]) == [70, 70]
    assert drifting.errors[0].what == "the processes do not have the same weights"
    assert drifting.errors[0].where == drifting.errors[1].where == "process 1 of 2"


def test_the_error_of_one_process_is_the_error_of_all(training) -> None:
    one = training("one")
    assert one.live(2, before=[None, find_no_patch]) == [65, 65]
    assert one.errors[0].what == one.errors[1].what == "no patch"


def test_a_process_that_does_not_fit_in_memory_ends_all_with_what_to_change(training) -> None:
    large = training("large")
    assert large.live(2, before=[None, run_out_of_memory]) == [78, 78]
    for error in large.errors.values():
        assert error.what == "the training does not fit in memory"
        assert "num_fmaps" in error.fix


@pytest.mark.proves("DDP-20", "TRB-22")
def test_processes_that_do_not_come_are_named() -> None:
    store, port = serve(LOOPBACK, 0, 60.0)
    store.set("0/here/1", "1")
    here = Ranks(rank=0, world_size=4, local_world_size=4, address=LOOPBACK, port=port, store_runs=True)
    with pytest.raises(StoreUnreachable) as caught, open_group(here, "cpu", 0.2):
        pass
    assert caught.value.found == "missing: process 2, 3"


def test_a_first_process_that_does_not_come_is_named() -> None:
    _, free = serve(LOOPBACK, 0, 60.0)
    nobody = Ranks(
        rank=1, world_size=2, local_world_size=2, address=LOOPBACK, port=free + 1 if free < 65535 else free - 1
    )
    with pytest.raises(StoreUnreachable) as caught, open_group(nobody, "cpu", 0.2):
        pass
    assert caught.value.found == "missing: process 0"


@pytest.mark.proves("DDP-19", "TRB-21")
def test_a_port_that_is_taken_is_named() -> None:
    store, port = serve(LOOPBACK, 0, 60.0)
    with pytest.raises(StoreUnreachable, match=f"{LOOPBACK}:{port}"):
        serve(LOOPBACK, port, 0.5)
    del store
