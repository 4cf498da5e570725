"""The base of a selection: a region of a training volume as target, the experiment's post-processing settings.

The region is the held-out end of a training volume (its middle, if it is large); without one, its last sections:

z ->
+-----------------------------+----------+
| trained                     | held out |   labels of a training volume
+--------------------+--------+----------+
                     | context| region   |   what is prepared once, and predicted with each checkpoint
                     +--------+----------+

Settings of the experiment's own target (regions, masks, bad sections, a threshold) are left out. The threshold is the
one with the lowest VOI against the labels, where segmentation 0 counts as one more label: with other policies, a
network that predicts nothing would not be penalised.
"""

from __future__ import annotations

import math
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
# Enough for some neurons, computed within minutes.
MOST_VOX = 1 << 24
Tables = dict[str, dict[str, Any]]
OF_THE_TARGET = {
    "predict": ("checkpoint", "lsd_checkpoint", "setup", "roi", "mask", "store_lsds"),
    "watershed": ("mask_file", "mask_dataset", "replace_sections", "replace_sections_with"),
    "agglomerate": (),
    "segment": ("threshold", "advice", "truth_dataset", "truth_roi", "extra_thresholds", "roi", "run_type"),
    "evaluate": (
        *("truth_dataset", "roi", "threshold_roi", "regions", "skeletons", "skeleton_lattice", "viewer_url", "zeros"),
        *("worst", "lsd_error", "lsd_error_downsample", "lsd_sigma"),
    ),
}
HEADER = """\
# Written by `lsdflow select-checkpoint`: the base of a sweep over checkpoints, on labels of a training volume.
# Region ({words}).
"""


@dataclass(frozen=True)
class Region:
    """A box of a prepared training volume, in voxels of its raw; `held_out`: the training did not use its labels."""

    volume: str
    raw: Box
    box: Box
    held_out: bool

    @property
    def words(self) -> str:
        """The description of the region for people."""
        return f"{'held out' if self.held_out else 'trained on'}: {self.volume} {self.box}"

    def with_context(self, sections: int) -> Box:
        """Return the box with the context of the networks, limited to the raw: all of y and x."""
        z, (_, y, x) = self.box.begin_vox[0], self.raw.shape_vox
        wanted = Box((z - sections, 0, 0), (self.box.shape_vox[0] + 2 * sections, y, x))
        return wanted.intersect(self.raw)


def find_region(experiment: Experiment, volume: str | None, ask: Ask) -> Region:
    """Return the region to segment; `volume` None: the first training volume.

    Raises MissingInput (66) if the experiment trains no network, ConfigError for a volume that is not used for
    training, BadData if it has no labels, and the errors that train-acrlsd reports for the experiment.
    """
    answer = ask(STAGE, stage_arguments("plan", experiment))
    if "exit_code" in answer:
        raise error_of(answer)
    if "nothing_to_do" in answer:
        raise MissingInput(
            "this experiment trains no network, so it has no checkpoints to compare",
            where=experiment.path,
            found=answer["nothing_to_do"],
            fix="name the experiment that trained the network",
        )
    regions: Mapping[str, Any] = answer["regions"]
    name = next(iter(regions)) if volume is None else volume
    if name not in regions:
        raise ConfigError(f"no training volume {name!r}", where="--volume", fix=did_you_mean(name, list(regions)))
    return region_of(name, regions[name])


