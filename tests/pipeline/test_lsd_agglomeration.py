"""Agglomeration from LSDs alone: cells come together, in blocks of any size and by any runner with the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lsdflow
from lsdflow_agglomerate.config import AgglomerateConfig
from lsdflow_agglomerate.stage import Agglomerate
from lsdflow_contract.arrays import AFFS, LSDS, RAW, quantise_u8
from lsdflow_contract.errors import ConfigError, MissingInput
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_contract.geometry import Box, Geometry
from lsdflow_contract.graph import RagEdges
from lsdflow_contract.manifest import Manifest, Writer, read_manifest
from lsdflow_contract.testing import affinities_of, made, voronoi_labels
from lsdflow_descriptors.label_descriptors import descriptors_of
from lsdflow_runtime.io.volumes import OutputArray, open_volume
from lsdflow_runtime.store.stores import open_store
from lsdflow_segment.stage import Segment
from lsdflow_watershed.stage import Watershed

watershed = Watershed()
agglomerate = Agglomerate()
segment = Segment()

GRID = Geometry((10.0, 7.5, 7.5), (50.0, 0.0, 15.0), (24, 30, 32))
SIGMA_NM = (25.0, 25.0, 25.0)
FROM_LSDS = {"agglomerate.scored_from": "lsds", "agglomerate.lsd_sigma": '"25 nm"'}
TABLES = """[watershed]
min_seed_distance_vox = 2
block_shape = "16 vox"
context = "8 vox"
[agglomerate]
merge_functions = ["mean"]
[segment]
threshold = 0.4
"""
CELLS = voronoi_labels(GRID.shape_vox, 12, 3)


def predicted(root: Path, runner: str = "serial", lsds: bool = True, **settings: str) -> Experiment:
    """An experiment in which predict has finished: faint, noisy affinities, LSDs of the cells."""
    root.mkdir(parents=True)
    (root / "experiment.toml").write_text(f'[compute]\nrunner = "{runner}"\nworkers = 2\n{TABLES}')
    experiment = load_experiment(root, [f"{name}={value}" for name, value in {**FROM_LSDS, **settings}.items()])
    container = experiment.layout.result("predict", "affs") / "predictions.zarr"
    noise = np.random.default_rng(0).normal(0, 50, (3, *GRID.shape_vox))
    values = np.clip(affinities_of(CELLS) * 0.5 + 90 + noise, 0, 255).astype(np.uint8)
    seen = quantise_u8(descriptors_of(CELLS, Box((0, 0, 0), GRID.shape_vox), SIGMA_NM, GRID.voxel_size_nm))
    target = experiment.layout.target_volume
    for path, spec, array in (
        (target, RAW, np.zeros(GRID.shape_vox, np.uint8)),
        (container, AFFS, values),
        (container, LSDS, seen),
    ):
        output = OutputArray(path, spec, GRID, GRID.box, GRID.shape_vox)
        output.create({"key": spec.dataset})
        output.open().write(GRID.box, array)
    specs = {"affs": AFFS, "lsds": LSDS} if lsds else {"affs": AFFS}
    outputs = {name: str((container / spec.dataset).relative_to(root)) for name, spec in specs.items()}
    facts: dict[str, Any] = {"key": "affs", "config": {}, "inputs": {}, "identity": "affs"}
    Manifest(writer=Writer.of("predict"), outputs=outputs, **facts).write(experiment.layout)
    watershed.run(experiment)
    return experiment


def run(experiment: Experiment) -> None:
    for stage in (agglomerate, segment):
        assert stage.validate(experiment) == []
        stage.run(experiment)


def edges_of(experiment: Experiment) -> RagEdges:
    """Ascending."""
    key = read_manifest(experiment.layout, "agglomerate").key
    edges = RagEdges.concatenate(list(open_store(experiment).rag.iter_edges(key, "mean")))
    order = np.lexsort((edges.v, edges.u))
    return RagEdges(edges.u[order], edges.v[order], edges.merge_score[order])


def voi(experiment: Experiment, name: str) -> float:
    """Of fragments or of the segmentation, against the cells."""
    volume = open_volume(made(experiment.layout, "watershed" if name == "fragments" else "segment"), f"volumes/{name}")
    return lsdflow.compare(volume.read(volume.box), CELLS).voi


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    experiment = predicted(tmp_path_factory.mktemp("lsds") / "reference")
    run(experiment)
    return experiment


@pytest.mark.proves("AGG-05")
def test_fragments_of_cells_come_together_where_that_is_what_the_network_saw(
    reference: Experiment, tmp_path: Path
) -> None:
    """At a score of 1/2 joining would change nothing. The faint affinities of this test join less well."""
    from_affinities = predicted(tmp_path / "affinities", **{"agglomerate.scored_from": "affinities"})
    run(from_affinities)
    assert voi(reference, "segmentation") < 0.6 * voi(reference, "fragments")
    assert voi(reference, "segmentation") < voi(from_affinities, "segmentation")


@pytest.mark.parametrize(
    ("runner", "settings"),
    [
        ("daisy", {}),
        ("serial", {"agglomerate.block_shape": '"7, 30, 9 vox"'}),
        ("serial", {"agglomerate.super_block": '"16 vox"'}),
    ],
)
def test_any_runner_and_any_blocks_give_the_same_edges(
    reference: Experiment, tmp_path: Path, runner: str, settings: dict[str, str]
) -> None:
    other = predicted(tmp_path / "other", runner, **settings)
    agglomerate.run(other)
    wanted, found = edges_of(reference), edges_of(other)
    assert len(wanted) > 100
    for column in ("u", "v", "merge_score"):
        assert np.array_equal(getattr(found, column), getattr(wanted, column), equal_nan=column == "merge_score")


def test_fragments_of_blocks_are_scored_from_lsds_too(tmp_path: Path) -> None:
    experiment = predicted(tmp_path / "blocks", **{"watershed.id_mode": "blocks"})
    run(experiment)
    assert voi(experiment, "segmentation") < 0.8 * voi(experiment, "fragments")


def test_without_stored_lsds_or_their_sigma_nothing_is_begun(tmp_path: Path) -> None:
    without = predicted(tmp_path / "without", lsds=False)
    assert [type(problem) for problem in agglomerate.validate(without)] == [MissingInput]
    unknown = predicted(tmp_path / "unknown")
    plain = load_experiment(unknown.path, ["agglomerate.scored_from=lsds"])
    (problem,) = agglomerate.validate(plain)
    assert isinstance(problem, ConfigError)
    assert "agglomerate.lsd_sigma" in problem.message()
    assert not without.layout.manifest("agglomerate").exists()


def test_graphs_of_affinities_keep_the_keys_that_they_had_before_there_was_a_choice() -> None:
    assert AgglomerateConfig().parameters() == {
        "merge_functions": ["hist_quant_75"],
        "block_shape": None,
        "context": None,
    }
    assert AgglomerateConfig(scored_from="lsds").parameters()["scored_from"] == "lsds"
