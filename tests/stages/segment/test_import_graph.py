"""A graph in the format of the LSD scripts, imported from their database or a dump: the same tables and voxels."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import bson
import numpy as np
import pytest
from pymongo import ASCENDING
from typer.testing import CliRunner

from lsdflow_contract.arrays import FRAGMENTS, SEGMENTATION
from lsdflow_contract.errors import BadData, MissingInput, OutputConflict, UsageError
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_contract.geometry import Box
from lsdflow_contract.lut import read_lut
from lsdflow_contract.manifest import read_manifest
from lsdflow_contract.testing import made, tables_of
from lsdflow_runtime.io.volumes import OutputArray, open_volume
from lsdflow_runtime.store.stores import open_store
from lsdflow_segment.cli import app
from lsdflow_segment.graph_import import ImportOptions, import_graph
from lsdflow_segment.stage import Segment

Make = Callable[..., Experiment]
Collections = dict[str, list[dict[str, Any]]]
FUNCTIONS = ("hist_quant_75", "mean")


def signed(ids: np.ndarray) -> list[int]:
    return np.ascontiguousarray(ids, np.uint64).view(np.int64).tolist()


def as_the_scripts_write(experiment: Experiment) -> Collections:
    """The collections that daisy's MongoDbGraphProvider would hold for the graph of an experiment."""
    rag = open_store(experiment).rag
    keys = {stage: read_manifest(experiment.layout, stage).key for stage in ("watershed", "agglomerate")}
    found: Collections = {"nodes": [], "meta": [{"directed": False}], "blocks_extracted": []}
    for nodes in rag.iter_nodes(keys["watershed"]):
        for node, (z, y, x) in zip(signed(nodes.id), nodes.center_nm.tolist(), strict=True):
            found["nodes"].append({"id": node, "center_z": z, "center_y": y, "center_x": x})
    found["nodes"].reverse()
    for function in FUNCTIONS:
        rows = found[f"edges_{function}"] = []
        for edges in rag.iter_edges(keys["agglomerate"], function):
            for u, v, score in zip(signed(edges.u), signed(edges.v), edges.merge_score.tolist(), strict=True):
                merge_score = None if np.isnan(score) else score
                rows.append({"u": u, "v": v, "merge_score": merge_score, "agglomerated": True})
    for block in range(3):
        found["blocks_extracted"].append({"num_cpus": 5, "queue": "normal", "block_id": block, "duration": 1.5})
    return found


def write_database(server: Any, database: str, collections: Collections) -> None:
    """With plain pymongo, with the unique indexes of the old scripts."""
    with server.admin() as client:
        for name, documents in collections.items():
            client[database][name].insert_many([dict(document) for document in documents])
        client[database]["nodes"].create_index([("id", ASCENDING)], unique=True)
        for function in FUNCTIONS:
            client[database][f"edges_{function}"].create_index([("u", ASCENDING), ("v", ASCENDING)], unique=True)


def write_dump(folder: Path, collections: Collections, *, zipped: bool = False) -> Path:
    folder.mkdir()
    for name, documents in collections.items():
        whole = b"".join(bson.encode({"_id": bson.ObjectId(), **document}) for document in documents)
        if zipped:
            (folder / f"{name}.bson.gz").write_bytes(gzip.compress(whole))
        else:
            (folder / f"{name}.bson").write_bytes(whole)
        (folder / f"{name}.metadata.json").write_text("{}")
    return folder


@pytest.fixture
def native(make_experiment: Make) -> Experiment:
    """An experiment whose graph was made and segmented by our own stages."""
    experiment = make_experiment("native")
    Segment().run(experiment)
    return experiment


@pytest.fixture
def collections(native: Experiment) -> Collections:
    return as_the_scripts_write(native)


@pytest.fixture
def make_bare(make_experiment: Make) -> Make:
    """An experiment with target and fragments, and no graph."""

    def make(name: str = "bare", *store: str) -> Experiment:
        experiment = make_experiment(name)
        shutil.rmtree(experiment.layout.store)
        shutil.rmtree(experiment.layout.root / "manifests")
        if store:
            text = experiment.path.read_text()
            experiment.path.write_text("\n".join([text, "[store]", *store, ""]))
        return load_experiment(experiment.path)

    return make


def run_import(experiment: Experiment, *sources: Path, **more: Any) -> None:
    import_graph(experiment, ImportOptions(sources, **more))


