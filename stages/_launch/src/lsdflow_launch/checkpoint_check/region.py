"""The region for checking checkpoints: the held-out end of a training volume; without one, its last sections.

z ->
+-----------------------------+---------+
| trained                     | held    |   labels of a training volume
+--------------------+--------+---------+
                     | context| checked |   what a check prepares and predicts
                     +--------+---------+
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lsdflow_contract.errors import BadData, ConfigError
from lsdflow_contract.experiment import Experiment, did_you_mean
from lsdflow_contract.geometry import Box, Vox3
from lsdflow_launch.chain import stage_arguments
from lsdflow_launch.commands import error_of
from lsdflow_launch.descriptions import Ask

STAGE = "train-acrlsd"
# For a volume without a held-out end: enough for some neurons, computed within minutes.
MOST_TRAINED_VOX = 1 << 24


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
