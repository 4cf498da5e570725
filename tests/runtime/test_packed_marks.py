"""Done marks in packs: whatever is interrupted, in whatever order, the same blocks are done, and nobody misses one."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lsdflow_contract.errors import BadData, MissingInput
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_contract.manifest import read_manifest
from lsdflow_runtime.engine import blockwise
from lsdflow_runtime.store import done_marks, packed_marks
from lsdflow_runtime.store.done_marks import DoneMarks
from lsdflow_runtime.store.packed_marks import PACK_BLOCKS, MarkPacks

Make = Callable[..., Experiment]
BLOCKS = 10
SMALL = 4
# Two packs of the real size, and a rest.
MANY = 2 * PACK_BLOCKS + 100


class Killed(BaseException):
    """A process that ends here."""


@pytest.fixture
def small_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (packed_marks, done_marks, blockwise):
        monkeypatch.setattr(module, "PACK_BLOCKS", SMALL)


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in memory: thousands of durable marks on a disk take a minute."""
    with tempfile.TemporaryDirectory(prefix="lsdflow-marks-", dir="/dev/shm") as folder:
        yield Path(folder)


def record_of(number: int, attempt: int = 0) -> dict[str, Any]:
    return {"block": number, "checksums": {"a": f"{number:064x}"}, "seconds": 0.1 + attempt, "text": "\u00e4\n\"'"}


def single(marks: DoneMarks) -> set[int]:
    return {int(path.stem) for path in (marks.folder / "done").glob("*.json")}


def assert_all_agree(marks: DoneMarks, wanted: dict[int, dict[str, Any]]) -> None:
    assert marks.done() == set(wanted)
    assert marks.count_done() == len(wanted)
    assert marks.records() == wanted
    assert list(marks.records()) == sorted(wanted)
    for number in range(BLOCKS):
        assert marks.is_done(number) == (number in wanted)
        if number in wanted:
            assert marks.record(number) == wanted[number]
        else:
            with pytest.raises(MissingInput):
                marks.record(number)


numbers = st.integers(0, BLOCKS - 1)
actions = st.one_of(
    st.tuples(st.just("mark"), numbers),
    st.tuples(st.just("remove"), st.lists(numbers, min_size=1, max_size=3)),
    st.tuples(st.just("pack"), st.booleans()),
    st.tuples(st.just("killed before the rename"), st.booleans()),
    st.tuples(st.just("killed between rename and removal"), st.booleans()),
    st.tuples(st.just("killed in the removal"), st.booleans()),
)


def kill_in(patch: pytest.MonkeyPatch, what: str) -> None:
    def die(*_arguments: object, **_named: object) -> None:
        raise Killed

    removed, unlink = [0], Path.unlink

    def die_in_the_second(path: Path, missing_ok: bool = False) -> None:
        removed[0] += path.suffix == ".json"
        if removed[0] == 2:
            raise Killed
        unlink(path, missing_ok)

    if what == "killed before the rename":
        patch.setattr(Path, "replace", die)
    elif what == "killed between rename and removal":
        patch.setattr(DoneMarks, "_remove", die)
    else:
        patch.setattr(Path, "unlink", die_in_the_second)


@pytest.mark.usefixtures("small_packs")
@given(st.lists(actions, max_size=25))
@settings(max_examples=120, deadline=None)
def test_any_order_of_marking_packing_removing_and_kills_leaves_the_same_blocks_done(taken: list[Any]) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        marks, wanted = DoneMarks(Path(folder) / "stage" / "key"), {}
        for attempt, (what, argument) in enumerate(taken):
            if what == "mark":
                wanted[argument] = record_of(argument, attempt)
                marks.mark_done(argument, wanted[argument])
            elif what == "remove":
                marks.remove(*argument)
                wanted = {number: record for number, record in wanted.items() if number not in argument}
            elif what == "pack":
                marks.pack(BLOCKS, all_of_them=argument)
                assert not argument or single(marks) == set()
            else:
                with pytest.MonkeyPatch.context() as patch:
                    kill_in(patch, what)
                    with contextlib.suppress(Killed):
                        marks.pack(BLOCKS, all_of_them=argument)
            assert_all_agree(marks, wanted)


