"""The pipeline on real EM beside the checkout: train on z < 150 of FIB-25, choose the threshold there, score z >= 160.

Two experiments on the same sections: `mtlsd` (one network) and `acrlsd` (LSD network, then affinities from raw + LSDs).
The first model then segments a larger volume that has no truth, in blocks.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from lsdflow_contract.checkpoint import bundle_folder, read_best
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import read_manifest
from lsdflow_runtime.io.volumes import open_volume

REPOSITORY = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("LSDFLOW_BIN", REPOSITORY / "bin"))
# mtlsd is judged, so it trains by iterations: what it reaches must not depend on how busy the machine is. 500 take some
# 6.5 minutes on two cores and are as good as the profile's 800. Its minutes are a last resort.
MTLSD_ITERATIONS = 500
MINUTES = {"mtlsd": {"train-acrlsd": 25.0}, "acrlsd": {"train-lsd": 2.4, "train-acrlsd": 3.1}}
GOAL_VOI_BITS = 2.4
PEAK_RSS_MIB = 4096

UNLABELLED = """
[experiment]
name = "tstvol-520"
mode = "mtlsd"
profile = "tiny"
[prepare.target]
raw = "{volume}"
[predict]
checkpoint = "{bundle}"
[watershed]
block_shape = "140, 260, 260 vox"
[segment]
threshold = {threshold}
"""


def _lsdflow(folder: Path, *arguments: str) -> None:
    environment = {**os.environ, "LSDFLOW_BIN": str(BIN)}
    done = subprocess.run([str(BIN / "lsdflow"), "run", str(folder), *arguments], env=environment, check=False)
    assert done.returncode == 0


def _segmented(folder: Path, mode: str, volume: Path) -> dict:
    folder.mkdir()
    text = (REPOSITORY / "benchmarks" / "fib25.toml").read_text()
    (folder / "experiment.toml").write_text(text.replace("VOLUME", str(volume)))
    limits = ["--set", f"experiment.mode={mode}"]
    limits += [part for s, m in MINUTES[mode].items() for part in ("--set", f"{s}.max_minutes={m}")]
    if mode == "mtlsd":
        limits += ["--set", f"train-acrlsd.max_iteration={MTLSD_ITERATIONS}"]
    _lsdflow(folder, *limits)
    layout = ExperimentLayout(folder)
    minutes = {s: read_manifest(layout, s).facts["minutes"] for s in MINUTES[mode]}
    scores = json.loads((layout.report / "scores.json").read_text())
    result = {k: scores[k] for k in ("voi", "voi_split", "voi_merge", "adapted_rand_error", "threshold")}
    print(f"\nREAL {mode}: trained {minutes} minutes; z >= 160: {result}")
    return scores


@pytest.fixture(scope="module")
def volumes() -> Path:
    folder = REPOSITORY.parent / "shared" / "data" / "fib25"
    if not folder.is_dir():
        pytest.skip("real volumes (../shared/data) are not on this machine")
    return folder


@pytest.fixture(scope="module")
def mtlsd(volumes: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    folder = tmp_path_factory.mktemp("real") / "mtlsd"
    return folder, _segmented(folder, "mtlsd", volumes / "trvol-250-2.zarr")


def test_a_network_trained_for_minutes_reaches_the_goal_on_unseen_sections(mtlsd: tuple[Path, dict]) -> None:
    folder, scores = mtlsd
    assert scores["voi"] <= GOAL_VOI_BITS
    assert read_manifest(ExperimentLayout(folder), "predict").facts["peak_rss_mib"] < PEAK_RSS_MIB


def test_the_whole_larger_volume_is_segmented_in_blocks_and_bounded_memory(
    mtlsd: tuple[Path, dict], volumes: Path
) -> None:
    trained, scores = mtlsd
    layout = ExperimentLayout(trained)
    best = read_best(layout.best_checkpoint("train-acrlsd"))
    bundle = bundle_folder(layout.checkpoints("train-acrlsd"), best.iteration)
    folder = trained.parent / "tstvol"
    folder.mkdir()
    text = UNLABELLED.format(volume=volumes / "tstvol-520-raw.zarr", bundle=bundle, threshold=scores["threshold"])
    (folder / "experiment.toml").write_text(text)
    _lsdflow(folder, "--to", "prepare")
    _lsdflow(folder, "--from", "predict")
    made = ExperimentLayout(folder)
    peaks = {
        s: read_manifest(made, s).facts["peak_rss_mib"] for s in ("predict", "watershed", "agglomerate", "segment")
    }
    print(f"\nREAL tstvol-520: peak RSS of any worker (MiB) {peaks}")
    assert max(peaks.values()) < PEAK_RSS_MIB
    segmentation = open_volume(*read_manifest(made, "segment").output_array(made, "segmentation"))
    assert segmentation.geometry.shape_vox == (140, 520, 520)
    assert read_manifest(made, "watershed").facts["blocks"] == 4
    assert (segmentation.read(segmentation.box) > 0).mean() > 0.9


# CI leaves it out: its scores are printed, not judged.
def test_acrlsd_within_the_same_minutes_is_reported_beside_it(mtlsd: tuple[Path, dict], volumes: Path) -> None:
    folder = mtlsd[0].parent / "acrlsd"
    scores = _segmented(folder, "acrlsd", volumes / "trvol-250-2.zarr")
    assert 0 < scores["voi"] < 6
    assert (folder / "report" / "index.html").exists()
