"""All stages by their commands on a small synthetic volume: what users run, and what must not change its bits."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.lut import read_lut
from lsdflow_contract.manifest import read_manifest
from lsdflow_contract.testing import made, micro_network, tables_of
from lsdflow_runtime.io.volumes import open_volume

REPOSITORY = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("LSDFLOW_BIN", REPOSITORY / "bin"))
MICRO = micro_network(6)
SMALL_BLOCKS = ("watershed.block_shape=16 vox", "watershed.context=8 vox", "predict.block_shape=28 vox")
BLOCK_STAGES = ("predict", "watershed", "agglomerate", "segment")
pytestmark = pytest.mark.skipif(not (BIN / "train-lsd").exists(), reason="make setup has not made bin/")


def _arguments(folder: Path, *more: str) -> list[str]:
    training = [f"{s}.{k}={json.dumps(v)}" for s in ("train-lsd", "train-acrlsd") for k, v in MICRO.items()]
    overrides = [part for o in (*training, *SMALL_BLOCKS, *more) for part in ("--set", o)]
    return ["--experiment", str(folder / "experiment.toml"), *overrides]


def _run(stage: str, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [str(BIN / stage), "run", *_arguments(folder, *more)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)


def _identities(folder: Path, stages: tuple[str, ...] = BLOCK_STAGES) -> dict[str, str]:
    return {stage: read_manifest(ExperimentLayout(folder), stage).identity for stage in stages}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An experiment after prepare, train-lsd and train-acrlsd (a few iterations of micro networks)."""
    folder = tmp_path_factory.mktemp("pipeline") / "trained"
    program = (
        "import sys; from pathlib import Path; from lsdflow_launch.init.demo import make_demo;"
        "make_demo(Path(sys.argv[1]), (112, 66, 70), seed=3, mode='acrlsd')"
    )
    subprocess.run(
        [sys.executable, "-c", program, str(folder)], check=True, env={**os.environ, "LSDFLOW_BIN": str(BIN)}
    )
    for stage in ("prepare", "train-lsd", "train-acrlsd"):
        done = _run(stage, folder)
        assert done.returncode == 0, f"{stage}: {done.stderr}"
    return folder


@pytest.fixture(scope="module")
def reference(trained: Path) -> Path:
    """The whole chain by the serial runner."""
    folder = trained.parent / "reference"
    shutil.copytree(trained, folder)
    for stage in (*BLOCK_STAGES, "evaluate"):
        done = _run(stage, folder, "compute.runner=serial")
        assert done.returncode == 0, f"{stage}: {done.stderr}"
    return folder


@pytest.mark.proves("SCH-06")
def test_every_artefact_of_the_design_is_there(reference: Path) -> None:
    layout = ExperimentLayout(reference)
    predictions = layout.root / read_manifest(layout, "predict").outputs["affs"]
    assert predictions.is_relative_to(layout.results / "predict")
    for path in (
        made(layout, "watershed"),
        made(layout, "segment"),
        layout.report / "index.html",
        layout.report / "scores.json",
    ):
        assert path.exists(), path
    assert json.loads((layout.report / "neuroglancer.json").read_text())["layers"]
    assert (layout.store / "edges_hist_quant_75").is_dir()
    scores = json.loads((layout.report / "scores.json").read_text())
    for name in ("voi_split", "voi_merge", "voi", "adapted_rand_error", "threshold", "merge_function"):
        assert scores[name] is not None, name
    assert scores["voi"] == pytest.approx(scores["voi_split"] + scores["voi_merge"])


def test_the_segmentation_is_the_fragments_through_the_chosen_lut(reference: Path) -> None:
    layout = ExperimentLayout(reference)
    facts = read_manifest(layout, "segment").facts
    fragments, segmentation = (
        open_volume(p, f"volumes/{n}")
        for p, n in ((made(layout, "watershed"), "fragments"), (made(layout, "segment"), "segmentation"))
    )
    lut = read_lut(tables_of(layout) / f"lut_{facts['merge_function']}_{facts['threshold']:.4f}.npz")
    table = dict(zip(lut.fragments.tolist(), lut.segments.tolist(), strict=True))
    ids = fragments.read(fragments.box)
    expected = np.array([table.get(i, 0) for i in ids.ravel().tolist()], np.uint64).reshape(ids.shape)
    assert np.array_equal(segmentation.read(segmentation.box), expected)
    assert all(segment <= fragment for fragment, segment in table.items())


def test_what_was_planned_before_anything_ran_is_what_the_chain_did(reference: Path, tmp_path: Path) -> None:
    results = ("data", "manifests", "train", "predictions", "*.zarr", "store", "runs", "luts", "report")
    shutil.copytree(reference, tmp_path / "fresh", ignore=shutil.ignore_patterns(*results))
    never_ran = tmp_path / "fresh"
    planned = {}
    for folder in (never_ran, reference):
        words = _arguments(folder)[2:]
        done = subprocess.run(
            [str(BIN / "lsdflow"), "plan", str(folder), "--json", *words], capture_output=True, check=True, timeout=300
        )
        planned[folder] = json.loads(done.stdout)
    for stage in (*BLOCK_STAGES, "evaluate"):
        fresh, run = (planned[folder][stage] for folder in (never_ran, reference))
        for fact in ("blocks", "voxels", "block_shape_vox", "context_vox", "bytes_out_uncompressed"):
            assert fresh[fact] == run[fact], (stage, fact)
        assert (fresh["blocks_done"], run["blocks_done"]) == (0, run["blocks"]), stage