def assert_same_segmentation(found: Experiment, wanted: Experiment) -> None:
    tables = sorted(path.name for path in tables_of(wanted.layout).glob("lut_*.npz"))
    assert len(tables) == 42
    assert tables == sorted(path.name for path in tables_of(found.layout).glob("lut_*.npz"))
    for name in tables:
        imported, expected = (read_lut(tables_of(e.layout) / name) for e in (found, wanted))
        assert np.array_equal(imported.fragments, expected.fragments), name
        assert np.array_equal(imported.segments, expected.segments), name
    volumes = [open_volume(made(e.layout, "segment"), SEGMENTATION.dataset) for e in (found, wanted)]
    assert np.array_equal(*(volume.read(volume.box) for volume in volumes))
    facts = [read_manifest(e.layout, "segment").facts for e in (found, wanted)]
    for name in ("threshold", "segments", "largest_segment_vox", "advice"):
        assert facts[0][name] == facts[1][name], name


@pytest.fixture(params=["files", "mongo"])
def store_table(request: pytest.FixtureRequest, mongod: Any, tmp_path: Path) -> tuple[str, ...]:
    """Lines of [store] for both engines."""
    if request.param == "files":
        return ()
    database = f"own-{tmp_path.name}"[:60]
    return 'engine = "mongo"', f'database = "{database}"', f'uri_file = "{mongod.uri_file(database, tmp_path)}"'


def test_a_database_of_the_scripts_gives_the_tables_and_voxels_of_a_native_run(
    native: Experiment,
    collections: Collections,
    make_bare: Make,
    store_table: tuple[str, ...],
    mongod: Any,
    tmp_path: Path,
) -> None:
    database = f"old-{tmp_path.name}"[:60]
    write_database(mongod, database, collections)
    file = mongod.uri_file(database, tmp_path, role="read")
    experiment = make_bare("bare", *store_table)
    run_import(experiment, file, database=database)
    Segment().run(experiment)
    assert_same_segmentation(experiment, native)
    assert Segment().verify(experiment)["verified"]
    assert read_manifest(experiment.layout, "watershed").facts["imported"] == {
        "nodes": {
            "from": f"127.0.0.1:{mongod.port}/{database}.nodes",
            "documents": len(collections["nodes"]),
            "left_out": 0,
            "blocks": 1,
        }
    }
    secret = file.read_text().split("@")[0].rsplit(":", 1)[1]
    written = [p.read_bytes() for p in experiment.layout.root.rglob("*") if p.is_file() and p.suffix == ".json"]
    assert not any(secret.encode() in text for text in written)


@pytest.mark.parametrize("zipped", [False, True])
def test_a_dump_gives_the_tables_and_voxels_of_a_native_run_and_its_checksums_are_recorded(
    native: Experiment,
    collections: Collections,
    make_bare: Make,
    store_table: tuple[str, ...],
    tmp_path: Path,
    zipped: bool,
) -> None:
    dump = write_dump(tmp_path / "dump", collections, zipped=zipped)
    experiment = make_bare("bare", *store_table)
    run_import(experiment, dump)
    Segment().run(experiment)
    assert_same_segmentation(experiment, native)
    facts = read_manifest(experiment.layout, "agglomerate").facts["imported"]
    assert sorted(facts) == ["edges_hist_quant_75", "edges_mean"]
    path = dump / ("edges_mean.bson.gz" if zipped else "edges_mean.bson")
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    count = len(collections["edges_mean"])
    assert facts["edges_mean"] == {"from": str(path), "documents": count, "sha256": sha256, "left_out": 0, "blocks": 1}


def test_single_files_of_one_merge_function(
    native: Experiment, collections: Collections, make_bare: Make, tmp_path: Path
) -> None:
    dump = write_dump(tmp_path / "dump", collections)
    experiment = make_bare()
    run_import(experiment, dump / "nodes.bson", dump / "edges_mean.bson")
    assert read_manifest(experiment.layout, "agglomerate").config["merge_functions"] == ["mean"]
    other = make_bare("other")
    run_import(other, dump, merge_functions=("mean",))
    Segment().run(other)
    imported = read_lut(tables_of(other.layout) / "lut_mean_0.1500.npz")
    assert np.array_equal(imported.segments, read_lut(tables_of(native.layout) / "lut_mean_0.1500.npz").segments)


