"""Watershed, agglomerate and segment with the files store and with MongoDB: the same tables, voxels and identities."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from lsdflow_agglomerate.stage import Agglomerate
from lsdflow_contract.arrays import AFFS, RAW
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_contract.geometry import Geometry
from lsdflow_contract.manifest import Manifest, Writer, read_manifest
from lsdflow_contract.testing import made, tables_of, voronoi_labels
from lsdflow_evaluate.evaluation import report_source
from lsdflow_evaluate.report.stage_records import stage_blocks
from lsdflow_runtime.io.volumes import OutputArray, open_volume
from lsdflow_runtime.store.stores import open_store
from lsdflow_segment.stage import Segment
from lsdflow_watershed.stage import Watershed

watershed = Watershed()
agglomerate = Agglomerate()
segment = Segment()

STAGES = {"watershed": watershed, "agglomerate": agglomerate, "segment": segment}
GRID = Geometry((10.0, 7.5, 7.5), (50.0, 0.0, 15.0), (30, 36, 40))
TABLES = """[watershed]
id_mode = "blocks"
block_shape = "16 vox"
context = "4 vox"
min_seed_distance_vox = 4
[agglomerate]
merge_functions = ["hist_quant_75", "mean"]
[segment]
thresholds_step = 0.1
threshold = 0.3
"""


def affinities() -> NDArray[np.uint8]:
    """Affinities (3, z, y, x) u8 of 30 cells, noisy."""
    labels = voronoi_labels(GRID.shape_vox, 30, 3).astype(np.int64)
    generator = np.random.default_rng(0)
    near = np.zeros(labels.shape, bool)
    for axis in range(3):
        near |= np.pad(np.diff(labels, axis=axis) != 0, [(0, int(axis == a)) for a in range(3)])
    noise = gaussian_filter(generator.normal(0, 1, (3, *labels.shape)), (0, 1.5, 1.5, 1.5))
    values = gaussian_filter(np.where(near, 0.1, 0.95), 0.7) + 0.15 * noise / noise.std()
    return (np.clip(values, 0, 1) * 255).astype(np.uint8)


def predicted(root: Path, compute: str, store: str) -> Experiment:
    """An experiment in which predict has finished."""
    root.mkdir()
    (root / "experiment.toml").write_text(f"[compute]\n{compute}\n[store]\n{store}\n{TABLES}")
    experiment = load_experiment(root)
    container = experiment.layout.result("predict", "affs") / "predictions.zarr"
    for path, spec, values in (
        (experiment.layout.target_volume, RAW, np.zeros(GRID.shape_vox, np.uint8)),
        (container, AFFS, affinities()),
    ):
        output = OutputArray(path, spec, GRID, GRID.box, GRID.shape_vox)
        output.create({"key": spec.dataset})
        output.open().write(GRID.box, values)
    outputs = {"affs": str((container / AFFS.dataset).relative_to(root))}
    facts: dict[str, Any] = {"key": "affs", "config": {}, "inputs": {}, "identity": "affs"}
    Manifest(writer=Writer.of("predict"), outputs=outputs, **facts).write(experiment.layout)
    return experiment


def run_all(experiment: Experiment) -> None:
    for stage in STAGES.values():
        assert stage.validate(experiment) == []
        stage.run(experiment)


def mongo_table(server: Any, database: str, folder: Path) -> str:
    file = server.uri_file(database, folder)
    return f'engine = "mongo"\nuri_file = "{file}"\ndatabase = "{database}"\nretry_s = 60'


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    experiment = predicted(tmp_path_factory.mktemp("engines") / "files", 'runner = "serial"', 'engine = "files"')
    run_all(experiment)
    return experiment


def done_blocks(experiment: Experiment) -> dict[str, int]:
    """How many blocks of each stage the report shows as done."""
    source = report_source(experiment)
    found = {name: stage_blocks(source, name, read_manifest(experiment.layout, name)) for name in STAGES}
    return {name: blocks.done for name, blocks in found.items() if blocks is not None}


def assert_same_results(found: Experiment, wanted: Experiment) -> None:
    for stage in STAGES:
        assert read_manifest(found.layout, stage).identity == read_manifest(wanted.layout, stage).identity, stage
    of_found, of_wanted = tables_of(found.layout), tables_of(wanted.layout)
    tables = sorted(p.name for p in of_wanted.glob("*.npz"))
    assert len(tables) > 10
    assert tables == sorted(p.name for p in of_found.glob("*.npz"))
    for name in tables:
        assert (of_found / name).read_bytes() == (of_wanted / name).read_bytes(), name
    for path in ("fragments", "segmentation"):
        a, b = (
            open_volume(made(e.layout, "watershed" if path == "fragments" else "segment"), f"volumes/{path}")
            for e in (found, wanted)
        )
        assert np.array_equal(a.read(a.box), b.read(b.box)), path


@pytest.mark.proves("DBS-07", "WSD-12")
@pytest.mark.parametrize("compute", ['runner = "serial"', 'runner = "daisy"\nworkers = 3'])
def test_mongo_gives_the_same_tables_voxels_and_identities_as_files(
    reference: Experiment, mongod: Any, tmp_path: Path, compute: str
) -> None:
    database = f"same-{tmp_path.name}"[:60]
    experiment = predicted(tmp_path / "mongo", compute, mongo_table(mongod, database, tmp_path))
    run_all(experiment)
    assert_same_results(experiment, reference)
    for name, stage in STAGES.items():
        assert stage.verify(experiment)["verified"], name
        assert stage.status(experiment)["finished"], name
    assert done_blocks(experiment) == done_blocks(reference)
    assert set(done_blocks(experiment)) == set(STAGES)
    assert [path.name for path in experiment.layout.store.iterdir()] == ["owner.json"], "all else is in the database"


def test_the_same_bits_although_the_server_is_killed_twice_while_workers_write(
    reference: Experiment, mongod_for_tests: ModuleType, tmp_path: Path
) -> None:
    with mongod_for_tests.running_mongod(tmp_path / "server") as server:
        compute = 'runner = "daisy"\nworkers = 3'
        experiment = predicted(tmp_path / "mongo", compute, mongo_table(server, "killed", tmp_path))
        finished, kills = threading.Event(), []

        def kill_now_and_then() -> None:
            while not finished.wait(2.5) and len(kills) < 3:
                server.kill()
                kills.append(time.monotonic())
                time.sleep(0.5)
                server.start()

        killer = threading.Thread(target=kill_now_and_then)
        killer.start()
        try:
            run_all_patiently(experiment)
        finally:
            finished.set()
            killer.join()
        assert kills
        assert_same_results(experiment, reference)


def run_all_patiently(experiment: Experiment) -> None:
    """Without validate, which says at once when the server is away."""
    for stage in STAGES.values():
        stage.run(experiment)


@pytest.mark.proves("AGG-03")
def test_graphs_of_other_parameters_are_side_by_side_in_the_database(
    reference: Experiment, mongod: Any, tmp_path: Path
) -> None:
    database = f"replace-{tmp_path.name}"[:60]
    experiment = predicted(tmp_path / "mongo", 'runner = "serial"', mongo_table(mongod, database, tmp_path))
    other = load_experiment(experiment.path, ["watershed.min_seed_distance_vox=6"])
    for which in (other, experiment):
        for stage in STAGES.values():
            stage.run(which)
    assert_same_results(experiment, reference)
    keys = {stage: read_manifest(experiment.layout, stage).key for stage in STAGES}
    with mongod.admin() as client:
        found = client[database]
        assert len(found["nodes"].distinct("key")) == len(found["edges_mean"].distinct("key")) == 2
        ids = [document["id"] for document in found["nodes"].find({"key": keys["watershed"]})]
        assert len(ids) == len(set(ids)), "a fragment is one row of a key"
    assert set(open_store(experiment).keys("watershed")) > {keys["watershed"]}


@pytest.mark.parametrize("engine", ["files", "mongo"])
def test_segments_found_part_by_part_are_those_of_the_whole_graph(
    reference: Experiment, mongod: Any, tmp_path: Path, engine: str
) -> None:
    database = f"parts-{tmp_path.name}"[:60]
    table = mongo_table(mongod, database, tmp_path) if engine == "mongo" else 'engine = "files"'
    made = predicted(tmp_path / engine, 'runner = "serial"', table)
    run_all(load_experiment(made.path, ["segment.nodes_in_memory=40"]))
    assert_same_results(made, reference)