def test_verify_reads_back_what_every_stage_made(reference: Path) -> None:
    for stage in ("prepare", "train-acrlsd", *BLOCK_STAGES, "evaluate"):
        done = subprocess.run(
            [str(BIN / stage), "verify", *_arguments(reference), "--json"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{stage}: {done.stdout}{done.stderr}"
        facts = json.loads(done.stdout)
        assert facts["verified"]
        assert facts["identity"] == read_manifest(ExperimentLayout(reference), stage).identity


def test_daisy_workers_killed_at_random_moments_and_run_again_leave_the_same_bits(
    trained: Path, reference: Path
) -> None:
    folder = trained.parent / "killed"
    shutil.copytree(trained, folder)
    generator = random.Random(5)
    daisy = ("compute.runner=daisy", "compute.workers=3")
    for stage in BLOCK_STAGES:
        for _ in range(2):
            child = subprocess.Popen(
                [str(BIN / stage), "run", *_arguments(folder, *daisy)],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            time.sleep(generator.uniform(1.0, 6.0))
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        done = _run(stage, folder, *daisy)
        assert done.returncode == 0, f"{stage}: {done.stderr}"
    assert _identities(folder) == _identities(reference)
    _assert_same_files(folder, reference)


def _assert_same_files(folder: Path, reference: Path) -> None:
    for stage, name in (("watershed", "fragments"), ("segment", "segmentation")):
        a, b = (open_volume(made(ExperimentLayout(r), stage), f"volumes/{name}") for r in (folder, reference))
        assert np.array_equal(a.read(a.box), b.read(b.box)), stage
    tables, wanted = (tables_of(ExperimentLayout(root)) for root in (folder, reference))
    names = sorted(p.name for p in wanted.glob("lut_*.npz"))
    assert names
    assert names == sorted(p.name for p in tables.glob("lut_*.npz"))
    for name in names:
        a_lut, b_lut = read_lut(tables / name), read_lut(wanted / name)
        assert np.array_equal(a_lut.segments, b_lut.segments), name


def _written(folder: Path) -> set[tuple[Path, int]]:
    """Every artefact with its time of writing; runs/ and metrics/ record each call, locks are no artefacts."""
    files = (
        p
        for p in folder.rglob("*")
        if p.is_file() and not {"runs", "metrics"} & set(p.relative_to(folder).parts) and p.suffix != ".lock"
    )
    return {(p.relative_to(folder), p.stat().st_mtime_ns) for p in files}


def test_a_rerun_of_the_finished_chain_writes_nothing(reference: Path) -> None:
    before = _written(reference)
    for stage in ("prepare", *BLOCK_STAGES):
        assert _run(stage, reference, "compute.runner=serial").returncode == 0
    assert sorted(str(path) for path, _ in _written(reference) ^ before) == []


def test_a_changed_parameter_overwrites_nothing(reference: Path, tmp_path: Path) -> None:
    folder = tmp_path / "changed"
    shutil.copytree(reference, folder)
    manifests, before = folder / "manifests", _written(folder)
    done = _run("watershed", folder, "watershed.min_seed_distance_vox=6", "compute.runner=serial")
    assert done.returncode == 0, done.stderr
    changed = {folder / path for path, _ in before - _written(folder)}
    assert changed == {manifests / "watershed.json"}


def _files_of(folder: Path) -> dict[str, list[Path]]:
    """What a block of each stage left: chunks of arrays, rows of the store."""
    layout = ExperimentLayout(folder)
    affs = folder / read_manifest(layout, "predict").outputs["affs"]
    arrays = {"predict": affs, "watershed": made(layout, "watershed") / "volumes/fragments"}
    arrays["segment"] = made(layout, "segment") / "volumes/segmentation"
    chunks = {s: sorted(p for p in a.rglob("*") if p.is_file() and p.name != "zarr.json") for s, a in arrays.items()}
    rows = {"agglomerate": "edges_hist_quant_75", "evaluate": "overlaps_roi"}
    return chunks | {s: sorted((layout.store / name).rglob("*.parquet")) for s, name in rows.items()}


def test_repair_makes_again_the_one_lost_block_of_every_stage_and_nothing_else(reference: Path) -> None:
    folder = reference.parent / "repaired"
    shutil.copytree(reference, folder)
    # A copy is elsewhere: what depends on times of files (masks) is none of this experiment.
    whole = _identities(folder, (*BLOCK_STAGES, "evaluate"))
    for stage, files in _files_of(folder).items():
        victim, before = files[len(files) // 2], {path: path.stat().st_mtime_ns for path in files}
        victim.write_bytes(victim.read_bytes()[:-9])
        command = [str(BIN / stage), "repair", *_arguments(folder, "compute.runner=serial"), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
        assert done.returncode == 0, f"{stage}: {done.stdout}{done.stderr}"
        assert json.loads(done.stdout)["broken"] == 1
        assert {path for path in files if path.stat().st_mtime_ns != before[path]} == {victim}, stage
    assert _identities(folder, (*BLOCK_STAGES, "evaluate")) == whole
    _assert_same_files(folder, reference)


def test_a_lost_chunk_of_the_affinities_stops_watershed_with_65_naming_it(reference: Path, tmp_path: Path) -> None:
    folder = tmp_path / "lost"
    shutil.copytree(reference, folder)
    affs = folder / read_manifest(ExperimentLayout(folder), "predict").outputs["affs"]
    victim = next(p for p in sorted(affs.rglob("*")) if p.is_file() and p.name != "zarr.json")
    victim.unlink()
    done = _run("watershed", folder, "watershed.min_seed_distance_vox=6", "compute.runner=serial")
    assert done.returncode == 65
    assert str(victim) in done.stderr
