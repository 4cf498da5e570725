"""From affinities to near and far voxels to scores: the mutex watershed and all stages after it, in any way to run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lsdflow_agglomerate.stage import Agglomerate
from lsdflow_contract.arrays import AFFINITY_NEIGHBORHOOD, AFFS, LABELS, RAW, affinities_to
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_contract.geometry import Geometry, Vox3
from lsdflow_contract.manifest import Manifest, Writer, read_manifest
from lsdflow_contract.testing import made, membrane_raw, noisy_affinities_to, voronoi_labels
from lsdflow_evaluate.stage import Evaluate
from lsdflow_runtime.io.volumes import OutputArray, open_volume
from lsdflow_runtime.store.stores import open_store
from lsdflow_segment.stage import Segment
from lsdflow_watershed.stage import Watershed

watershed = Watershed()
agglomerate = Agglomerate()
segment = Segment()
evaluate = Evaluate()

STAGES: dict[str, Any] = {"watershed": watershed, "agglomerate": agglomerate, "segment": segment, "evaluate": evaluate}
GRID = Geometry((10.0, 7.5, 7.5), (50.0, 0.0, 15.0), (24, 30, 36))
FAR: tuple[Vox3, ...] = (*AFFINITY_NEIGHBORHOOD, (-3, 0, 0), (0, -4, 0), (0, 0, -4))
MUTEX = """[watershed]
method = "mutex"
id_mode = "blocks"
mutex_strides = [[2, 2, 2]]
remove_debris_vox = 8
block_shape = "16 vox"
context = "8 vox"
[agglomerate]
merge_functions = ["hist_quant_50"]
[segment]
thresholds_step = 0.1
"""


def labels() -> NDArray[np.uint64]:
    return voronoi_labels(GRID.shape_vox, 14, 3)


def predicted(root: Path, tables: str, neighborhood: tuple[Vox3, ...], runner: str = "serial") -> Experiment:
    """An experiment in which predict has finished: the same three nearest affinities in any neighbourhood."""
    root.mkdir()
    (root / "experiment.toml").write_text(f'[compute]\nrunner = "{runner}"\nworkers = 2\n{tables}')
    experiment = load_experiment(root)
    layout, spec = experiment.layout, affinities_to(neighborhood)
    container = layout.result("predict", "affs") / "predictions.zarr"
    for path, wanted, values in (
        (layout.target_volume, RAW, membrane_raw(labels())),
        (layout.target_volume, LABELS, labels()),
        (container, spec, noisy_affinities_to(labels(), FAR)[: spec.channels]),
    ):
        output = OutputArray(path, wanted, GRID, GRID.box, GRID.shape_vox)
        output.create({"key": wanted.dataset})
        output.open().write(GRID.box, values)
    affs = str((container / AFFS.dataset).relative_to(root))
    for stage, outputs in (("prepare", {}), ("predict", {"affs": affs})):
        facts: dict[str, Any] = {"key": stage, "config": {}, "inputs": {}, "identity": stage}
        Manifest(writer=Writer.of(stage), outputs=outputs, **facts).write(layout)
    return experiment


def run_all(experiment: Experiment, *stages: str) -> Experiment:
    for stage in stages or tuple(STAGES):
        assert STAGES[stage].validate(experiment) == []
        STAGES[stage].run(experiment)
    return experiment


def voxels(experiment: Experiment, name: str) -> NDArray[np.uint64]:
    volume = open_volume(made(experiment.layout, "watershed" if name == "fragments" else "segment"), f"volumes/{name}")
    return volume.read(volume.box)


def edges_of(experiment: Experiment) -> list[tuple[int, int, float]]:
    key = read_manifest(experiment.layout, "agglomerate").key
    blocks = open_store(experiment).rag.iter_edges(key, "hist_quant_50")
    return [row for b in blocks for row in zip(b.u.tolist(), b.v.tolist(), b.merge_score.tolist(), strict=True)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    return run_all(predicted(tmp_path_factory.mktemp("mutex") / "serial", MUTEX, FAR))


def test_cells_are_found_and_scored(finished: Experiment) -> None:
    scores = json.loads((finished.layout.report / "scores.json").read_text())
    assert scores["voi"] < 0.5
    assert len(edges_of(finished)) > 20
    assert len(np.unique(voxels(finished, "segmentation"))) < len(np.unique(voxels(finished, "fragments")))
    assert "mutex watershed" in (finished.layout.report / "index.html").read_text()
    for name, stage in STAGES.items():
        assert stage.status(finished)["finished"], name


def test_daisy_workers_give_the_bits_of_the_serial_runner(finished: Experiment, tmp_path: Path) -> None:
    daisy = run_all(predicted(tmp_path / "daisy", MUTEX, FAR, "daisy"), "watershed", "agglomerate", "segment")
    for stage in ("watershed", "agglomerate", "segment"):
        assert read_manifest(daisy.layout, stage).identity == read_manifest(finished.layout, stage).identity
    assert np.array_equal(voxels(daisy, "segmentation"), voxels(finished, "segmentation"))


@pytest.mark.parametrize("id_mode", ["blocks", "seamless"])
def test_seeded_fragments_and_scores_are_those_of_the_three_nearest_affinities(tmp_path: Path, id_mode: str) -> None:
    tables = (
        f'[watershed]\nid_mode = "{id_mode}"\nblock_shape = "16 vox"\ncontext = "8 vox"\nmin_seed_distance_vox = 4\n'
    )
    tables += '[agglomerate]\nmerge_functions = ["hist_quant_50"]\n'
    far = run_all(predicted(tmp_path / "far", tables, FAR), "watershed", "agglomerate")
    near = run_all(predicted(tmp_path / "near", tables, AFFINITY_NEIGHBORHOOD), "watershed", "agglomerate")
    assert np.array_equal(voxels(far, "fragments"), voxels(near, "fragments"))
    assert edges_of(far) == edges_of(near)
    assert len(edges_of(far)) > 20
    assert read_manifest(far.layout, "watershed").key == read_manifest(near.layout, "watershed").key