def test_ids_above_2_to_the_63_come_back_from_their_signed_form(
    collections: Collections, make_bare: Make, tmp_path: Path
) -> None:
    experiment = make_bare()
    volume = open_volume(experiment.layout.root / "fragments.zarr", FRAGMENTS.dataset)
    high = np.uint64(2**63)
    values = volume.read(volume.box)
    volume.write(volume.box, np.where(values == 0, values, values + high))
    for rows in (collections["nodes"], collections["edges_mean"], collections["edges_hist_quant_75"]):
        for row in rows:
            row.update({name: row[name] - 2**63 for name in ("id", "u", "v") if name in row})
    run_import(experiment, write_dump(tmp_path / "dump", collections))
    Segment().run(experiment)
    (nodes,) = open_store(experiment).rag.iter_nodes(read_manifest(experiment.layout, "watershed").key)
    assert sorted(nodes.id.tolist()) == sorted(2**64 + row["id"] for row in collections["nodes"])
    segmentation = open_volume(made(experiment.layout, "segment"), SEGMENTATION.dataset)
    assert set(np.unique(segmentation.read(segmentation.box)).tolist()) - {0} <= set(nodes.id.tolist())


def test_a_dump_of_our_own_database_moves_a_graph_to_another_engine(
    native: Experiment, collections: Collections, make_bare: Make, tmp_path: Path
) -> None:
    sizes = {}
    for part in open_store(native).rag.iter_nodes(read_manifest(native.layout, "watershed").key):
        sizes |= dict(zip(signed(part.id), part.size_vox.tolist(), strict=True))
    for row in collections["nodes"]:
        row |= {"size": sizes[row["id"]], "key": "k", "block": 0}
    experiment = make_bare()
    run_import(experiment, write_dump(tmp_path / "dump", collections))
    Segment().run(experiment)
    assert_same_segmentation(experiment, native)
    collections["nodes"][3]["key"] = "another work"
    with pytest.raises(BadData, match="several results"):
        run_import(make_bare("mixed"), write_dump(tmp_path / "mixed-dump", collections))


@pytest.mark.parametrize("sizes_given", [False, True])
def test_a_cut_out_of_the_fragments_imports_the_nodes_that_have_voxels_in_it(
    native: Experiment, collections: Collections, make_bare: Make, tmp_path: Path, sizes_given: bool
) -> None:
    experiment = make_bare()
    whole = open_volume(experiment.layout.root / "fragments.zarr", FRAGMENTS.dataset)
    box = Box((8, 8, 0), (8, 16, 16))
    values = whole.read(box)
    shutil.rmtree(experiment.layout.root / "fragments.zarr")
    output = OutputArray(experiment.layout.root / "fragments.zarr", FRAGMENTS, whole.geometry, box, (8, 8, 16))
    output.create({"key": "a cut-out"})
    output.open().write(box, values)
    if sizes_given:
        for row in collections["nodes"]:
            row["size"] = 99
    dump = write_dump(tmp_path / "dump", collections)
    if not sizes_given:
        with pytest.raises(BadData, match=r"nodes without a voxel in the fragments[\s\S]*--cut-out"):
            run_import(experiment, dump)
    run_import(experiment, dump, cut_out=True)
    Segment().run(experiment)
    inside = set(np.unique(values).tolist()) - {0}
    edges = [row for row in collections["edges_mean"] if row["u"] in inside and row["v"] in inside]
    imported = {s: read_manifest(experiment.layout, s).facts["imported"] for s in ("watershed", "agglomerate")}
    assert imported["watershed"]["nodes"]["left_out"] == len(collections["nodes"]) - len(inside)
    assert imported["agglomerate"]["edges_mean"]["left_out"] == len(collections["edges_mean"]) - len(edges)
    key = read_manifest(experiment.layout, "agglomerate").key
    rows = list(open_store(experiment).rag.iter_edges(key, "mean"))
    found = sorted((u, v) for part in rows for u, v in zip(part.u.tolist(), part.v.tolist(), strict=True))
    assert found == sorted((row["u"], row["v"]) for row in edges)
    lut = read_lut(tables_of(experiment.layout) / "lut_mean_0.0000.npz")
    assert lut.fragments.tolist() == sorted(inside)


