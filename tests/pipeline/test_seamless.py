"""Seamless mode from affinities to segmentation: the same answer whatever the block size, in every way to run it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from lsdflow_agglomerate.stage import Agglomerate
from lsdflow_contract.arrays import AFFS, RAW
from lsdflow_contract.errors import BadData, ConfigError
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_contract.geometry import Geometry
from lsdflow_contract.graph import FACES, RagEdges
from lsdflow_contract.manifest import Manifest, Writer, read_manifest
from lsdflow_contract.testing import made, tables_of, voronoi_labels
from lsdflow_runtime.io.volumes import OutputArray, open_volume
from lsdflow_runtime.store.stores import open_store
from lsdflow_segment.stage import Segment
from lsdflow_watershed.stage import Watershed

watershed = Watershed()
agglomerate = Agglomerate()
segment = Segment()

STAGES = {"watershed": watershed, "agglomerate": agglomerate, "segment": segment}
GRID = Geometry((10.0, 7.5, 7.5), (50.0, 0.0, 15.0), (30, 36, 40))
BLOCKS = {"watershed.block_shape": '"16 vox"', "watershed.context": '"40 vox"'}
SUPER_BLOCKS = {"agglomerate.super_block": '"16 vox"'}
TABLES = """[watershed]
id_mode = "seamless"
min_seed_distance_vox = 4
[agglomerate]
merge_functions = ["hist_quant_75", "mean", "hist_quant_50_initmax"]
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


def predicted(root: Path, *, compute: str = 'runner = "serial"', store: str = "", **settings: str) -> Experiment:
    """An experiment in which predict has finished; `settings` are overrides table.key=value."""
    root.mkdir()
    (root / "experiment.toml").write_text(f"[compute]\n{compute}\n[store]\n{store}\n{TABLES}")
    experiment = load_experiment(root, [f"{name}={value}" for name, value in {**BLOCKS, **settings}.items()])
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


def edges_of(experiment: Experiment, merge_function: str) -> RagEdges:
    """Edges of the graph, ascending."""
    key = read_manifest(experiment.layout, "agglomerate").key
    edges = RagEdges.concatenate(list(open_store(experiment).rag.iter_edges(key, merge_function)))
    order = np.lexsort((edges.v, edges.u))
    return RagEdges(edges.u[order], edges.v[order], edges.merge_score[order])


def voxels(experiment: Experiment, name: str) -> NDArray[np.uint64]:
    volume = open_volume(made(experiment.layout, "watershed" if name == "fragments" else "segment"), f"volumes/{name}")
    return volume.read(volume.box)


def assert_same_answer(found: Experiment, wanted: Experiment) -> None:
    """Voxels, edges and tables; identities differ where blocks do."""
    for name in ("fragments", "segmentation"):
        assert np.array_equal(voxels(found, name), voxels(wanted, name)), name
    for merge_function in ("hist_quant_75", "mean", "hist_quant_50_initmax"):
        a, b = (edges_of(e, merge_function) for e in (found, wanted))
        assert a.u.tolist() == b.u.tolist()
        assert a.v.tolist() == b.v.tolist()
        assert np.array_equal(a.merge_score, b.merge_score, equal_nan=True)
    tables = sorted(p.name for p in tables_of(wanted.layout).glob("*.npz"))
    assert len(tables) > 10
    for name in tables:
        assert (tables_of(found.layout) / name).read_bytes() == (tables_of(wanted.layout) / name).read_bytes(), name


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    experiment = predicted(tmp_path_factory.mktemp("seamless") / "reference")
    run_all(experiment)
    return experiment


@pytest.mark.proves("TRB-08")
@pytest.mark.parametrize(
    "settings",
    [
        {"watershed.block_shape": '"64 vox"', "watershed.context": '"0 vox"'},
        {"watershed.block_shape": '"7, 36, 13 vox"'},
        {"watershed.block_shape": '"30, 9, 20 vox"', "agglomerate.block_shape": '"11, 5, 40 vox"'},
        {"watershed.block_shape": '"8 vox"', "agglomerate.super_block": '"8 vox"'},
        {
            "watershed.block_shape": '"10 vox"',
            "agglomerate.block_shape": '"6 vox"',
            "agglomerate.super_block": '"12, 18, 6 vox"',
        },
    ],
)
def test_any_blocks_give_the_same_fragments_edges_tables_and_segments(
    reference: Experiment, tmp_path: Path, settings: dict[str, str]
) -> None:
    experiment = predicted(tmp_path / "other", **settings)
    run_all(experiment)
    assert_same_answer(experiment, reference)
    assert len(np.unique(voxels(experiment, "segmentation"))) > 5


def test_fragments_cross_block_faces_and_every_stage_is_verified(reference: Experiment) -> None:
    fragments = voxels(reference, "fragments")
    across = (fragments[15] == fragments[16]) & (fragments[15] > 0)
    assert across.mean() > 0.3
    for name, stage in STAGES.items():
        assert stage.verify(reference)["verified"], name
        assert stage.status(reference)["finished"], name
    facts = agglomerate.verify(reference)
    assert facts["faces_blocks_read_back"] == agglomerate.status(reference)["faces_done"] == 2 * 3 * 3
    assert agglomerate.plan(reference)["blocks"] == 18


def test_edges_are_those_of_the_fragments_each_once_and_scored(reference: Experiment) -> None:
    edges = edges_of(reference, "hist_quant_75")
    pairs = list(zip(edges.u.tolist(), edges.v.tolist(), strict=True))
    assert pairs == sorted(set(pairs))
    fragments = voxels(reference, "fragments")
    wanted = set()
    for axis in range(3):
        a = np.take(fragments, range(1, fragments.shape[axis]), axis)
        b = np.take(fragments, range(fragments.shape[axis] - 1), axis)
        touching = (a != b) & (a > 0) & (b > 0)
        wanted |= set(zip(np.minimum(a, b)[touching].tolist(), np.maximum(a, b)[touching].tolist(), strict=True))
    assert set(pairs) == wanted
    assert not np.isnan(edges.merge_score).any()


