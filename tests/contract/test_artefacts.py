"""LUT, manifest, bundle, atomic files, graph tables."""

from __future__ import annotations

import errno
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from lsdflow_contract import CONTRACT_VERSION, errors
from lsdflow_contract.checkpoint import BestCheckpoint, bundle_iterations, read_best, read_bundle, write_best
from lsdflow_contract.errors import (
    BadData,
    ContractMismatch,
    InternalError,
    MissingInput,
    StageError,
    StorageFailure,
    rebuilt,
)
from lsdflow_contract.files import read_json, write_atomically, write_json
from lsdflow_contract.geometry import Geometry
from lsdflow_contract.graph import RagEdges, RagNodes
from lsdflow_contract.hashing import hash_of, hash_of_array
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.lut import Lut, legacy_lut_name, lut_name, read_lut, write_lut
from lsdflow_contract.manifest import Manifest, Writer, read_manifest, work_key
from lsdflow_contract.software import library_versions
from lsdflow_contract.viewer_volumes import Placed, viewer_layers, viewer_volumes


def _lut() -> Lut:
    return Lut(np.array([3, 5, 2**63 - 1], np.uint64), np.array([3, 3, 7], np.uint64))


@pytest.mark.proves("SEG-02")
def test_a_lut_is_the_fields_npz_with_a_side_car(tmp_path: Path) -> None:
    path = tmp_path / lut_name("hist_quant_75", 0.285)
    write_lut(path, _lut(), {"threshold": 0.285})
    with np.load(path) as archive:
        assert archive["fragment_segment_lut"].dtype == np.uint64
        assert archive["fragment_segment_lut"].shape == (2, 3)
    found = read_lut(path)
    assert np.array_equal(found.fragments, _lut().fragments)
    assert len(np.unique(found.segments)) == 2
    side_car = read_json(path.with_suffix(".json"))
    assert side_car["score_convention"] == "one_minus_affinity, low=merge"
    assert side_car["threshold"] == 0.285


def test_lut_names_never_collide_where_the_legacy_ones_do() -> None:
    thresholds = [round(0.01 * i, 2) for i in range(101)]
    assert len({lut_name("mean", t) for t in thresholds}) == 101
    assert legacy_lut_name("mean", 0.28) == legacy_lut_name("mean", 0.29) == "seg_edges_mean_28.npz"


def test_volaras_signed_lut_is_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "l.npz", fragment_segment_lut=np.array([[1, 2], [1, 1]], np.int64))
    assert read_lut(tmp_path / "l.npz").fragments.dtype == np.uint64


@pytest.mark.parametrize("content", [{"other": np.zeros(2)}, {"fragment_segment_lut": np.zeros((3, 2), np.uint64)}])
def test_a_file_that_is_no_lut_is_bad_data(tmp_path: Path, content: dict) -> None:
    np.savez(tmp_path / "l.npz", **content)
    with pytest.raises(BadData, match="not a LUT"):
        read_lut(tmp_path / "l.npz")


def test_a_pickled_lut_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "l.npz", fragment_segment_lut=np.array([{"a": 1}], object))
    with pytest.raises(BadData, match="not a LUT"):
        read_lut(tmp_path / "l.npz")


def test_a_missing_lut_lists_those_that_exist(tmp_path: Path) -> None:
    write_lut(tmp_path / lut_name("mean", 0.5), _lut(), {})
    with pytest.raises(MissingInput, match=r"lut_mean_0\.5000\.npz"):
        read_lut(tmp_path / lut_name("mean", 0.6))


def _manifest(**changes: object) -> Manifest:
    fields = {
        "writer": Writer(stage="watershed", version="0.1.0"),
        "key": "k",
        "config": {},
        "inputs": {},
        "outputs": {},
    }
    return Manifest.model_validate({**fields, "identity": "i", **changes})


def test_a_manifest_is_read_back_as_written(tmp_path: Path) -> None:
    layout = ExperimentLayout(tmp_path)
    _manifest(facts={"blocks": 3}).write(layout)
    assert read_manifest(layout, "watershed") == _manifest(facts={"blocks": 3})


