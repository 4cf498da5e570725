"""repair makes again what is broken, nothing else, with the bits from before."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lsdflow_contract.errors import BadData, OutputConflict
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.manifest import read_manifest
from lsdflow_contract.testing import made
from lsdflow_runtime.engine.block_task import commit_block
from lsdflow_runtime.engine.verify import verify_task
from lsdflow_runtime.io.volumes import open_volume

Make = Callable[..., Experiment]
Damage = Callable[[Path], None]
BROKEN = 3


@pytest.fixture
def finished(make_experiment: Make) -> Experiment:
    from lsdflow_toy.stage import run

    experiment = make_experiment("a", "compute.runner=serial")
    run(experiment)
    return experiment


def state(experiment: Experiment) -> dict[str, Any]:
    """Identity, values and rows of everything, and when each block was made."""
    from lsdflow_toy.stage import block_task

    task = block_task(experiment)
    values = [open_volume(task.outputs["doubled"].path, f"volumes/{n}") for n in ("doubled", "affs")]
    return {
        "identity": read_manifest(experiment.layout, "toy").identity,
        "values": [volume.read(volume.box).tolist() for volume in values],
        "nodes": [n.center_nm.tolist() for n in task.rag_store.iter_nodes(task.key)],
        "finished": {number: record["finished"] for number, record in task.marks.records().items()},
    }


def chunk_of(experiment: Experiment, name: str) -> Path:
    from lsdflow_toy.stage import block_task

    z, y, x = block_task(experiment).plan.block(BROKEN).index
    leading = ["0"] if name == "affs" else []
    return made(experiment.layout, "toy").joinpath("volumes", name, "c", *leading, str(z), str(y), str(x))


def rows_of(experiment: Experiment, collection: str) -> Path:
    from lsdflow_toy.stage import block_task

    return experiment.layout.store / collection / block_task(experiment).key / f"{BROKEN}.parquet"


def mark_of(experiment: Experiment) -> Path:
    """The mark of the block alone, as it is before it is packed."""
    from lsdflow_toy.stage import block_task

    marks = block_task(experiment).marks
    record = marks.record(BROKEN)
    marks.remove(BROKEN)
    marks.mark_done(BROKEN, record)
    return Path(marks.where) / "done" / f"{BROKEN}.json"


def pack_of(experiment: Experiment) -> Path:
    from lsdflow_toy.stage import block_task

    return Path(block_task(experiment).marks.where) / "packed" / "0.parquet"


def delete(path: Path) -> None:
    path.unlink()


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip(path: Path) -> None:
    """A stretch, not a single bit: some bits of a Parquet file say nothing about its rows."""
    content = bytearray(path.read_bytes())
    content[8:40] = bytes(value ^ 4 for value in content[8:40])
    path.write_bytes(content)


PLACES: dict[str, Callable[[Experiment], Path]] = {
    "doubled": lambda e: chunk_of(e, "doubled"),
    "affs": lambda e: chunk_of(e, "affs"),
    "nodes": lambda e: rows_of(e, "nodes"),
    "edges": lambda e: rows_of(e, "edges_mean"),
}


@pytest.mark.parametrize("damage", [delete, truncate, empty, flip])
@pytest.mark.parametrize("place", sorted(PLACES))
def test_the_broken_block_alone_is_made_again_with_the_same_bits(
    finished: Experiment, place: str, damage: Damage
) -> None:
    from lsdflow_toy.stage import repair, verify

    before = state(finished)
    damage(PLACES[place](finished))
    found = repair(finished)
    after = state(finished)
    assert (found["broken"], list(found["parts"])) == (1, [str(BROKEN)])
    assert {k: v for k, v in after.items() if k != "finished"} == {k: v for k, v in before.items() if k != "finished"}
    made_again = {n for n in before["finished"] if before["finished"][n] != after["finished"][n]}
    assert made_again == {BROKEN}
    assert verify(finished)["verified"]


@pytest.mark.parametrize("damage", [delete, truncate, empty])
def test_a_block_whose_mark_is_lost_or_cannot_be_read_is_made_again(finished: Experiment, damage: Damage) -> None:
    from lsdflow_toy.stage import repair, verify

    before = state(finished)
    damage(mark_of(finished))
    repair(finished)
    assert state(finished)["identity"] == before["identity"]
    assert verify(finished)["verified"]


@pytest.mark.parametrize("damage", [truncate, empty, flip])
def test_a_damaged_pack_of_marks_is_named_and_its_blocks_are_made_again_with_the_same_bits(
    finished: Experiment, damage: Damage
) -> None:
    from lsdflow_toy.stage import repair, run, status, verify

    before, single = state(finished), mark_of(finished)
    damage(pack_of(finished))
    for verb in (lambda: run(finished), lambda: verify(finished), lambda: status(finished)):
        with pytest.raises(BadData, match="damaged pack of done marks") as caught:
            verb()
        assert caught.value.exit_code == 65
        assert caught.value.where == str(pack_of(finished))
        assert "lsdflow repair" in caught.value.fix
    assert single.exists()
    found = repair(finished)
    after = state(finished)
    assert (found["broken"], str(BROKEN) in found["parts"]) == (11, False), "a mark beside the pack is still good"
    assert {k: v for k, v in after.items() if k != "finished"} == {k: v for k, v in before.items() if k != "finished"}
    assert after["finished"][BROKEN] == before["finished"][BROKEN]
    assert verify(finished)["verified"]


def test_nothing_is_done_where_nothing_is_broken(finished: Experiment) -> None:
    from lsdflow_toy.stage import repair

    before = state(finished)
    found = repair(finished)
    assert found.pop("identity") == read_manifest(finished.layout, "toy").identity
    assert found == {"blocks": 12, "broken": 0, "parts": {}}
    assert state(finished) == before


def test_a_lost_array_is_computed_again_as_a_whole(finished: Experiment) -> None:
    from lsdflow_toy.stage import repair, verify

    before = state(finished)
    shutil.rmtree(made(finished.layout, "toy") / "volumes" / "doubled")
    repair(finished)
    assert state(finished)["values"] == before["values"]
    assert verify(finished)["verified"]


def test_results_of_other_parameters_are_refused_and_left_alone(finished: Experiment, make_experiment: Make) -> None:
    from lsdflow_toy.stage import repair

    before = state(finished)
    with pytest.raises(OutputConflict):
        repair(make_experiment("a", "compute.runner=serial", "experiment.seed=3"))
    assert state(finished) == before


def test_the_verb_reports_what_it_recomputed(finished: Experiment) -> None:
    from lsdflow_toy.cli import app

    chunk_of(finished, "doubled").unlink()
    done = CliRunner().invoke(app, ["repair", "-e", str(finished.path), "--set", "compute.runner=serial", "--json"])
    answer = json.loads(done.stdout)
    assert (done.exit_code, answer["broken"], answer["parts"]) == (0, 1, {str(BROKEN): "doubled"})


def test_a_late_worker_of_other_settings_writes_into_the_result_of_its_own_key_alone(make_experiment: Make) -> None:
    """Its coordinator is gone, and another result was made and verified, while it waited in the middle of a commit."""
    from lsdflow_toy.stage import block_task, run

    slow = make_experiment("a", "compute.runner=serial")
    task = block_task(slow)
    task.create_outputs()
    block = task.plan.block(BROKEN)
    opened = {name: output.open() for name, output in task.outputs.items()}
    with task.open() as function:
        output = function(block)
    other = make_experiment("a", "compute.runner=serial", "experiment.seed=3")
    run(other)
    before = state(other)
    commit_block(task, opened, block, output, 1.0)
    assert state(other) == before
    assert task.marks.done() == {BROKEN}
    assert verify_task(block_task(other))["blocks"] == len(task.plan)
