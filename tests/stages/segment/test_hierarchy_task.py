"""The whole stage in memory and in parts: the same files, voxels, facts and identity; killed runs resume."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lsdflow_contract.arrays import SEGMENTATION
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.manifest import read_manifest
from lsdflow_contract.testing import made
from lsdflow_runtime.io.volumes import open_volume
from lsdflow_runtime.store.stores import open_store
from lsdflow_segment import stage
from lsdflow_segment.config import SegmentConfig
from lsdflow_segment.graph import GraphSource, StoredGraph
from lsdflow_segment.inputs import STAGE, open_inputs
from lsdflow_segment.partitioned_graph import PartitionedGraph
from lsdflow_segment.stage import Segment

Make = Callable[..., Experiment]
COARSE = "segment.thresholds_step=0.25"
PARTS = (COARSE, "segment.nodes_in_memory=60")


def tables(experiment: Experiment) -> dict[str, bytes]:
    files = [path for path in experiment.layout.luts.rglob("*") if path.is_file()]
    return {str(path.relative_to(experiment.layout.luts)): path.read_bytes() for path in files}


def assert_same(found: Experiment, wanted: Experiment) -> None:
    assert tables(found) == tables(wanted)
    a, b = (read_manifest(e.layout, STAGE) for e in (found, wanted))
    assert (a.key, a.identity) == (b.key, b.identity)
    measured = ("seconds", "seconds_in_blocks", "peak_rss_mib")
    assert {**a.facts, **dict.fromkeys(measured)} == {**b.facts, **dict.fromkeys(measured)}
    volumes = [open_volume(made(e.layout, "segment"), SEGMENTATION.dataset) for e in (found, wanted)]
    assert (volumes[0].read(volumes[0].box) == volumes[1].read(volumes[1].box)).all()


@pytest.mark.parametrize("truth", [True, False])
def test_finding_in_memory_and_in_parts_gives_the_same_files_facts_and_identity(
    make_experiment: Make, truth: bool
) -> None:
    extra = "segment.extra_thresholds=[0.2]"
    whole = make_experiment("whole", COARSE, extra, truth=truth)
    parts = make_experiment("parts", *PARTS, extra, truth=truth)
    Segment().run(whole)
    Segment().run(parts)
    assert_same(parts, whole)
    assert Segment().verify(parts)["verified"]
    assert Segment().status(parts)["finished"]


@pytest.mark.parametrize(
    "step", ["partition._distribute_edges", "partitioned_graph.PartitionedGraph.go_down", "stage.run_task"]
)
def test_a_run_killed_in_any_step_resumes_to_the_same_result(
    make_experiment: Make, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    class KilledError(Exception):
        pass

    def killed(*_: object) -> None:
        raise KilledError

    whole, parts = make_experiment("whole", COARSE), make_experiment("parts", *PARTS)
    Segment().run(whole)
    with monkeypatch.context() as patch:
        patch.setattr(f"lsdflow_segment.{step}", killed)
        with pytest.raises(KilledError):
            Segment().run(parts)
    assert (parts.layout.luts / ".parts").is_dir()
    Segment().run(parts)
    assert_same(parts, whole)


def test_workers_of_other_processes_map_the_table(make_experiment: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, parts = (
        make_experiment("whole", COARSE),
        make_experiment("parts", *PARTS, "compute.runner=daisy", "compute.workers=1"),
    )
    Segment().run(whole)
    monkeypatch.setattr("lsdflow_segment.relabel.read_lut", None)
    Segment().run(parts)
    assert_same(parts, whole)


@pytest.mark.parametrize(("more", "in_parts"), [(0, False), (-1, True)])
def test_a_graph_is_found_in_parts_if_it_has_more_nodes_than_nodes_in_memory(
    make_experiment: Make, more: int, in_parts: bool
) -> None:
    layout = make_experiment("a").layout
    nodes = StoredGraph(open_store(make_experiment("a")).rag, GraphSource.of(layout)).count_nodes()
    experiment = make_experiment("a", COARSE, f"segment.nodes_in_memory={nodes + more}")
    inputs = open_inputs(experiment.layout, experiment.table(STAGE, SegmentConfig))
    graph = stage._find_segments(inputs, StoredGraph(open_store(experiment).rag, inputs.source), "mean")
    assert isinstance(graph, PartitionedGraph) == in_parts


def test_nodes_in_memory_is_no_part_of_any_key(make_experiment: Make) -> None:
    one, other = make_experiment("a", COARSE), make_experiment("a", *PARTS)
    keys = [open_inputs(e.layout, e.table(STAGE, SegmentConfig)).tables_key("mean") for e in (one, other)]
    assert keys[0] == keys[1]


def test_files_of_a_killed_run_are_removed_by_the_next_that_finishes(make_experiment: Make) -> None:
    experiment = make_experiment("a", COARSE)
    left: Path = experiment.layout.luts / ".parts" / "another graph" / "part-0"
    left.mkdir(parents=True)
    Segment().run(experiment)
    assert not (experiment.layout.luts / ".parts").exists()
