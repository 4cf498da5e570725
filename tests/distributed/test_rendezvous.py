"""The rendezvous: a port that a process of the previous attempt still holds, and a process that finds no other."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Timer

import pytest

torch = pytest.importorskip("torch")

from torch.distributed import PrefixStore  # noqa: E402

from lsdflow_contract.errors import StoreUnreachable  # noqa: E402
from lsdflow_training.processes.ranks import Ranks  # noqa: E402
from lsdflow_training.processes.rendezvous import LOOPBACK, rendezvous, serve  # noqa: E402


@pytest.fixture
def used_port() -> Iterator[socket.socket]:
    """A port at which somebody listens."""
    with socket.create_server((LOOPBACK, 0)) as listening:
        yield listening


@pytest.mark.proves("DDP-19")
def test_a_port_that_becomes_free_in_time_is_used(used_port: socket.socket) -> None:
    port = used_port.getsockname()[1]
    Timer(0.5, used_port.close).start()
    store, found = serve(LOOPBACK, port, 30.0)
    assert found == port
    store.set("here", "1")
    assert store.get("here") == b"1"


def test_a_port_that_stays_in_use_is_waited_for_half_of_the_time_that_the_others_wait(used_port: socket.socket) -> None:
    begun = time.monotonic()
    with pytest.raises(StoreUnreachable, match="distributed rendezvous failed"):
        serve(LOOPBACK, used_port.getsockname()[1], 2.0)
    assert 1.0 <= time.monotonic() - begun < 2.0


def test_an_address_that_is_not_of_this_machine_is_not_waited_for() -> None:
    begun = time.monotonic()
    with pytest.raises(StoreUnreachable, match=r"192\.0\.2\.1:20001"):
        serve("192.0.2.1", 20_001, 60.0)
    assert time.monotonic() - begun < 5.0


def test_a_process_that_joined_the_previous_attempt_joins_the_new_one() -> None:
    store, port = serve(LOOPBACK, 0, 60.0)
    dying = [store]
    first, second = (Ranks(rank, 2, rank, 2, LOOPBACK, port, attempt="1") for rank in (0, 1))
    with ThreadPoolExecutor(2) as pool:
        late = pool.submit(rendezvous, second, 30.0)
        PrefixStore("1", store).wait(["here/1"])
        del store
        Timer(0.5, dying.clear).start()
        early = pool.submit(rendezvous, first, 30.0)
        served, found = early.result(60), late.result(60)
    served.set("word", "new")
    assert found.get("word") == b"new"


def test_a_process_whose_rendezvous_ends_and_does_not_return_gets_an_error() -> None:
    store, port = serve(LOOPBACK, 0, 60.0)
    leaving = [store]
    del store
    Timer(0.5, leaving.clear).start()
    with pytest.raises(StoreUnreachable) as caught:
        rendezvous(Ranks(1, 2, 1, 2, LOOPBACK, port), 1.5)
    assert caught.value.found == "missing: process 0, which has been here and has left"