def test_a_fragment_without_a_node_is_wrong_in_a_cut_out_too(
    collections: Collections, make_bare: Make, tmp_path: Path
) -> None:
    del collections["nodes"][3]
    with pytest.raises(BadData, match="1 fragments without a node"):
        run_import(make_bare(), write_dump(tmp_path / "dump", collections), cut_out=True)


def unknown(rows: Collections) -> None:
    rows["edges_mean"][3]["u"] = 7
    rows["edges_mean"][5]["v"] = 8


def not_a_number(rows: Collections) -> None:
    rows["edges_mean"][3]["merge_score"] = float("nan")


def outside(rows: Collections) -> None:
    rows["edges_mean"][3]["merge_score"] = 1.5
    rows["edges_mean"][9]["merge_score"] = -0.1


def itself(rows: Collections) -> None:
    rows["edges_mean"][3]["u"] = rows["edges_mean"][3]["v"]


def no_score(rows: Collections) -> None:
    del rows["edges_mean"][3]["merge_score"]


def no_center(rows: Collections) -> None:
    del rows["nodes"][3]["center_y"]


def a_word(rows: Collections) -> None:
    rows["edges_mean"][3]["merge_score"] = "0.5"


def a_fraction(rows: Collections) -> None:
    rows["nodes"][3]["id"] = 3.5


def twice(rows: Collections) -> None:
    rows["nodes"].append(rows["nodes"][3])


def zero(rows: Collections) -> None:
    rows["nodes"].append({**rows["nodes"][3], "id": 0})


def too_few(rows: Collections) -> None:
    del rows["nodes"][3:5]


def too_many(rows: Collections) -> None:
    rows["nodes"].append({**rows["nodes"][3], "id": 7})


def none_at_all(rows: Collections) -> None:
    rows["nodes"].clear()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (unknown, "2 edges to a fragment that is not a node"),
        (not_a_number, "1 scores that are not a number"),
        (outside, r"2 scores outside \[0, 1\]"),
        (itself, "1 edges from a fragment to itself"),
        (no_score, "a document without merge_score"),
        (no_center, "a document without center_y"),
        (a_word, "merge_score is of another type"),
        (a_fraction, "id is of another type"),
        (twice, "1 nodes that are listed more than once"),
        (zero, "1 nodes with id 0"),
        (too_few, "2 fragments without a node"),
        (too_many, "1 nodes without a voxel in the fragments"),
        (none_at_all, "the graph has no nodes"),
    ],
)
def test_a_wrong_graph_is_refused_with_the_number_of_wrong_rows_and_leaves_nothing(
    collections: Collections,
    make_bare: Make,
    tmp_path: Path,
    spoil: Callable[[Collections], None],
    message: str,
) -> None:
    spoil(collections)
    experiment = make_bare()
    with pytest.raises(BadData, match=message) as raised:
        run_import(experiment, write_dump(tmp_path / "dump", collections))
    assert str(tmp_path / "dump") in raised.value.where
    assert list((experiment.layout.root / "manifests").glob("*")) == []
    assert list(experiment.layout.store.rglob("*.parquet")) == []


def test_all_kinds_of_wrong_edges_are_reported_at_once(
    collections: Collections, make_bare: Make, tmp_path: Path
) -> None:
    for spoil in (unknown, not_a_number, outside):
        spoil(collections)
    with pytest.raises(BadData) as raised:
        run_import(make_bare(), write_dump(tmp_path / "dump", collections))
    assert "2 edges to a fragment" in raised.value.found
    assert "2 scores outside" in raised.value.found


def test_another_graph_is_kept_without_replace(native: Experiment, collections: Collections, tmp_path: Path) -> None:
    dump = write_dump(tmp_path / "dump", collections)
    manifests = {path: path.read_bytes() for path in (native.layout.root / "manifests").iterdir()}
    with pytest.raises(OutputConflict, match="results of watershed"):
        run_import(native, dump)
    collections["edges_mean"][3]["merge_score"] = 9.0
    with pytest.raises(BadData):
        run_import(native, write_dump(tmp_path / "wrong", collections), replace=True)
    assert {path: path.read_bytes() for path in (native.layout.root / "manifests").iterdir()} == manifests
    run_import(native, dump, replace=True)
    assert read_manifest(native.layout, "watershed").config["imported"] is True