@pytest.mark.usefixtures("small_packs")
def test_whole_ranges_are_packed_while_others_wait_and_the_last_range_may_be_short(tmp_path: Path) -> None:
    marks = DoneMarks(tmp_path)
    for number in (0, 1, 2, 4, 5, 6, 7, 8, 9):
        marks.mark_done(number, record_of(number))
    marks.pack(BLOCKS)
    assert single(marks) == {0, 1, 2}
    assert sorted(p.name for p in (tmp_path / "packed").iterdir()) == ["1.parquet", "2.parquet"]
    marks.mark_done(3, record_of(3))
    marks.pack(BLOCKS)
    assert_all_agree(marks, {number: record_of(number) for number in range(BLOCKS)})
    assert single(marks) == set()


@pytest.mark.usefixtures("small_packs")
def test_a_range_of_which_a_part_was_packed_at_the_end_of_a_run_gets_the_rest_later(tmp_path: Path) -> None:
    marks = DoneMarks(tmp_path)
    for half in ((0, 2), (1, 3)):
        for number in half:
            marks.mark_done(number, record_of(number))
        marks.pack(BLOCKS, all_of_them=half == (0, 2))
        assert single(marks) == set()
    assert marks.records() == {number: record_of(number) for number in range(4)}


def test_a_pack_of_the_real_size_gives_back_every_record(memory: Path) -> None:
    marks = DoneMarks(memory)
    wanted = {number: record_of(number) for number in range(PACK_BLOCKS - 3, 2 * PACK_BLOCKS)}
    packs = MarkPacks(memory / "packed")
    for range_ in (0, 1):
        part = {n: r for n, r in wanted.items() if n // PACK_BLOCKS == range_}
        packs.add(range_, part)
    assert (marks.done(), marks.count_done(), marks.records()) == (set(wanted), PACK_BLOCKS + 3, wanted)
    assert marks.failed() == set()


@pytest.mark.usefixtures("small_packs")
def test_a_mark_that_cannot_be_read_is_not_packed_and_still_named(tmp_path: Path) -> None:
    marks = DoneMarks(tmp_path)
    for number in range(4):
        marks.mark_done(number, record_of(number))
    (tmp_path / "done" / "2.json").write_bytes(b'{"block": ')
    marks.pack(BLOCKS)
    assert (single(marks), marks.done()) == ({2}, {0, 1, 2, 3})
    with pytest.raises(BadData):
        marks.record(2)
    marks.remove(2)
    assert marks.done() == {0, 1, 3}


@pytest.mark.usefixtures("small_packs")
def test_every_flipped_bit_of_a_pack_is_noticed_or_does_no_harm(tmp_path: Path) -> None:
    marks = DoneMarks(tmp_path / "stage" / "key")
    for number in range(4):
        marks.mark_done(number, record_of(number))
    marks.pack(BLOCKS)
    path = marks.folder / "packed" / "0.parquet"
    content, noticed = path.read_bytes(), 0
    wanted = marks.records()
    for position in range(0, len(content), 7):
        path.write_bytes(content[:position] + bytes([content[position] ^ 16]) + content[position + 1 :])
        os.utime(path, ns=(position, position))
        try:
            assert marks.done() == set(wanted), position
            assert marks.records() == wanted, position
        except BadData as error:
            noticed += "lsdflow repair" in error.fix
    assert noticed > 40


def read_marks(folder: Path, floor: Path, failures: Any) -> None:
    """Read the marks in every way while they are made and packed: block n is done if the file has n bytes."""
    marks, chance, reads = DoneMarks(folder), random.Random(0), 0
    least = 0
    while least < 300:
        least = floor.stat().st_size
        wanted, one = set(range(least)), chance.randrange(max(1, least))
        if not wanted <= marks.done():
            failures.put(f"done() missed some of {least}")
        if marks.count_done() < least:
            failures.put(f"count_done() returned less than {least}")
        if least and not (marks.is_done(one) and marks.record(one)["block"] == one):
            failures.put(f"block {one} of {least} was not found")
        if reads % 5 == 0 and not wanted <= set(marks.records()):
            failures.put(f"records() missed some of {least}")
        reads += 1
    failures.put(reads)


@pytest.mark.usefixtures("small_packs")
def test_readers_in_other_processes_never_miss_a_done_mark_while_marks_are_packed(memory: Path) -> None:
    marks, floor = DoneMarks(memory / "work"), memory / "floor"
    floor.touch()
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    readers = [context.Process(target=read_marks, args=(marks.folder, floor, results)) for _ in range(2)]
    for reader in readers:
        reader.start()
    with floor.open("ab", buffering=0) as file:
        for number in range(300):
            marks.mark_done(number, record_of(number))
            file.write(b"x")
            marks.pack(300, all_of_them=number % 3 == 0)
    reads = [results.get(timeout=600) for _ in readers]
    for reader in readers:
        reader.join(60)
    assert all(isinstance(found, int) and found > 10 for found in reads), reads


def test_old_folders_of_single_marks_are_read_as_they_are_and_packed_by_the_next_run_that_has_work(
    make_experiment: Make,
) -> None:
    from lsdflow_toy.stage import block_task, run, status, verify

    experiment = make_experiment("a", "compute.runner=serial")
    run(experiment)
    marks = block_task(experiment).marks
    assert isinstance(marks, DoneMarks)
    records = marks.records()
    shutil.rmtree(marks.folder / "packed")
    for number, record in records.items():
        marks.mark_done(number, record)
    assert marks.records() == records
    assert verify(experiment)["verified"]
    assert status(experiment)["finished"]
    run(experiment)
    assert len(single(marks)) == 12, "a run without work touches nothing"
    marks.remove(5)
    run(experiment)
    assert single(marks) == set()
    assert {n: r for n, r in marks.records().items() if n != 5} == {n: r for n, r in records.items() if n != 5}


def test_marks_are_packed_also_when_blocks_have_failed(make_experiment: Make) -> None:
    from lsdflow_contract.errors import BlocksFailed
    from lsdflow_toy.stage import block_task, run, status

    experiment = make_experiment("a", "compute.runner=serial")
    (experiment.layout.root / "poison").touch()
    with pytest.raises(BlocksFailed):
        run(experiment)
    marks = block_task(experiment).marks
    assert isinstance(marks, DoneMarks)
    assert (single(marks), marks.done()) == (set(), set(range(12)) - {2})
    assert status(experiment)["failures"]["2"].endswith("poisoned")
    marks.remove_all()
    assert (marks.done(), marks.failed(), marks.records()) == (set(), set(), {})


def tiny(folder: Path, runner: str) -> Experiment:
    folder.mkdir()
    (folder / "experiment.toml").write_text(f'[experiment]\nname = "tiny"\nseed = {MANY}\n')
    return load_experiment(folder, [f"compute.runner={runner}", "compute.workers=2"])


START = """
import sys
from pathlib import Path
from lsdflow_contract.experiment import load_experiment
from lsdflow_tiny.stage import run
run(load_experiment(Path(sys.argv[1]), ["compute.runner=daisy", "compute.workers=2"]))
"""


@pytest.mark.slow
def test_a_run_of_many_tiny_blocks_killed_in_the_middle_resumes_to_the_same_bits(memory: Path) -> None:
    from lsdflow_tiny.stage import block_task, run

    whole = run(tiny(memory / "serial", "serial"))
    experiment = tiny(memory / "killed", "daisy")
    marks = block_task(experiment).marks
    assert isinstance(marks, DoneMarks)
    search = os.pathsep.join([str(Path(__file__).parent / "toy"), *sys.path])
    environment = {**os.environ, "PYTHONPATH": search}
    process = subprocess.Popen([sys.executable, "-c", START, str(experiment.path)], env=environment)
    try:
        end = time.monotonic() + 600
        while not (marks.folder / "packed" / "0.parquet").exists():
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    before = marks.records()
    assert PACK_BLOCKS <= len(before) < MANY
    manifest = run(experiment)
    after = marks.records()
    redone = [number for number, record in before.items() if after[number]["finished"] != record["finished"]]
    assert redone == [], "finished blocks were done again"
    assert manifest.identity == whole.identity == read_manifest(experiment.layout, "tiny").identity
    assert manifest.facts["totals"] == whole.facts["totals"]
    assert manifest.facts["blocks_executed"] <= MANY - len(before)
    assert single(marks) == set()
    assert json.dumps(sorted(after)) == json.dumps(list(range(MANY)))
