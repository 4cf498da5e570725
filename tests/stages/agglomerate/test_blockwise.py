"""The stage on blocks: every adjacency is scored once, by any number of workers with the same bits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from lsdflow_agglomerate.scoring import dense_labels, score_edges, touching_pairs
from lsdflow_agglomerate.stage import Agglomerate
from lsdflow_contract.arrays import FRAGMENTS
from lsdflow_contract.errors import BadData, ConfigError, ContractMismatch, MissingInput, StageError
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.geometry import Box
from lsdflow_contract.graph import RagEdges
from lsdflow_contract.manifest import read_manifest
from lsdflow_contract.testing import made
from lsdflow_runtime.blocks import BlockPlan
from lsdflow_runtime.io.volumes import open_volume
from lsdflow_runtime.store.rag_store import FilesRagStore

MakeExperiment = Callable[..., Experiment]


def run(experiment: Experiment) -> None:
    Agglomerate().run(experiment)


def edges_by_block(experiment: Experiment, merge_function: str = "hist_quant_75") -> list[RagEdges]:
    key = read_manifest(experiment.layout, "agglomerate").key
    return list(FilesRagStore(experiment.layout.store).iter_edges(key, merge_function))


def edges_of(experiment: Experiment, merge_function: str = "hist_quant_75") -> RagEdges:
    return RagEdges.concatenate(edges_by_block(experiment, merge_function))


def fragments_of(experiment: Experiment) -> NDArray[np.uint64]:
    volume = open_volume(made(experiment.layout, "watershed"), FRAGMENTS.dataset)
    return volume.read(volume.box)


def all_pairs(fragments: NDArray[np.uint64]) -> list[tuple[int, int]]:
    """Every adjacency of the whole volume at once."""
    dense, ids = dense_labels(fragments)
    u, v = touching_pairs(dense)
    return sorted(zip(ids[u].tolist(), ids[v].tolist(), strict=True))


@pytest.mark.proves("AGG-06")
@pytest.mark.parametrize(
    "table",
    [
        "",
        'context = "1 vox"',
        'context = "5, 1, 9 vox"',
        'block_shape = "16, 16, 24 vox"\ncontext = "1 vox"',
        'block_shape = "64 vox"',
    ],
)
def test_every_adjacency_of_the_volume_is_scored_exactly_once(make_experiment: MakeExperiment, table: str) -> None:
    """Also those across faces, edges and corners of blocks, at sizes that are no multiple of the block."""
    experiment = make_experiment(table)
    run(experiment)
    edges = edges_of(experiment)
    found = sorted(zip(edges.u.tolist(), edges.v.tolist(), strict=True))
    assert len(found) == len(set(found))
    assert found == all_pairs(fragments_of(experiment))


def test_daisy_workers_give_the_bits_of_the_serial_runner(make_experiment: MakeExperiment) -> None:
    table = 'merge_functions = ["hist_quant_75", "mean"]'
    serial, daisy = make_experiment(table, "serial", "serial"), make_experiment(table, "daisy", "daisy")
    run(serial)
    run(daisy)
    for name in ("hist_quant_75", "mean"):
        for column in ("u", "v", "merge_score"):
            first, second = (getattr(edges_of(e, name), column) for e in (serial, daisy))
            np.testing.assert_array_equal(first, second)
    assert read_manifest(serial.layout, "agglomerate").identity == read_manifest(daisy.layout, "agglomerate").identity


@pytest.mark.proves("AGG-01")
def test_a_block_scores_what_the_core_scores_on_its_read_box(
    make_experiment: MakeExperiment, affs: NDArray[np.uint8]
) -> None:
    experiment = make_experiment('context = "3 vox"')
    run(experiment)
    fragments = fragments_of(experiment)
    whole = Box((0, 0, 0), fragments.shape)
    scored = edges_by_block(experiment)
    for block in BlockPlan(whole, (8, 16, 8), (3, 3, 3)).blocks():
        read = block.read.intersect(whole)
        seen = score_edges(affs[(slice(None), *read.slices())], fragments[read.slices()], ("hist_quant_75",))
        edges = seen["hist_quant_75"]
        own = np.isin(edges.u, fragments[block.write.slices()])
        np.testing.assert_array_equal(scored[block.number].u, edges.u[own])
        np.testing.assert_array_equal(scored[block.number].merge_score, edges.merge_score[own])


@pytest.mark.proves("AGG-03")
def test_merge_functions_keep_edges_of_their_own(make_experiment: MakeExperiment) -> None:
    experiment = make_experiment('merge_functions = ["hist_quant_75", "hist_quant_10", "mean"]')
    run(experiment)
    names = ("hist_quant_75", "hist_quant_10", "mean")
    tables = [edges_of(experiment, name) for name in names]
    assert all(np.array_equal(table.u, tables[0].u) for table in tables)
    assert len({table.merge_score.tobytes() for table in tables}) == 3
    facts = read_manifest(experiment.layout, "agglomerate").facts["totals"]
    assert [facts[f"edges_{name}"] for name in names] == [len(tables[0])] * 3


def test_empty_blocks_are_done_blocks_with_zero_rows(
    make_experiment: MakeExperiment, labels: NDArray[np.uint64]
) -> None:
    """Lineage bug: done meant `has any edge`, so an empty block was never done."""
    experiment = make_experiment(fragments=np.zeros_like(labels))
    run(experiment)
    assert [len(edges) for edges in edges_by_block(experiment)] == [0] * 24
    assert Agglomerate().status(experiment)["finished"]


def test_fragments_of_other_affinities_are_refused(make_experiment: MakeExperiment) -> None:
    experiment = make_experiment()
    predict = read_manifest(experiment.layout, "predict")
    predict.model_copy(update={"identity": "newer"}).write(experiment.layout)
    with pytest.raises(ContractMismatch, match="other affinities"):
        run(experiment)
    assert [type(problem) for problem in Agglomerate().validate(experiment)] == [ContractMismatch]


@pytest.mark.parametrize("change", [{"key": "another"}, {"config": {"id_mode": "another"}}])
def test_fragments_that_watershed_did_not_finish_are_refused(
    make_experiment: MakeExperiment, change: dict[str, object]
) -> None:
    experiment = make_experiment()
    watershed = read_manifest(experiment.layout, "watershed")
    watershed.model_copy(update=change).write(experiment.layout)
    with pytest.raises(ContractMismatch):
        run(experiment)


def test_ids_of_another_block_are_refused(make_experiment: MakeExperiment, labels: NDArray[np.uint64]) -> None:
    """Labels that were not named by blocks: edges would be lost."""
    experiment = make_experiment(fragments=labels)
    with pytest.raises(BadData, match="ids of another block"):
        run(experiment)


def test_watershed_must_have_finished(make_experiment: MakeExperiment) -> None:
    experiment = make_experiment()
    experiment.layout.manifest("watershed").unlink()
    assert Agglomerate().validate(experiment) == []
    with pytest.raises(MissingInput, match="watershed"):
        run(experiment)


@pytest.mark.parametrize(
    ("table", "word"),
    [
        ('context = "0 vox"', "context"),
        ('context = "1, 1, 0 vox"', "context"),
        ('block_shape = "12, 16, 8 vox"', "multiples"),
        ('block_shape = "4, 8, 4 vox"', "multiples"),
        ('context = "13 nm"', "context"),
        ('merge_functions = ["medium"]', "hist_quant_75"),
        ('merge_functions = ["median"]', "complete faces"),
        ('merge_functions = ["mean", "mean"]', "twice"),
        ("merge_functions = []", "merge_functions"),
        ('merge_function = "mean"', "merge_functions"),
    ],
)
def test_wrong_settings_are_refused_with_their_name(make_experiment: MakeExperiment, table: str, word: str) -> None:
    experiment = make_experiment(table)
    with pytest.raises(ConfigError) as caught:
        run(experiment)
    assert word in caught.value.message()
    assert not experiment.layout.manifest("agglomerate").exists()


def test_validate_is_silent_on_a_good_experiment(make_experiment: MakeExperiment) -> None:
    problems: list[StageError] = Agglomerate().validate(make_experiment())
    assert problems == []


def test_plan_counts_blocks(make_experiment: MakeExperiment) -> None:
    assert Agglomerate().plan(make_experiment())["blocks"] == 3 * 2 * 4