@pytest.fixture(scope="module")
def in_super_blocks(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    """Two levels: 18 super-blocks below, then 2, then 1."""
    experiment = predicted(tmp_path_factory.mktemp("super") / "blocks", **SUPER_BLOCKS)
    run_all(experiment)
    return experiment


def test_super_blocks_give_the_answer_of_the_whole_graph_and_every_pass_is_verified(
    reference: Experiment, in_super_blocks: Experiment
) -> None:
    assert_same_answer(in_super_blocks, reference)
    facts = agglomerate.verify(in_super_blocks)
    assert facts["blocks"] == facts["left_1_blocks_read_back"] == 18
    assert facts["left_2_blocks_read_back"] == facts["settled_2_blocks_read_back"] == 4
    assert facts["settled_3_blocks_read_back"] == 1
    status = agglomerate.status(in_super_blocks)
    assert status["finished"]
    assert status["settled_3_done"] == 1
    assert "pass" not in status


def test_status_reports_the_pass_that_is_at_work(tmp_path: Path) -> None:
    experiment = predicted(tmp_path / "begun", **SUPER_BLOCKS)
    watershed.run(experiment)
    before = agglomerate.status(experiment)
    assert (before["pass"], before["done"], before["blocks"], before["finished"]) == ("faces", 0, 18, False)
    agglomerate.run(experiment)
    agglomerate.passes(experiment)[2].marks.remove(1)
    again = agglomerate.status(experiment)
    assert (again["pass"], again["done"], again["blocks"]) == ("left_2", 3, 4)


def test_daisy_workers_give_the_bits_of_the_serial_runner(in_super_blocks: Experiment, tmp_path: Path) -> None:
    experiment = predicted(tmp_path / "daisy", compute='runner = "daisy"\nworkers = 2', **SUPER_BLOCKS)
    run_all(experiment)
    assert_same_answer(experiment, in_super_blocks)
    for stage in STAGES:
        assert read_manifest(experiment.layout, stage).identity == read_manifest(in_super_blocks.layout, stage).identity


def test_mongo_gives_the_same_answer_and_identities_as_files(
    in_super_blocks: Experiment, mongod: Any, tmp_path: Path
) -> None:
    database = f"seamless-{tmp_path.name}"[:60]
    store = (
        f'engine = "mongo"\nuri_file = "{mongod.uri_file(database, tmp_path)}"\ndatabase = "{database}"\nretry_s = 60'
    )
    experiment = predicted(tmp_path / "mongo", store=store, **SUPER_BLOCKS)
    run_all(experiment)
    assert_same_answer(experiment, in_super_blocks)
    for name, stage in STAGES.items():
        assert read_manifest(experiment.layout, name).identity == read_manifest(in_super_blocks.layout, name).identity
        assert stage.verify(experiment)["verified"], name
    agglomerate.run(experiment)
    assert agglomerate.verify(experiment)["verified"], "the second pass leaves the rows of the first"


@pytest.mark.parametrize("collection", [f"edges_{FACES}", "edges_mean", "edges_left_mean", "edges_settled_mean_3"])
@pytest.mark.parametrize("damage", ["lost", "damaged"])
def test_lost_or_damaged_rows_are_found_by_verify_and_made_again(
    reference: Experiment, tmp_path: Path, collection: str, damage: str
) -> None:
    experiment = predicted(tmp_path / "broken", **SUPER_BLOCKS)
    run_all(experiment)
    path = sorted((experiment.layout.store / collection).glob("*/*.parquet"))[-1]
    before = path.read_bytes()
    if damage == "lost":
        path.unlink()
    else:
        path.write_bytes(before[:-50] + bytes(50))
    with pytest.raises(BadData, match="lost or damaged"):
        agglomerate.verify(experiment)
    agglomerate.repair(experiment)
    assert agglomerate.verify(experiment)["verified"]
    assert_same_answer(experiment, reference)


def test_another_merge_function_needs_no_second_counting(tmp_path: Path) -> None:
    experiment = predicted(tmp_path / "more")
    run_all(experiment)
    faces = sorted((experiment.layout.store / f"edges_{FACES}").glob("*/*.parquet"))
    assert len(faces) == 18
    before = [p.stat().st_mtime_ns for p in faces]
    more = load_experiment(experiment.path, [*experiment.overrides, 'agglomerate.merge_functions=["hist_quant_50"]'])
    agglomerate.run(more)
    assert [p.stat().st_mtime_ns for p in faces] == before
    assert sorted((experiment.layout.store / f"edges_{FACES}").glob("*/*.parquet")) == faces
    assert len(edges_of(more, "hist_quant_50")) > 0


@pytest.mark.parametrize(
    ("setting", "word"),
    [
        ("watershed.epsilon_agglomerate=0.1", "epsilon_agglomerate"),
        ('agglomerate.context="4 vox"', "agglomerate.context"),
        ('agglomerate.block_shape="0 vox"', "block"),
        ('agglomerate.super_block="24 vox"', "multiples of (16, 16, 16)"),
    ],
)
def test_settings_that_have_no_meaning_in_seamless_mode_are_refused(
    reference: Experiment, setting: str, word: str
) -> None:
    experiment = load_experiment(reference.path, [*reference.overrides, setting])
    stage = STAGES[setting.split(".", maxsplit=1)[0]]
    with pytest.raises(ConfigError) as caught:
        stage.run(experiment)
    assert word in caught.value.message()
