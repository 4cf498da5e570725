"""The small experiment of one check: a region as target, one checkpoint, the experiment's post-processing settings.

The region is the held-out end of a training volume; without one, its last sections:

z ->
+-----------------------------+---------+
| trained                     | held    |   labels of a training volume
+--------------------+--------+---------+
                     | context| checked |   what a check prepares and predicts
                     +--------+---------+

Settings of the experiment's own target (regions, masks, bad sections, a threshold) are left out. The threshold is the
one with the lowest VOI against the labels, where segmentation 0 counts as one more label: with other policies, a
network that predicts nothing would not be penalised.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lsdflow_contract.arrays import LABELS, MASK, RAW
from lsdflow_contract.checkpoint import Bundle, bundle_folder, bundle_iterations, read_bundle
from lsdflow_contract.errors import BadData, ConfigError, MissingInput
from lsdflow_contract.experiment import Experiment, did_you_mean
from lsdflow_contract.geometry import Box, Vox3
from lsdflow_contract.hashing import hash_of
from lsdflow_launch.chain import stage_arguments
from lsdflow_launch.commands import Ask, error_of
from lsdflow_launch.init.template import toml_value

STAGE = "train-acrlsd"
# For a volume without a held-out end: enough for some neurons, computed within minutes.
MOST_TRAINED_VOX = 1 << 24
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


@dataclass(frozen=True)
class CheckedRegion:
    """A box of a prepared training volume, in voxels of its raw; `held_out`: the training did not use its labels."""

    volume: str
    raw: Box
    box: Box
    held_out: bool

    @property
    def words(self) -> str:
        """The description of the region in checks.csv."""
        return f"{'held out' if self.held_out else 'trained on'}: {self.volume} {self.box}"

    def with_context(self, sections: int) -> Box:
        """Return the box with the context of the networks, limited to the raw: all of y and x."""
        z, (_, y, x) = self.box.begin_vox[0], self.raw.shape_vox
        wanted = Box((z - sections, 0, 0), (self.box.shape_vox[0] + 2 * sections, y, x))
        return wanted.intersect(self.raw)


def find_region(experiment: Experiment, volume: str | None, ask: Ask) -> CheckedRegion:
    """Return the region that the checks segment; `volume` None: the first training volume.

    Raises ConfigError for a volume that is not used for training, BadData if it has no labels, and the errors that
    train-acrlsd reports for the experiment.
    """
    answer = ask(STAGE, stage_arguments("plan", experiment))
    if "exit_code" in answer:
        raise error_of(answer)
    regions: Mapping[str, Any] = answer["regions"]
    name = next(iter(regions)) if volume is None else volume
    if name not in regions:
        raise ConfigError(f"no training volume {name!r}", where="--volume", fix=did_you_mean(name, list(regions)))
    return region_of(name, regions[name])


def region_of(volume: str, facts: Mapping[str, Any]) -> CheckedRegion:
    """Return the held-out sections at the end in z; if there are none, the last ones with up to 2^24 voxels."""
    begin, shape = _three(facts["labels_begin_vox"]), _three(facts["labels_shape_vox"])
    held_out = int(facts["held_out_sections"])
    section_vox = shape[1] * shape[2]
    if section_vox * shape[0] == 0:
        raise BadData("the training volume has no labels", where=volume, fix="name another one: --volume")
    sections = held_out or min(shape[0], max(1, MOST_TRAINED_VOX // section_vox))
    box = Box((begin[0] + shape[0] - sections, *begin[1:]), (sections, *shape[1:]))
    return CheckedRegion(volume, Box((0, 0, 0), _three(facts["raw_shape_vox"])), box, held_out > 0)


def _three(values: Any) -> Vox3:
    z, y, x = (int(value) for value in values)
    return z, y, x


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
