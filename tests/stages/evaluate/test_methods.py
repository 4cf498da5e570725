"""The methods of a report say what was really done, and nothing that is not known."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from lsdflow_contract.checkpoint import Bundle, UNetSpec, bundle_folder
from lsdflow_contract.citations import REFERENCES
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_contract.manifest import Manifest, Writer
from lsdflow_evaluate.report.collect import networks_of
from lsdflow_evaluate.report.data import ReportData
from lsdflow_evaluate.report.words import methods

LSDS_SHA, AFFS_SHA = "a" * 64, "b" * 64


def network(kind: str, channels: int = 1, iteration: int = 40000, **more: Any) -> Bundle:
    return Bundle(
        writer=Writer(stage="train-acrlsd", version="0.1.0"),
        kind=kind,  # type: ignore[arg-type]
        iteration=iteration,
        unet=UNetSpec(in_channels=channels, num_fmaps=12, fmap_inc_factor=5, downsample_factors=((2, 2, 2),) * 3),
        outputs={"affs": 3},
        train_input_shape_vox=(84, 268, 268),
        train_output_shape_vox=(48, 56, 56),
        predict_input_shape_vox=(96, 484, 484),
        predict_output_shape_vox=(60, 272, 272),
        voxel_size_nm=(8.0, 8.0, 8.0),
        **more,
    )


LSDS = network("lsd", sigma_nm=(80.0, 80.0, 80.0), weights_sha256=LSDS_SHA)
AFFINITIES = network("acrlsd", 11, weights_sha256=AFFS_SHA, lsd_bundle_sha256=LSDS_SHA)


def manifest(stage: str, config: dict[str, Any], version: str = "", revision: str = "", **facts: Any) -> Manifest:
    writer = Writer(stage=stage, version=version, revision=revision)
    return Manifest(writer=writer, key="k", config=config, inputs={}, outputs={}, facts=facts, identity="i")


def methods_of(manifests: dict[str, Manifest] | None = None, **more: Any) -> str:
    """The methods of an experiment with a segmentation."""
    chosen = {"merge_function": "hist_quant_75", "threshold": 0.42}
    found = dict(manifests or {})
    found.setdefault("segment", manifest("segment", {}, **chosen))
    return "\n".join(methods(ReportData("exp", "now", luts=({**chosen, "segments": 100},), manifests=found, **more)))


def test_the_whole_chain_is_described_with_its_settings() -> None:
    volumes = {
        "training/a": {"labelled_voxels": 1_000_000, "neurons": 30},
        "training/b": {"labelled_voxels": 500_000, "neurons": 12},
        "target": {"format": "zarr"},
    }
    watershed = {
        "min_seed_distance_vox": 10,
        "boundary": "affinity",
        "epsilon_agglomerate": 0.0,
        "filter_fragments": 0.05,
        "remove_debris_vox": 64,
        "fragments_in_xy": True,
        "resolved": {"block_shape_vox": [256, 256, 256], "context_vox": [31, 31, 31]},
    }
    manifests = {
        "prepare": manifest("prepare", {}, volumes=volumes),
        "train-lsd": manifest("train-lsd", {}),
        "predict": manifest("predict", {"precision": "bf16"}, "0.1.0", "0123456789abcdef"),
        "watershed": manifest("watershed", watershed),
    }
    chosen = {"merge_function": "hist_quant_75", "threshold": 0.42}
    manifests["segment"] = manifest("segment", {}, "0.2.0", **chosen)
    text = methods_of(manifests, networks=(LSDS, AFFINITIES))
    for words in (
        "segmented with lsdflow (predict 0.1.0, segment 0.2.0; commit 0123456789ab)",
        "A three-dimensional U-Net (12 feature maps, 5 times as many at each of 3 coarser levels; patches of "
        "84 \u00d7 268 \u00d7 268 voxels in, 48 \u00d7 56 \u00d7 56 out) learnt local shape descriptors "
        "(LSDs; Gaussian of 80 \u00d7 80 \u00d7 80 nm) from the image [1] in 40,000 iterations with torch.",
        "Another U-Net",
        "learnt voxel affinities from the image and the predicted LSDs (auto-context, AcrLSD)",
        "2 volumes, 1,500,000 labelled voxels of 42 neurons",
        "made with gunpowder [4]",
        "Prediction: bf16 arithmetic.",
        "(min_seed_distance_vox 10; boundary affinity; seeds and growth within sections; filter_fragments 0.05; "
        "remove_debris_vox 64; "
        "blocks of 256 \u00d7 256 \u00d7 256 voxels, read with a context of 31 \u00d7 31 \u00d7 31)",
        "merge function hist_quant_75 with a score of at most 0.42",
    ):
        assert words in text
    assert "epsilon_agglomerate" not in text, "off"


@pytest.mark.parametrize(
    ("made", "words", "unsaid"),
    [
        (network("affinities"), "learnt voxel affinities from the image [1]", "LSD"),
        (network("mtlsd", sigma_nm=(80.0, 80.0, 80.0)), "at once (MtLSD) from the image", "Another"),
        (network("acrlsd", 10), "from the predicted LSDs (auto", "from the image"),
    ],
)
def test_each_mode_says_what_its_network_learnt(made: Bundle, words: str, unsaid: str) -> None:
    text = methods_of(networks=(made,))
    assert words in text
    assert unsaid not in text


def test_what_is_not_known_is_not_said() -> None:
    text = methods_of()
    assert not re.search(r"U-Net|gunpowder|learnt|Prediction|None|\(\)", text)
    assert "segmented with lsdflow." in text


def test_batches_are_gunpowders_only_where_they_were() -> None:
    gpu = {"train-acrlsd": manifest("train-acrlsd", {"pipeline": "gpu"})}
    assert "gunpowder" not in methods_of(gpu, networks=(AFFINITIES,))


def test_every_number_in_brackets_is_a_reference() -> None:
    configs = ({}, {"id_mode": "block"}, {"id_mode": "block", "method": "mutex"})
    pages = [methods_of({"watershed": manifest("watershed", c)}, networks=(LSDS, AFFINITIES)) for c in configs]
    numbers = {int(n) for group in re.findall(r"\[([\d, ]+)\]", "".join(pages)) for n in group.split(",")}
    assert numbers <= set(range(1, len(REFERENCES) + 1))
    assert [REFERENCES[n - 1].key for n in (1, 2, 6, 7)] == ["sheridan2023", "funke2019", "waterz", "wolf2021"]


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    """With checkpoints of both networks, and newer ones that nothing was predicted with."""
    (tmp_path / "experiment.toml").write_text("[experiment]\n")
    loaded = load_experiment(tmp_path / "experiment.toml")
    for stage, made in (("train-lsd", LSDS), ("train-acrlsd", AFFINITIES)):
        for iteration, sha256 in ((40000, made.weights_sha256), (50000, "c" * 64)):
            folder = bundle_folder(loaded.layout.checkpoints(stage), iteration)
            folder.mkdir(parents=True)
            written = made.model_copy(update={"iteration": iteration, "weights_sha256": sha256})
            (folder / "bundle.json").write_text(written.model_dump_json())
    return loaded


def test_the_networks_are_those_that_were_predicted_with(experiment: Experiment) -> None:
    for config in ({"checkpoint": "best", "resolved": {"iteration": 40000}}, {"checkpoint": 40000}):
        predict = manifest("predict", {"resolved": {"iteration": 40000}, **config})
        assert networks_of(experiment.layout, predict) == (LSDS, AFFINITIES)
    other = manifest("predict", {"checkpoint": "best", "lsd_checkpoint": 50000, "resolved": {"iteration": 40000}})
    assert networks_of(experiment.layout, other) == (AFFINITIES,), "not the one it was trained with: not named"


def test_a_network_from_elsewhere_is_described_while_it_is_the_one_that_predicted(experiment: Experiment) -> None:
    folder = experiment.layout.root / "given"
    folder.mkdir()
    (folder / "bundle.json").write_text(AFFINITIES.model_dump_json())
    predict = manifest("predict", {"checkpoint": "given", "lsd_checkpoint": "lsds", "resolved": {"iteration": 40000}})
    assert networks_of(experiment.layout, replaced(predict, AFFINITIES.weights_sha256)) == (AFFINITIES,)
    assert networks_of(experiment.layout, replaced(predict, "d" * 64)) == ()
    lsds = experiment.layout.root / "lsds"
    lsds.mkdir()
    (lsds / "bundle.json").write_text(LSDS.model_dump_json())
    assert networks_of(experiment.layout, replaced(predict, AFFINITIES.weights_sha256)) == (LSDS, AFFINITIES)
    other = replaced(predict, AFFINITIES.weights_sha256, "e" * 64)
    assert networks_of(experiment.layout, other) == (AFFINITIES,)


def replaced(predict: Manifest, weights_sha256: str, lsd_sha256: str = LSDS.weights_sha256) -> Manifest:
    return predict.model_copy(update={"inputs": {"network": weights_sha256, "lsd_network": lsd_sha256}})


def test_a_network_from_elsewhere_or_gone_is_not_guessed(experiment: Experiment) -> None:
    assert networks_of(experiment.layout, None) == ()
    for config in (
        {"checkpoint": "/other/checkpoints/00040000", "resolved": {"iteration": 40000}},
        {"checkpoint": "best", "resolved": {"iteration": 60000}},
        {"checkpoint": "best"},
    ):
        assert networks_of(experiment.layout, manifest("predict", config)) == ()


def test_libraries_are_described_with_every_version_that_a_stage_had() -> None:
    trained = manifest("train-acrlsd", {}, libraries={"zarr": "2.18.7", "torch": "2.13.0"})
    watershed = manifest("watershed", {}, libraries={"zarr": "3.1.6", "python": "3.11.7"})
    assert "Libraries: python 3.11.7, torch 2.13.0, zarr 2.18.7 and 3.1.6." in methods_of(
        {"train-acrlsd": trained, "watershed": watershed}
    )
    assert "Libraries" not in methods_of({"watershed": manifest("watershed", {})})


def test_edges_scored_from_lsds_are_described_as_such() -> None:
    graph = manifest("agglomerate", {"scored_from": "lsds"})
    assert "edges were scored, from the predicted LSDs alone, by hierarchical agglomeration" in methods_of(
        {"agglomerate": graph}
    )
    assert "LSDs alone" not in methods_of({"agglomerate": manifest("agglomerate", {})})


def test_fragments_are_described_as_they_were_made_and_edges_as_they_were_scored() -> None:
    for config, words in (
        ({}, ("named by their seeds", "of the whole graph")),
        ({"id_mode": "block"}, ("cut at the faces of blocks", "with waterz, block by block")),
        ({"id_mode": "block", "method": "mutex"}, ("cut by the mutex watershed [7]", "with waterz, block by block")),
    ):
        text = methods_of({"watershed": manifest("watershed", config)})
        assert all(part in text for part in words)