def test_a_manifest_of_work_done_here_names_the_libraries_and_one_that_is_written_again_keeps_its_own(
    tmp_path: Path,
) -> None:
    layout = ExperimentLayout(tmp_path)
    finished = _manifest(facts={"blocks": 3}).finish(layout)
    assert read_manifest(layout, "watershed") == finished
    assert finished == _manifest(facts={"blocks": 3, "libraries": library_versions()})
    made_here = finished.libraries
    assert made_here["numpy"] == np.__version__
    assert made_here["python"] == platform.python_version()
    _manifest(facts={"libraries": {"numpy": "1.0"}}).write(layout)
    assert read_manifest(layout, "watershed").libraries == {"numpy": "1.0"}
    assert _manifest().libraries == {}, "a manifest of before 1.6.1"


def test_an_output_is_found_where_the_manifest_says_wherever_that_is(tmp_path: Path) -> None:
    layout = ExperimentLayout(tmp_path / "experiment.zarr")
    manifest = _manifest(
        outputs={"fragments": "results/a1/fragments.zarr/volumes/fragments", "target": "data/target.zarr"}
    )
    assert manifest.output_array(layout, "fragments") == (
        layout.root / "results/a1/fragments.zarr",
        "volumes/fragments",
    )
    assert manifest.output_array(layout, "target") == (layout.root / "data/target.zarr", ".")
    with pytest.raises(MissingInput, match="watershed left no affs"):
        manifest.output_array(layout, "affs")


def test_a_viewer_is_offered_the_other_results_beside_the_current_one(tmp_path: Path) -> None:
    layout = ExperimentLayout(tmp_path)
    for key in ("a" * 64, "b" * 64):
        array = layout.result("watershed", key) / "fragments.zarr" / "volumes" / "fragments"
        array.mkdir(parents=True)
        _manifest(key=key, outputs={"fragments": str(array.relative_to(tmp_path))}).write(layout)
    (layout.results / "watershed" / "unfinished").mkdir()
    found = {volume.name: volume.container.parent.name for volume in viewer_volumes(layout, others=True)}
    assert found == {"fragments": "b" * 8, "fragments_aaaaaaaa": "a" * 8}
    assert [volume.name for volume in viewer_volumes(layout)] == ["fragments"]
    grid = Geometry((40.0, 4.0, 4.0), (0.0, 0.0, 0.0), (2, 2, 2))
    (layer,) = viewer_layers({"affinities_aaaaaaaa": Placed("volumes/x", grid, ("c", "z", "y", "x"))})
    assert (layer.kind, layer.visible) == ("affinities", False)


@pytest.mark.parametrize("contract", ["1.8.0", "3.0.0", "20.0.0", ""])
def test_another_contract_major_is_refused_with_76_and_both_versions(tmp_path: Path, contract: str) -> None:
    layout = ExperimentLayout(tmp_path)
    _manifest(contract=contract).write(layout)
    with pytest.raises(ContractMismatch) as caught:
        read_manifest(layout, "watershed")
    assert caught.value.exit_code == 76
    assert (caught.value.wanted, caught.value.found) == ("contract 2.x", contract or "none")


def test_an_unfinished_stage_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(MissingInput, match="watershed run"):
        read_manifest(ExperimentLayout(tmp_path), "watershed")


def test_a_damaged_manifest_is_bad_data(tmp_path: Path) -> None:
    layout = ExperimentLayout(tmp_path)
    write_json(layout.manifest("watershed"), {"contract": CONTRACT_VERSION})
    with pytest.raises(BadData):
        read_manifest(layout, "watershed")


def test_the_key_of_work_changes_with_parameters_and_inputs_only() -> None:
    key = work_key("watershed", {"a": 1, "b": 2}, {"affs": "x"})
    assert key == work_key("watershed", {"b": 2, "a": 1}, {"affs": "x"})
    others = [("agglomerate", {"a": 1, "b": 2}, {"affs": "x"}), ("watershed", {"a": 1}, {"affs": "x"})]
    assert key not in {work_key(*o) for o in [*others, ("watershed", {"a": 1, "b": 2}, {"affs": "y"})]}