def region_of(volume: str, facts: Mapping[str, Any]) -> Region:
    """Return the middle of the held-out sections at the end, or else of the last ones: up to 2^24 voxels."""
    begin, shape = _three(facts["labels_begin_vox"]), _three(facts["labels_shape_vox"])
    held_out = int(facts["held_out_sections"])
    section_vox = shape[1] * shape[2]
    if section_vox * shape[0] == 0:
        raise BadData("the training volume has no labels", where=volume, fix="name another one: --volume")
    sections = held_out or min(shape[0], max(1, MOST_VOX // section_vox))
    share = min(1.0, math.sqrt(MOST_VOX / (sections * section_vox)))
    y, x = (max(1, int(share * edge)) for edge in shape[1:])
    corner = (begin[1] + (shape[1] - y) // 2, begin[2] + (shape[2] - x) // 2)
    box = Box((begin[0] + shape[0] - sections, *corner), (sections, y, x))
    return Region(volume, Box((0, 0, 0), _three(facts["raw_shape_vox"])), box, held_out > 0)


def _three(values: Any) -> Vox3:
    z, y, x = (int(value) for value in values)
    return z, y, x


def settings_of(experiment: Experiment, region: Region, prepared: str) -> str:
    """Return a hash of everything but the checkpoint that affects the scores; other settings are not compared."""
    tables = _post_processing(experiment)
    where = [region.volume, str(region.box)]
    return hash_of({"tables": tables, "mode": experiment.common.mode, "region": where, "prepared": prepared})[:12]


def base_text(experiment: Experiment, region: Region, bundle: Bundle, folder: Path) -> str:
    """Return the experiment file of the base in `folder`, which is no link; `bundle`: one of the checkpoints.

    Raises MissingInput (66) if its LSD network is missing.
    """
    tables = _post_processing(experiment)
    networks = networks_of(experiment, bundle)
    context = sum(_context_sections(read_bundle(path)) for path in networks.values())
    read = region.with_context(context)
    begin = region.box.translate((-read.begin_vox[0], -read.begin_vox[1], -read.begin_vox[2])).begin_vox
    tables["predict"] |= {name: os.path.relpath(path, folder) for name, path in networks.items()}
    tables["predict"]["roi"] = {"begin": _vox(begin), "shape": _vox(region.box.shape_vox)}
    target = _target(experiment.layout.training_volume(region.volume).resolve(), folder)
    target["roi"] = {"offset": _vox(read.begin_vox), "shape": _vox(read.shape_vox)}
    common, name = experiment.common, f"{experiment.common.name}-selection"
    written: Tables = {
        "experiment": {"name": name, "mode": common.mode, "profile": common.profile},
        "compute": _here(experiment.tables.get("compute", {})),
        "prepare": {"target": target},
        **tables,
    }
    lines = [f"{table} = {toml_value(values)}\n" for table, values in written.items()]
    return HEADER.format(words=region.words) + "".join(lines)


def networks_of(experiment: Experiment, bundle: Bundle) -> dict[str, Path]:
    """Return the real folders of a checkpoint and of the LSD network that it reads, by their keys in [predict].

    Raises MissingInput (66) if its LSD network is missing.
    """
    layout = experiment.layout
    networks = {"checkpoint": bundle_folder(layout.checkpoints(STAGE), bundle.iteration)}
    if experiment.common.mode == "acrlsd":
        networks["lsd_checkpoint"] = _lsd_network(layout.checkpoints("train-lsd"), bundle)
    return {key: path.resolve() for key, path in networks.items()}


def _post_processing(experiment: Experiment) -> Tables:
    kept = {
        stage: {k: v for k, v in experiment.tables.get(stage, {}).items() if k not in dropped}
        for stage, dropped in OF_THE_TARGET.items()
    }
    kept["segment"] |= {"threshold": "auto", "advice": "truth"}
    kept["evaluate"] |= {"skeletons": "none"}
    return kept


def _here(compute: Mapping[str, Any]) -> dict[str, Any]:
    """Return [compute] with local workers: so small a region needs no cluster jobs."""
    return {**compute, "runner": "daisy"} if compute.get("runner") == "cluster" else dict(compute)


def _target(volume: Path, folder: Path) -> dict[str, Any]:
    given = os.path.relpath(volume, folder)
    target: dict[str, Any] = {"raw": given, "raw_dataset": RAW.dataset}
    target |= {"truth": given, "truth_dataset": LABELS.dataset, "pad_labels": True}
    if (volume / MASK.dataset).exists():
        target |= {"mask": given, "mask_dataset": MASK.dataset}
    return target


def _lsd_network(checkpoints: Path, bundle: Bundle) -> Path:
    for iteration in bundle_iterations(checkpoints):
        folder = bundle_folder(checkpoints, iteration)
        if read_bundle(folder).weights_sha256 == bundle.lsd_bundle_sha256:
            return folder
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
