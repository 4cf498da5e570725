"""Are the sources of a volume still what they were when it was prepared?

1. Their files have the names, sizes and times of change that were noted then: they are the same, and nothing is read.
2. Otherwise the voxels decide. They are read again, brick by brick, and compared with the checksums that prepare noted
   when it wrote the bricks. A copy of the same voxels is the same input, and its state is noted for the next time;
   a changed voxel makes another input.

So no source is ever read only to be hashed. A comparison takes as long as preparing the volume; it is needed once
after the files were written or copied.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lsdflow_command.progress import Progress
from lsdflow_contract.arrays import LABELS, MASK, RAW
from lsdflow_contract.errors import BadData, MadeOtherwise, MissingInput
from lsdflow_contract.geometry import Box
from lsdflow_contract.hashing import hash_of_array
from lsdflow_contract.sealing import read_sealed, write_sealed
from lsdflow_prepare import writing
from lsdflow_prepare.inputs import VolumeInputs
from lsdflow_prepare.writing import WritePlan, write_plans

LOG = logging.getLogger("lsdflow.prepare")
HINT = "bring the source back as it was, or prepare it anew: prepare run --replace"


def recognised(inputs: VolumeInputs, plans: list[WritePlan], seconds: float) -> list[WritePlan]:
    """`plans` under the key that the volume was prepared with, if settings and sources are the same; else as they are.

    seconds: how long voxels are compared; 0 = they are not.
    Raises MadeOtherwise (73) if a voxel differs, BadData (65) if a source cannot be read.
    """
    earlier = _of_same_settings(inputs, plans)
    if earlier is None:
        return plans
    noted = _noted(earlier)
    if noted.get("sources") != inputs.states:
        if "sources" in noted and _forms(noted["sources"]) != _forms(inputs.states):
            return plans
        if not _is_noted_whole(earlier):
            return earlier if seconds == 0 else plans
        _compare(inputs, earlier, seconds)
    return earlier


def remember(inputs: VolumeInputs, plans: list[WritePlan]) -> None:
    """Note the state of the sources that this volume is prepared from."""
    write_sealed(_path(plans), {"key": plans[0].arrays.key, "sources": inputs.states})


def _of_same_settings(inputs: VolumeInputs, plans: list[WritePlan]) -> list[WritePlan] | None:
    """The plans as they were when the volume was prepared; None if other settings, or a source more or less."""
    arrays = plans[0].arrays
    found = next((found for plan in plans if (found := plan.arrays.found())), {})
    for name in ("parameters", "inputs"):
        if not isinstance(found.get(name), Mapping):
            return None
    if found["parameters"] != arrays.provenance["parameters"] or set(found["inputs"]) != set(inputs.states):
        return None
    return write_plans(inputs, arrays.container, found)


def _is_noted_whole(plans: list[WritePlan]) -> bool:
    """The journals hold every brick of the arrays that are finished, so all of it can be compared."""
    return all(not plan.arrays.is_done() or len(plan.arrays.notes()) == len(plan.bricks) for plan in plans)


def _compare(inputs: VolumeInputs, plans: list[WritePlan], seconds: float) -> None:
    """Raise MadeOtherwise for the first brick that the sources give otherwise now; in random order, for `seconds`."""
    noted = [(plan, number, note) for plan in plans for number, note in plan.arrays.notes().items()]
    if not noted or not seconds:
        return
    LOG.info("the files of %s changed since they were prepared; their voxels are compared", inputs.name)
    deadline = time.monotonic() + seconds
    with Progress("prepare", total=sum(p.bricks[n].size for p, n, _ in noted), unit="voxel") as progress:
        for plan, number, note in (noted[place] for place in np.random.default_rng(0).permutation(len(noted))):
            box = plan.bricks[number]
            values, _ = writing.make_brick(inputs, plan, box)
            for dataset in (d for d, v in values.items() if hash_of_array(v) != note.checksums.get(d)):
                raise _changed(inputs, dataset, box)
            progress.advance(box.size)
            if time.monotonic() > deadline:
                return


def _changed(inputs: VolumeInputs, dataset: str, box: Box) -> MadeOtherwise:
    name = {RAW.dataset: "raw", LABELS.dataset: "labels", MASK.dataset: "mask"}[dataset]
    source = inputs.sources.get(name) or inputs.sources["labels"]
    return MadeOtherwise(
        "the source changed since it was prepared",
        where=source.where,
        wanted=f"the voxels that {inputs.name} was made from",
        found=f"others in {box.translate(inputs.region.begin_vox)}",
        hint=HINT,
    )


def _forms(states: Mapping[str, Any]) -> dict[str, Any]:
    return {name: state.get("form") if isinstance(state, Mapping) else None for name, state in states.items()}


def _noted(plans: list[WritePlan]) -> dict[str, Any]:
    """What `remember` noted of this work; empty for a volume of contract 1.6 or before."""
    try:
        noted = read_sealed(_path(plans), "prepare run")
    except (MissingInput, BadData):
        return {}
    if noted.get("key") != plans[0].arrays.key:
        return {}
    return noted if isinstance(noted.get("sources"), dict) else {}


def _path(plans: list[WritePlan]) -> Path:
    return plans[0].arrays.container / ".lsdflow" / "sources.json"