def test_hashes_depend_on_dtype_and_shape() -> None:
    zeros = [np.zeros((2, 3), np.uint8), np.zeros((3, 2), np.uint8), np.zeros((2, 3), np.int8), np.zeros(6, np.uint8)]
    assert len({hash_of_array(z) for z in zeros}) == 4
    assert hash_of({"a": 1}) != hash_of({"a": 2})


def test_best_checkpoint_and_bundles_are_named_or_missing(tmp_path: Path) -> None:
    write_best(tmp_path / "best.json", BestCheckpoint(iteration=5, weights_sha256="x"))
    assert read_best(tmp_path / "best.json").iteration == 5
    with pytest.raises(MissingInput, match="train first"):
        read_best(tmp_path / "none.json")
    assert bundle_iterations(tmp_path / "checkpoints") == []
    with pytest.raises(MissingInput):
        read_bundle(tmp_path / "checkpoints" / "00000001")


def test_edges_must_be_ordered_and_columns_equal() -> None:
    one, two = np.array([1], np.uint64), np.array([2], np.uint64)
    with pytest.raises(BadData, match="u < v"):
        RagEdges(two, one, np.zeros(1, np.float32))
    with pytest.raises(BadData, match="length"):
        RagNodes(one, np.zeros((2, 3)), one)
    assert len(RagEdges.concatenate([RagEdges(one, two, np.zeros(1, np.float32))] * 2)) == 2


def test_a_failed_write_leaves_the_old_file_and_no_leftovers(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", 1)

    def fail(file: object) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(StorageFailure, match="free some space") as caught:
        write_atomically(tmp_path / "a.json", fail)
    left = int(caught.value.found.split(" bytes")[0].replace(",", ""))
    assert left == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.1), "spec: 74 with the figure of free space"
    assert read_json(tmp_path / "a.json") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize(
    ("number", "to_do"),
    [(errno.EROFS, "can be written to"), (errno.ESTALE, "run again when it does"), (errno.ENOTDIR, "move it away")],
)
def test_a_write_that_failed_says_what_to_do(tmp_path: Path, number: int, to_do: str) -> None:
    def fail(_: object) -> None:
        raise OSError(number, os.strerror(number))

    with pytest.raises(StorageFailure, match=os.strerror(number)) as caught:
        write_atomically(tmp_path / "a.json", fail)
    assert to_do in caught.value.fix
    assert str(tmp_path / "a.json") in str(caught.value)


def test_a_file_is_whole_whenever_its_writer_is_killed(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from lsdflow_contract.files import write_json\n"
        "i = 0\nwhile True:\n    i += 1; write_json(Path(sys.argv[1]), [i] * 20000)"
    )
    for round_ in range(5):
        child = subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "f.json")])
        deadline = time.monotonic() + 600
        while not (tmp_path / "f.json").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.02 * round_)
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        assert len(set(read_json(tmp_path / "f.json"))) == 1


def test_exit_codes_are_those_of_the_design_and_unique() -> None:
    kinds = {k.__name__: k.exit_code for k in StageError.__subclasses__() if k.__module__ == errors.__name__}
    assert sorted(kinds.values()) == [2, 65, 66, 69, 70, 73, 74, 75, 76, 77, 78, 79]


def test_an_error_that_another_process_described_is_rebuilt_whole() -> None:
    error = BadData("damaged", where="a.zarr", wanted="u8", found="u16", fix="copy it again")
    again = rebuilt(error.as_dict())
    assert (type(again), again.as_dict()) == (BadData, error.as_dict())
    unknown = rebuilt({**error.as_dict(), "error": "OfALaterVersion", "exit_code": 74})
    assert (type(unknown), unknown.exit_code) == (StorageFailure, 74)
    assert type(rebuilt({"what": "?", "exit_code": 1})) is InternalError
