"""repair recomputes the damaged blocks from the sources, with the same bits, and changes no other."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from lsdflow_contract.arrays import LABELS, MASK, RAW
from lsdflow_contract.errors import BadData, BlocksFailed, Interrupted, MissingInput, OutputConflict
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.hashing import hash_of_array
from lsdflow_contract.manifest import read_manifest
from lsdflow_prepare import volume_passes
from lsdflow_prepare.stage import Prepare
from lsdflow_runtime.engine.block_task import BlockOutput

Make = Callable[..., Experiment]
Put = Callable[..., Path]
Damage = Callable[[Path], object]


def content(loaded: Experiment) -> dict[str, bytes]:
    folder = loaded.layout.training_volume("a")
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def marks(loaded: Experiment, content: str) -> Path:
    """The done marks of the pass over raw or labels."""
    task = next(task for task in Prepare().passes(loaded) if task.label == f"training/a {content}")
    return loaded.layout.store / "blocks" / "prepare" / task.key


@pytest.fixture
def finished(container: Path, experiment: Make, monkeypatch: pytest.MonkeyPatch) -> Experiment:
    """One volume of two passes of eight blocks, each one chunk."""
    monkeypatch.setattr(volume_passes, "block_shape", lambda *_: (64, 64, 64))
    monkeypatch.setattr(volume_passes, "BLOCKS_FOR_WORKERS", 100)
    loaded = experiment()
    Prepare().run(loaded)
    return loaded


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(bytes(data))


DAMAGE: list[tuple[Damage, int]] = [
    (lambda v: (v / RAW.dataset / "1.0.0").unlink(), 1),
    (lambda v: flip(v / RAW.dataset / "0.1.0"), 1),
    (lambda v: (v / LABELS.dataset / "0.0.0").write_bytes(b""), 1),
    (lambda v: [(v / MASK.dataset / name).unlink() for name in ("0.0.1", "1.1.1")], 2),
    (lambda v: shutil.rmtree(v / LABELS.dataset), 8),
    (lambda v: (v / RAW.dataset / ".zarray").unlink(), 0),
    (lambda v: (v / RAW.dataset / ".zattrs").write_text("{"), 0),
    (lambda v: (v / ".lsdflow/report.json").unlink(), 0),
]


@pytest.mark.parametrize(("damage", "broken"), DAMAGE)
def test_only_damaged_blocks_are_recomputed_with_the_same_bits(
    finished: Experiment, damage: Damage, broken: int
) -> None:
    before, identity = content(finished), read_manifest(finished.layout, "prepare").identity
    damage(finished.layout.training_volume("a"))
    found = Prepare().repair(finished)
    assert found == {"blocks": 16, "broken": broken}
    assert content(finished) == before
    assert Prepare().verify(finished)["identity"] == identity


def test_the_identity_depends_on_every_block_and_verify_compares_it_with_the_report(finished: Experiment) -> None:
    task = next(iter(Prepare().passes(finished)))
    for number in range(8):
        other = task.marks.records()
        other[number] = {**other[number], "checksums": {RAW.dataset: "0" * 64}}
        assert task.identity(other) != task.identity(task.marks.records())
    (output,) = task.outputs.values()
    values = 255 - output.open().read(task.plan.block(7).write)
    output.open().write(task.plan.block(7).write, values)
    task.marks.mark_done(7, {**task.marks.record(7), "checksums": {RAW.dataset: hash_of_array(values)}})
    with pytest.raises(BadData, match="do not belong together"):
        Prepare().verify(finished)


def test_blocks_without_done_marks_are_recomputed(finished: Experiment) -> None:
    before = content(finished)
    shutil.rmtree(marks(finished, "raw"))
    with pytest.raises(BlocksFailed, match="8 of 8 blocks"):
        Prepare().verify(finished)
    assert Prepare().repair(finished) == {"blocks": 16, "broken": 8}
    assert content(finished) == before


def test_a_lost_chunk_of_nothing_but_background_is_seen_and_made_again(
    put: Put, experiment: Make, raw: np.ndarray
) -> None:
    put("volumes/raw", raw)
    labels = np.zeros(raw.shape, np.uint64)
    labels[0, 0, 0] = 7
    put("volumes/labels/neuron_ids", labels)
    loaded = experiment(sparse=True)
    Prepare().run(loaded)
    lost = loaded.layout.training_volume("a") / LABELS.dataset / "1.1.1"
    lost.unlink()
    with pytest.raises(BadData, match="parts of blocks of prepare are lost or damaged: 1"):
        Prepare().verify(loaded)
    assert Prepare().repair(loaded)["broken"] == 1
    assert lost.exists()


def test_nothing_is_written_where_nothing_is_broken(finished: Experiment) -> None:
    before = content(finished)
    assert Prepare().repair(finished) == {"blocks": 16, "broken": 0}
    assert content(finished) == before


def test_a_source_that_was_changed_in_place_is_refused_and_its_block_is_not_written(
    finished: Experiment, put: Put, raw: np.ndarray
) -> None:
    lost = finished.layout.training_volume("a") / RAW.dataset / "1.0.0"
    lost.unlink()
    put("volumes/raw", 255 - raw)
    with pytest.raises(BadData, match="do not give what they gave") as caught:
        Prepare().repair(finished)
    assert "raw z[64:70]" in caught.value.where
    assert not lost.exists()


def test_a_changed_source_is_also_refused_if_the_done_marks_are_lost(
    finished: Experiment, put: Put, raw: np.ndarray
) -> None:
    shutil.rmtree(marks(finished, "raw"))
    put("volumes/raw", 255 - raw)
    with pytest.raises(BadData, match="do not give what they gave"):
        Prepare().repair(finished)


def test_a_second_repair_also_refuses_the_changed_source(finished: Experiment, put: Put, raw: np.ndarray) -> None:
    volume = finished.layout.training_volume("a")
    lost, kept = volume / RAW.dataset / "1.0.0", (volume / RAW.dataset / "1.0.0").read_bytes()
    lost.unlink()
    put("volumes/raw", 255 - raw)
    for _ in range(2):
        with pytest.raises(BadData, match="do not give what they gave"):
            Prepare().repair(finished)
        assert not lost.exists()
    put("volumes/raw", raw)
    assert Prepare().repair(finished) == {"blocks": 16, "broken": 1}
    assert lost.read_bytes() == kept


def test_blocks_of_a_changed_source_without_done_marks_do_not_count_as_finished(
    finished: Experiment, put: Put, raw: np.ndarray
) -> None:
    shutil.rmtree(marks(finished, "raw"))
    put("volumes/raw", 255 - raw)
    with pytest.raises(BadData, match="do not give what they gave"):
        Prepare().repair(finished)
    assert not finished.layout.manifest("prepare").exists()
    put("volumes/raw", raw)
    Prepare().run(finished)
    np.testing.assert_array_equal(zarr.open_array(finished.layout.training_volume("a") / RAW.dataset)[:], raw)


def test_an_interrupted_repair_is_finished_by_the_next_command(
    finished: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = content(finished)
    for name in ("0.0.0", "1.1.1"):
        flip(finished.layout.training_volume("a") / RAW.dataset / name)
    make_block, begun = volume_passes.make_block, []

    def stop_at_second(*given: Any) -> BlockOutput:
        begun.append(1)
        if len(begun) == 2:
            raise Interrupted("stopped")
        return make_block(*given)

    with monkeypatch.context() as patch:
        patch.setattr(volume_passes, "make_block", stop_at_second)
        with pytest.raises(Interrupted):
            Prepare().repair(finished)
    Prepare().run(finished)
    assert content(finished) == before
    assert Prepare().verify(finished)["verified"]


@pytest.mark.parametrize("single", [True, False])
def test_damaged_done_marks_are_repaired(finished: Experiment, single: bool) -> None:
    folder = marks(finished, "raw")
    if single:
        task = next(iter(Prepare().passes(finished)))
        for number, record in task.marks.records().items():
            task.marks.mark_done(number, record)
        shutil.rmtree(folder / "packed")
    damaged = folder / ("done/3.json" if single else "packed/0.parquet")
    damaged.write_bytes(damaged.read_bytes()[:100])
    before = content(finished)
    for command in (Prepare().verify, *(() if single else (Prepare().run,))):
        with pytest.raises(BadData, match=r"damaged|JSON"):
            command(finished)
    assert Prepare().repair(finished)["broken"] == (1 if single else 8)
    assert content(finished) == before
    assert Prepare().verify(finished)["verified"]


def test_another_form_of_the_source_is_refused(finished: Experiment, put: Put, raw: np.ndarray) -> None:
    put("volumes/raw", raw.astype(np.float32) / 255)
    with pytest.raises(BadData, match="not what it was") as caught:
        Prepare().repair(finished)
    assert "prepare run" in caught.value.fix


def test_a_source_that_is_gone_and_a_volume_never_made_are_missing_input(finished: Experiment, tmp_path: Path) -> None:
    (tmp_path / "a.zarr").rename(tmp_path / "elsewhere.zarr")
    with pytest.raises(MissingInput, match="no such file"):
        Prepare().repair(finished)
    finished.layout.manifest("prepare").unlink()
    with pytest.raises(MissingInput, match="has not finished"):
        Prepare().repair(finished)


def test_other_parameters_are_refused_and_nothing_is_touched(finished: Experiment, experiment: Make) -> None:
    before = content(finished)
    with pytest.raises(OutputConflict, match="other parameters"):
        Prepare().repair(experiment(raw_range=[0, 100]))
    assert content(finished) == before
