"""What earlier stages made: networks that do not fit, damaged files, results of other parameters or versions."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tifffile
from bad_input.case import Case, Spoil, setting
from bad_input.lab import Lab, edit_json, save_network, write_source
from numpy.typing import NDArray

from lsdflow_contract.arrays import AFFS, FRAGMENTS
from lsdflow_contract.checkpoint import BUNDLE_JSON, WEIGHTS, bundle_folder
from lsdflow_contract.graph import RagNodes
from lsdflow_contract.manifest import read_manifest
from lsdflow_contract.sealing import ARRAY_SEAL, seal_array
from lsdflow_contract.testing import made, tables_of
from lsdflow_evaluate.boxes import cut_boxes
from lsdflow_runtime.store.rag_store import FilesRagStore

DATA, MISSING, MISMATCH, CONFIG, OTHERS = 65, 66, 76, 78, 73


def _bundle(lab: Lab, stage: str = "train-acrlsd", iteration: int = 7) -> Path:
    return bundle_folder(lab.layout.checkpoints(stage), iteration)


def _manifest(stage: str, **changes: Any) -> Spoil:
    """Keys of a manifest, changed."""
    return lambda lab: edit_json(lab.layout.manifest(stage), **changes)


def _skeletons(text: str) -> Spoil:
    """Traced skeletons with this text."""

    def spoil(lab: Lab) -> None:
        (lab.root / "input" / "axons.swc").write_text(text)
        lab.set("evaluate", skeletons="../input/axons.swc")

    return spoil


def _damaged_weights(lab: Lab) -> None:
    path = _bundle(lab) / WEIGHTS
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")


def _lost_weights(lab: Lab) -> None:
    (_bundle(lab) / WEIGHTS).unlink()


def _damaged_bundle(lab: Lab) -> None:
    (_bundle(lab) / BUNDLE_JSON).write_text('{"contract": "2.0", "kind":')


def _bundle_key(**changes: Any) -> Spoil:
    return lambda lab: edit_json(_bundle(lab) / BUNDLE_JSON, **changes)


def _pickle(lab: Lab) -> None:
    path = lab.root / "input" / "model.pt"
    path.write_bytes(b"\x80\x02}q\x00.")
    lab.set("predict", checkpoint="../input/model.pt")


def _lsd_as_affinities(lab: Lab) -> None:
    lab.set("predict", checkpoint=str(_bundle(lab, "train-lsd", 3).relative_to(lab.layout.root)))


def _other_lsd(lab: Lab) -> None:
    save_network(lab, "lsd", 4)
    lab.set("predict", lsd_checkpoint=4)


def _other_voxel_size(lab: Lab) -> None:
    lsd = json.loads((_bundle(lab, "train-lsd", 3) / BUNDLE_JSON).read_text())
    save_network(lab, "acrlsd", 7, lsd_bundle_sha256=lsd["weights_sha256"], voxel_size_nm=(4.0, 4.0, 4.0))


def _other_target(lab: Lab) -> None:
    shutil.rmtree(lab.layout.target_volume / "volumes" / "raw")
    write_source(lab.layout.target_volume / "volumes" / "raw", np.zeros((24, 28, 32), np.float32))


def _affinities(lab: Lab) -> Path:
    return made(lab.layout, "predict") / AFFS.dataset


def _affinities_of_ten_channels(lab: Lab) -> None:
    attributes = json.loads((_affinities(lab) / "zarr.json").read_text())["attributes"]
    del attributes[ARRAY_SEAL]
    write_source(_affinities(lab), np.zeros((10, 24, 28, 32), np.uint8), **attributes)
    seal_array(_affinities(lab))


def _truncated(dataset: str) -> Spoil:
    """The first chunk file of an array that a stage made is cut in half."""

    def spoil(lab: Lab) -> None:
        folder = _affinities(lab) if dataset == "affs" else made(lab.layout, "watershed") / FRAGMENTS.dataset
        chunk = min(path for path in (folder / "c").rglob("*") if path.is_file())
        chunk.write_bytes(chunk.read_bytes()[: chunk.stat().st_size // 2])

    return spoil


def _lost_fragments(lab: Lab) -> None:
    chunk = min(path for path in (made(lab.layout, "watershed") / FRAGMENTS.dataset / "c").rglob("*") if path.is_file())
    chunk.unlink()


def _edges(lab: Lab) -> Path:
    (table,) = (lab.layout.store / "edges_hist_quant_75").rglob("0.parquet")
    return table


def _damaged_graph(lab: Lab) -> None:
    _edges(lab).write_bytes(_edges(lab).read_bytes()[:40])


def _lost_luts(lab: Lab) -> None:
    shutil.rmtree(lab.layout.luts)


def _damaged_manifest(lab: Lab) -> None:
    lab.layout.manifest("predict").write_text("{")


def _changed_manifest(lab: Lab) -> None:
    path = lab.layout.manifest("agglomerate")
    path.write_text(path.read_text().replace('"blocks": ', '"blocks": 1'))


def _truncated_lut(lab: Lab) -> None:
    path = tables_of(lab.layout) / "lut_hist_quant_75_0.5000.npz"
    path.write_bytes(path.read_bytes()[:-30])


def _changed_metadata(lab: Lab) -> None:
    path = made(lab.layout, "watershed") / FRAGMENTS.dataset / "zarr.json"
    path.write_text(path.read_text().replace('"lsdflow"', '"lsdflov"'))


def _file_for_folder(lab: Lab) -> None:
    shutil.rmtree(lab.layout.results)
    lab.layout.results.write_text("a file where the stage wants a folder")
    lab.layout.manifest("prepare").unlink()


def _locked(*parts: str, mode: int = 0o555) -> Spoil:
    """A folder of the lab may be read, but not written into."""
    return lambda lab: lab.root.joinpath(*parts).chmod(mode)


def _locked_source(lab: Lab) -> None:
    (lab.source("train", "volumes/raw") / "0.0.0").chmod(0)


def _lost_edges(lab: Lab) -> None:
    _edges(lab).unlink()


def _with_id_in_block_one(wrong: Literal["again", "background"]) -> Spoil:
    """Block 1 has a node with the id of another of its nodes, or with the id of background."""

    def spoil(lab: Lab) -> None:
        key = read_manifest(lab.layout, "watershed").key
        store = FilesRagStore(lab.layout.store)
        nodes = store.read_nodes(key, 1)
        ids = np.concatenate([nodes.id[1:], [nodes.id[1] if wrong == "again" else np.uint64(0)]])
        store.write_nodes(key, 1, RagNodes(ids, nodes.center_nm, nodes.size_vox))

    return spoil


def _huge_target(lab: Lab) -> None:
    edit_json(lab.source("volume", "volumes/raw") / ".zarray", shape=[20_000] * 3, chunks=[256] * 3)
    lab.set_target(sparse=True, truth=None)


PREDICT, WATERSHED, AGGLOMERATE = ("predict", "validate"), ("watershed", "validate"), ("agglomerate", "validate")
SEGMENT, EVALUATE = ("segment", "validate"), ("evaluate", "validate")
FAR = {"begin": "0 vox", "shape": "99 vox"}


def _corrected(change: Callable[[NDArray[Any]], NDArray[Any]]) -> Spoil:
    """A box with labels that a person saved after this change."""

    def spoil(lab: Lab) -> None:
        (made,) = cut_boxes(lab.layout, "0, 0, 0 vox", (8, 8, 8), lab.layout.root / "boxes")
        path = Path(made["folder"]) / "labels.tif"
        tifffile.imwrite(path, change(tifffile.imread(path)), photometric="minisblack")

    return spoil


def _box_without_record(lab: Lab) -> None:
    write_source(lab.layout.root / "boxes" / "box-0-0-0" / "labels.zarr", np.ones((8, 8, 8), np.uint64))


CUT = ("lsdflow", "cut", "--at", "0, 0, 0 vox", "--size", "8")
ADD = ("lsdflow", "add-labels", "DIR/boxes/box-0-0-0", "--to", "DIR/../next")

CASES = [
    # Networks.
    Case("damaged weights", _damaged_weights, DATA, (WEIGHTS, "sha256", "predict.checkpoint"), after="train"),
    Case("lost weights", _lost_weights, MISSING, (WEIGHTS, "bundle"), after="train"),
    Case("a damaged bundle.json", _damaged_bundle, DATA, (BUNDLE_JSON, "JSON"), after="train"),
    Case("a bundle.json that misses a key", _bundle_key(voxel_size_nm=None), DATA, (BUNDLE_JSON, "voxel_size_nm"),
         after="train"),
    Case("a pickled checkpoint", _pickle, DATA, ("model.pt", "safetensors", "run code"), after="train"),
    Case("an LSD network where an affinity network belongs", _lsd_as_affinities, MISMATCH,
         ("00000003", "acrlsd", "lsd from train-lsd", "predict.checkpoint"), after="train"),
    Case("another LSD network than trained with", _other_lsd, MISMATCH,
         ("00000004", "sha256", "allow_lsd_mismatch"), after="train"),
    Case("a network trained at another voxel size", _other_voxel_size, MISMATCH,
         ("00000007", "(4.0, 4.0, 4.0)", "(10.0, 8.0, 8.0)", "resample"), after="train"),
    Case("a network of four affinities", _bundle_key(outputs={"affs": 4}), DATA, ("00000007", "'affs': 3", "'affs': 4"),
         after="train"),
    Case("an iteration that was not kept", setting("predict", checkpoint=99), MISSING,
         ("99", "iterations: 7", "predict.checkpoint"), after="train"),
    Case("a bundle of another contract", _bundle_key(contract="9.0"), MISMATCH, (BUNDLE_JSON, "9.0", "2.x"),
         after="train"),
    # Predict.
    Case("a region that leaves the target", setting("predict", roi=FAR), CONFIG,
         ("predict.roi", "z[0:99]"), after="train"),
    Case("a mask that the target does not have", setting("predict", mask="volumes/masc"), MISSING,
         ("volumes/masc", "predict.mask"), after="train"),
    Case("more workers than the memory holds", setting("compute", runner="daisy", workers=1024), CONFIG,
         ("compute.workers", "GB", "fewer"), after="train"),
    Case("a GPU that is not there", setting("compute", device="cuda:7"), CONFIG, ("compute.device", "cuda:7"), PREDICT,
         "train"),
    Case("a target of type float", _other_target, DATA, ("target.zarr/volumes/raw", "float32", "uint8"), after="train"),
    # Training.
    Case("a patch larger than the training volume", setting("train-lsd", input_shape_vox=[96, 96, 96]), DATA,
         ("too small", "a.zarr", "input_shape_vox"), ("train-lsd", "validate"), "prepare"),
    Case("a shape that the network cannot have", setting("train-lsd", input_shape_vox=[29, 28, 28]), CONFIG,
         ("[29, 28, 28]", "[28, 28, 28]", "[30, 28, 28]"), ("train-lsd", "validate"), "prepare"),
    Case("a label below 0 to be ignored in training", setting("train-lsd", ignore_ids=[-3]), CONFIG,
         ("train-lsd.ignore_ids", "1 to 2^64 - 1", "-3"), ("train-lsd", "validate"), "prepare"),
    Case("more than all sections damaged", setting("train-lsd", missing_section_probability=0.7,
         artifact_probability=0.6), CONFIG,
         ("one way only", "missing_section_probability", "1.3"), ("train-lsd", "validate"), "prepare"),
    # Manifests, and results of other parameters.
    Case("a damaged manifest", _damaged_manifest, DATA, ("manifests/predict.json", "JSON"), after="predict"),
    Case("a manifest that was changed", _changed_manifest, DATA,
         ("manifests/agglomerate.json", "sha256", "agglomerate run"), ("segment", "run"), "agglomerate"),
    Case("metadata of an array that were changed", _changed_metadata, DATA,
         ("volumes/fragments", "sha256", "lsdflow repair"), AGGLOMERATE, "watershed"),
    Case("a manifest of another contract", _manifest("predict", contract="9.0"), MISMATCH,
         ("manifests/predict.json", "9.0", "2.x"), after="predict"),
    Case("fragments of other affinities", _manifest("predict", identity="other"), MISMATCH,
         ("manifests/watershed.json", "other affinities", "run watershed again"), ("agglomerate", "validate"),
         "watershed"),
    Case("verify with another context than that of the run", setting("watershed", context="6 vox"), OTHERS,
         ("manifests/watershed.json", "watershed run"), ("watershed", "verify"), "watershed"),
    Case("affinities of ten channels", _affinities_of_ten_channels, DATA, ("volumes/affs", "3 channels", "10 channels"),
         after="predict"),
    Case("a folder of the experiment that may not be written", _locked("exp"), 77,
         ("DIR", "no permission to write", "uid"), unprivileged=True),
    Case("a result that may not be written", _locked("exp", "results"), 77,
         ("DIR/results", "no permission to write", "uid"), after="prepare", unprivileged=True),
    Case("a stage in a folder that may not be written", _locked("exp"), 77,
         ("DIR/runs/prepare", "may not write", "its owner"), ("prepare", "run"), unprivileged=True),
    Case("a source volume that may not be read", _locked_source, 77, ("INPUT/train.zarr/volumes/raw",),
         ("prepare", "validate"), unprivileged=True),
    Case("a disk too small for what will be written", _huge_target, 74,
         ("DIR", "prepare", "predict", "a tenth to spare", "free", "roi"), training=True),
    Case("an experiment folder with a file named results", _file_for_folder, 74, ("results",), ("prepare", "run"),
         "prepare"),
    # Watershed, agglomerate, segment, evaluate.
    Case("a mask file that is not there", setting("watershed", mask_file="../input/mask.zarr"), MISSING,
         ("INPUT/mask.zarr", "watershed.mask_file"), WATERSHED, "predict"),
    Case("a context for seamless fragments", setting("agglomerate", context="8 vox"), CONFIG,
         ("agglomerate.context", "leave context out"), AGGLOMERATE, "watershed"),
    Case("super-blocks that cut blocks", setting("agglomerate", super_block="24 vox"), CONFIG,
         ("agglomerate.super_block", "16"), AGGLOMERATE, "watershed"),
    Case("joining fragments that continue in other blocks", setting("watershed", epsilon_agglomerate=0.2), CONFIG,
         ("epsilon_agglomerate", 'id_mode = "blocks"'), WATERSHED, "predict"),
    Case("a boundary by affinity for fragments as published",
         setting("watershed", id_mode="blocks", boundary="affinity"), CONFIG,
         ('boundary = "affinity"', 'id_mode = "seamless"'), WATERSHED, "predict"),
    Case("edges that agglomerate did not make", setting("segment", merge_function="mean"), MISSING,
         ("mean", "hist_quant_75", "agglomerate.merge_functions"), SEGMENT, "agglomerate"),
    Case("a threshold that is not computed", setting("segment", threshold=0.55), MISSING,
         ("0.5500", "0.5000, 0.6000", "thresholds_step"), SEGMENT, "agglomerate"),
    Case("advice by truth that the target does not have",
         setting("segment", advice="truth", truth_dataset="volumes/gt"), MISSING,
         ("volumes/gt", 'segment.advice = "stability"'), SEGMENT, "agglomerate"),
    Case("a region of the truth that leaves the target", setting("segment", truth_roi=FAR), CONFIG,
         ("segment.truth_roi",), SEGMENT, "agglomerate"),
    Case("skeletons that are not there", setting("evaluate", skeletons="../input/axons.swc"), MISSING,
         ("INPUT/axons.swc", '"truth", "auto", "none"'), EVALUATE, "segment"),
    Case("skeletons in micrometres", _skeletons("1 3 0.12 0.1 0.12 1 -1\n2 3 0.2 0.1 0.12 1 1\n"), DATA,
         ("axons.swc", "240, 224, 256", 'evaluate.skeleton_unit = "um"'), EVALUATE, "segment"),
    Case("a skeleton whose node has no parent", _skeletons("1 3 120 100 120 1 -1\n2 3 200 100 120 1 99\n"), DATA,
         ("INPUT/axons.swc line 2", "node 99"), EVALUATE, "segment"),
    Case("a skeleton whose parents lead in a circle",
         _skeletons("1 3 120 100 120 1 3\n2 3 200 100 120 1 1\n3 3 200 180 120 1 2\n"), DATA,
         ("INPUT/axons.swc", "in a circle", "begins at a root"), EVALUATE, "segment"),
    Case("a region to score that leaves the target", setting("evaluate", roi=FAR), CONFIG, ("evaluate.roi",), EVALUATE,
         "segment"),
    Case("lost tables of thresholds", _lost_luts, MISSING, ("luts", "segment run"), ("segment", "verify"), "segment"),
    # What only a stage at work can see.
    Case("a truncated lookup table", _truncated_lut, DATA,
         ("lut_hist_quant_75_0.5000.npz", "sha256", "lsdflow repair EXPERIMENT"), ("segment", "verify"), "segment"),
    Case("a truncated chunk of affinities", _truncated("affs"), DATA, ("volumes/affs", "predict"),
         ("predict", "verify"), "predict"),
    Case("a truncated chunk of fragments", _truncated("fragments"), DATA, ("volumes/fragments", "watershed"),
         ("watershed", "verify"), "watershed"),
    Case("a lost chunk of fragments", _lost_fragments, DATA, ("volumes/fragments",), ("watershed", "verify"),
         "watershed"),
    Case("a damaged table of edges", _damaged_graph, DATA, ("edges_hist_quant_75", "block 0", "lsdflow repair"),
         ("agglomerate", "verify"), "agglomerate"),
    Case("a lost table of edges", _lost_edges, DATA, ("edges_hist_quant_75", "block 0", "lsdflow repair"),
         ("segment", "run"), "agglomerate"),
    Case("the same fragment twice in a block", _with_id_in_block_one("again"), DATA,
         ("block 1", "each once", "lsdflow repair EXPERIMENT"), ("segment", "run"), "agglomerate"),
    Case("a fragment with the id of background", _with_id_in_block_one("background"), DATA,
         ("block 1", "id 0 belongs to background", "lsdflow repair EXPERIMENT"), ("segment", "run"), "agglomerate"),
    # Boxes to correct.
    Case("a box to cut before there is a segmentation", lambda lab: None, MISSING, ("manifests/segment.json",), CUT,
         "agglomerate"),
    Case("a box to cut outside of the volume", lambda lab: None, 2, ("--at 900, 0, 0 vox", "(900, 0, 0)"),
         ("lsdflow", "cut", "--at", "900, 0, 0 vox"), "segment"),
    Case("a box that was cut before, to cut again", _corrected(lambda labels: labels), OTHERS,
         ("boxes/box-0-0-0", "--to"), CUT, "segment"),
    Case("labels of a box that nobody corrected", _corrected(lambda labels: labels), DATA,
         ("boxes/box-0-0-0", "those that were cut", "name the labels"), ADD, "segment"),
    Case("corrected labels of another shape than their box", _corrected(lambda labels: labels[1:]), DATA,
         ("labels.tif", "another shape", "(8, 8, 8)", "(7, 8, 8)"), ADD, "segment"),
    Case("corrected labels that are no integers", _corrected(lambda labels: labels / np.float32(2)), DATA,
         ("labels.tif", "integers", "float32"), ADD, "segment"),
    Case("corrected labels that are all 0", _corrected(lambda labels: labels * 0), DATA,
         ("labels.tif", "nothing is labelled"), ADD, "segment"),
    Case("labels in no box of lsdflow", _box_without_record, MISSING, ("boxes/box-0-0-0", "box.json"), ADD, "segment"),
    # The command line.
    Case("a copy to an address of the web", lambda lab: None, 2, ("https://host/data", "HOST:PATH", "s3://"),
         ("lsdflow", "sync", "https://host/data")),
    Case("a copy of an experiment to itself", lambda lab: None, 2, ("another place", "HOST:PATH"),
         ("lsdflow", "sync", "DIR")),
    Case("no number of processes to compare", lambda lab: None, 2, ("--processes", "two"),
         ("lsdflow", "scaling", "--processes", "two")),
    Case("a stage that is not done yet", lambda lab: None, MISSING, ("manifests/predict.json", "predict run"),
         ("watershed", "run"), "prepare"),
    Case("a place that does not exist", lambda lab: None, 2, ("'lokal'", "local, container, slurm"),
         ("lsdflow", "run", "--backend", "lokal")),
    Case("the first stage after the last", lambda lab: None, 2, ("segment comes after predict",),
         ("lsdflow", "run", "--from", "segment", "--to", "predict")),
    Case("a second experiment in the same folder", lambda lab: None, OTHERS, ("experiment.toml", "another folder"),
         ("lsdflow", "init", "--train", "a.zarr", "--volume", "b.zarr")),
]  # fmt: skip