def test_the_same_import_again_changes_nothing_and_replace_reads_it_again(
    collections: Collections, make_bare: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dump = write_dump(tmp_path / "dump", collections)
    experiment = make_bare()
    run_import(experiment, dump)
    first = read_manifest(experiment.layout, "agglomerate")
    with caplog.at_level("INFO"):
        run_import(experiment, dump)
    assert "imported already" in caplog.text
    run_import(experiment, dump, replace=True)
    assert read_manifest(experiment.layout, "agglomerate").identity == first.identity


def test_what_an_import_that_was_stopped_left_is_not_in_the_next_one(
    collections: Collections, make_bare: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lsdflow_segment import graph_import

    dump = write_dump(tmp_path / "dump", collections)
    experiment = make_bare()
    monkeypatch.setattr(graph_import.GraphImporter, "_write_manifest", stopped)
    with pytest.raises(KeyboardInterrupt):
        run_import(experiment, dump)
    assert list((experiment.layout.root / "manifests").glob("*")) == []
    monkeypatch.undo()
    collections["edges_mean"].pop()
    shutil.rmtree(dump)
    run_import(experiment, write_dump(dump, collections))
    key = read_manifest(experiment.layout, "agglomerate").key
    assert open_store(experiment).rag.count_edges(key, "mean") == len(collections["edges_mean"])


def stopped(*_: Any) -> None:
    raise KeyboardInterrupt


def test_the_database_of_an_lsdflow_experiment_is_no_source(
    collections: Collections, make_bare: Make, mongod: Any, tmp_path: Path
) -> None:
    database = f"own-{tmp_path.name}"[:60]
    file = mongod.uri_file(database, tmp_path)
    lines = ('engine = "mongo"', f'database = "{database}"', f'uri_file = "{file}"')
    experiment = make_bare("bare", *lines)
    run_import(experiment, write_dump(tmp_path / "dump", collections))
    with pytest.raises(UsageError, match="an experiment of lsdflow"):
        run_import(experiment, file, database=database, replace=True)


def test_edges_of_unfinished_blocks_are_warned_of(
    collections: Collections, make_bare: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    collections["blocks_agglomerated_mean"] = collections["blocks_extracted"][:2]
    run_import(make_bare(), write_dump(tmp_path / "dump", collections))
    assert "blocks_agglomerated_mean has 2 of 3 blocks" in caplog.text


def test_without_fragments_the_error_says_where_to_put_them(
    collections: Collections, make_bare: Make, tmp_path: Path
) -> None:
    experiment = make_bare()
    shutil.rmtree(experiment.layout.root / "fragments.zarr")
    with pytest.raises(MissingInput, match="put or link the fragments"):
        run_import(experiment, write_dump(tmp_path / "dump", collections))


@pytest.fixture
def dump(collections: Collections, tmp_path: Path) -> Path:
    return write_dump(tmp_path / "dump", collections)


def test_the_command_imports_and_returns_its_exit_code(
    make_bare: Make, dump: Path, tmp_path: Path, mongod_for_tests: ModuleType
) -> None:
    experiment = make_bare()
    missing = tmp_path / "nowhere.uri"
    port = mongod_for_tests.free_port()
    mongod_for_tests.write_private(missing, f"mongodb://u:topsy9word@127.0.0.1:{port}/?serverSelectionTimeoutMS=300\n")
    nameless = tmp_path / "rows.bin"
    nameless.write_bytes((dump / "nodes.bson").read_bytes())
    cases: list[tuple[int, list[str]]] = [
        (66, ["--from", str(tmp_path / "absent")]),
        (66, ["--from", str(dump / "nodes.bson")]),
        (66, ["--from", str(dump), "--merge-function", "hist_quant_57"]),
        (2, ["--from", str(nameless)]),
        (2, ["--from", str(dump), "--from", str(dump / "nodes.bson")]),
        (78, ["--from", str(missing)]),
        (69, ["--from", str(missing), "--database", "lsd", "--set", "store.retry_s=0"]),
        (0, ["--from", str(dump)]),
    ]
    for code, arguments in cases:
        done = CliRunner().invoke(app, ["import-graph", "-e", str(experiment.path), *arguments])
        assert done.exit_code == code, (arguments, done.output)
        assert "Traceback" not in done.output
        assert "topsy9word" not in done.output
    done = CliRunner().invoke(app, ["run", "-e", str(experiment.path)])
    assert done.exit_code == 0, done.output
    assert json.loads((experiment.layout.root / "manifests" / "segment.json").read_text())["facts"]["segments"] > 1
