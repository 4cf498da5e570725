"""The small experiment of one check: the region as target, one checkpoint, the experiment's post-processing settings.

Settings of the experiment's own target (regions, masks, bad sections, a threshold) are left out. The threshold is the
one with the lowest VOI against the labels, where segmentation 0 counts as one more label: with other policies, a
network that predicts nothing would not be penalised.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lsdflow_contract.arrays import LABELS, MASK, RAW
from lsdflow_contract.checkpoint import Bundle, bundle_folder, bundle_iterations, read_bundle
from lsdflow_contract.errors import MissingInput
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.geometry import Vox3
from lsdflow_contract.hashing import hash_of
from lsdflow_launch.checkpoint_check.region import STAGE, CheckedRegion
from lsdflow_launch.init.template import toml_value

Tables = dict[str, dict[str, Any]]
OF_THE_TARGET = {
    "predict": ("checkpoint", "lsd_checkpoint", "setup", "roi", "mask", "store_lsds", "measure"),
    "watershed": ("mask_file", "mask_dataset", "replace_sections", "replace_sections_with"),
    "agglomerate": (),
    "segment": ("threshold", "advice", "truth_dataset", "truth_roi", "extra_thresholds", "roi", "run_type"),
    "evaluate": (
        *("truth_dataset", "roi", "threshold_roi", "regions", "skeletons", "skeleton_lattice", "viewer_url", "zeros"),
        *("worst", "lsd_error", "lsd_error_downsample", "lsd_sigma"),
    ),
}
HEADER = """\
# Written by `lsdflow check-checkpoints`: a small segmentation with one checkpoint, on labels of a training volume.
# Region ({words}).
# Weights {weights}, prepared volumes {prepared}
"""


def check_folder(experiment: Experiment, iteration: int) -> Path:
    """Return the folder of a check, which is a separate experiment."""
    return bundle_folder(experiment.layout.train_dir(STAGE) / "checks", iteration)


def settings_of(experiment: Experiment, region: CheckedRegion, prepared: str) -> str:
    """Return a hash of everything but the checkpoint that affects the scores; other settings are not compared."""
    tables = _post_processing(experiment)
    where = [region.volume, str(region.box)]
    return hash_of({"tables": tables, "mode": experiment.common.mode, "region": where, "prepared": prepared})[:12]


def check_text(experiment: Experiment, region: CheckedRegion, bundle: Bundle, prepared: str) -> str:
    """Return the experiment file of the check of a checkpoint. MissingInput (66) if its LSD network is missing."""
    folder = check_folder(experiment, bundle.iteration)
    layout, mode = experiment.layout, experiment.common.mode
    tables = _post_processing(experiment)
    networks = {"checkpoint": bundle_folder(layout.checkpoints(STAGE), bundle.iteration)}
    context = _context_sections(bundle)
    if mode == "acrlsd":
        lsd_folder, lsd = _lsd_network(experiment, bundle)
        networks["lsd_checkpoint"] = lsd_folder
        context += _context_sections(lsd)
    read = region.with_context(context)
    begin: Vox3 = region.box.translate((-read.begin_vox[0], -read.begin_vox[1], -read.begin_vox[2])).begin_vox
    tables["predict"] |= {name: os.path.relpath(path, folder) for name, path in networks.items()}
    tables["predict"]["roi"] = {"begin": _vox(begin), "shape": _vox(region.box.shape_vox)}
    target = _target(layout.training_volume(region.volume), folder)
    target["roi"] = {"offset": _vox(read.begin_vox), "shape": _vox(read.shape_vox)}
    name = f"{experiment.common.name}-check-{bundle.iteration}"
    written: Tables = {
        "experiment": {"name": name, "mode": mode, "profile": experiment.common.profile},
        "compute": _here(experiment.tables.get("compute", {})),
        "prepare": {"target": target},
        **tables,
    }
    header = HEADER.format(words=region.words, weights=bundle.weights_sha256, prepared=prepared)
    return header + "".join(f"{table} = {toml_value(values)}\n" for table, values in written.items())


def _post_processing(experiment: Experiment) -> Tables:
    kept = {
        stage: {k: v for k, v in experiment.tables.get(stage, {}).items() if k not in dropped}
        for stage, dropped in OF_THE_TARGET.items()
    }
    kept["segment"] |= {"threshold": "auto", "advice": "truth"}
    kept["evaluate"] |= {"skeletons": "none"}
    return kept


def _here(compute: Mapping[str, Any]) -> dict[str, Any]:
    """Return [compute] with local workers: such a small check does not use cluster jobs."""
    return {**compute, "runner": "daisy"} if compute.get("runner") == "cluster" else dict(compute)


def _target(volume: Path, folder: Path) -> dict[str, Any]:
    given = os.path.relpath(volume, folder)
    target: dict[str, Any] = {"raw": given, "raw_dataset": RAW.dataset}
    target |= {"truth": given, "truth_dataset": LABELS.dataset, "pad_labels": True}
    if (volume / MASK.dataset).exists():
        target |= {"mask": given, "mask_dataset": MASK.dataset}
    return target


def _lsd_network(experiment: Experiment, bundle: Bundle) -> tuple[Path, Bundle]:
    checkpoints = experiment.layout.checkpoints("train-lsd")
    for iteration in bundle_iterations(checkpoints):
        folder = bundle_folder(checkpoints, iteration)
        if (found := read_bundle(folder)).weights_sha256 == bundle.lsd_bundle_sha256:
            return folder, found
    raise MissingInput(
        "the LSD network that the affinity network was trained with is not there",
        where=checkpoints,
        wanted=f"weights sha256 {bundle.lsd_bundle_sha256}",
    )


def _context_sections(bundle: Bundle) -> int:
    """Return the number of sections that a network reads beyond its output on each side."""
    return max(0, bundle.predict_input_shape_vox[0] - bundle.predict_output_shape_vox[0] + 1) // 2


def _vox(values: Vox3) -> str:
    return f"{', '.join(map(str, values))} vox"
