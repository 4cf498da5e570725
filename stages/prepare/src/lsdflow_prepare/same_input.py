"""Checks whether the sources of a volume are the same as when it was prepared.

1. If the files have the recorded names, sizes and modification times, they are the same, and nothing is read.
2. Otherwise the voxels decide. They are read again, brick by brick, and compared with the checksums that prepare
   recorded when it wrote the bricks. A copy of the same voxels is the same input, and its state is recorded for the
   next time. A changed voxel makes another input, and so a new volume next to the earlier one.

So no source is read only to compute a hash. A comparison takes as long as preparing the volume, and is needed once
after the files were rewritten or copied. An unfinished volume cannot be compared; only step 1 applies to it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from lsdflow_command.progress import Progress
from lsdflow_contract.arrays import LABELS, MASK, RAW
from lsdflow_contract.errors import BadData, ContractMismatch, MissingInput
from lsdflow_contract.hashing import hash_of_array
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.sealing import read_sealed, write_sealed
from lsdflow_prepare import writing
from lsdflow_prepare.finished import STAGE
from lsdflow_prepare.inputs import VolumeInputs
from lsdflow_prepare.writing import WritePlan, write_plans

LOG = logging.getLogger("lsdflow.prepare")


def containers(layout: ExperimentLayout, label: str) -> list[Path]:
    """Possible containers of a volume: the current one, that of contract 1, then other results, newest first."""
    found = list((layout.results / STAGE).glob(f"*/{label.removeprefix('training/')}.zarr"))
    found = [layout.data / f"{label}.zarr", *sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)]
    with suppress(BadData, ContractMismatch):
        found.insert(0, layout.prepared_volume(label))
    return [path for path in dict.fromkeys(found) if path.exists()]


def recognised(
    inputs: VolumeInputs, plans: list[WritePlan], layout: ExperimentLayout, *, compare: bool
) -> list[WritePlan]:
    """`plans`, or the plans of an earlier volume that was prepared with the same settings from the same voxels.

    compare: whether voxels are compared; if not, an earlier volume with the same settings counts as the same.
    Raises BadData (65) if a source cannot be read.
    """
    if any(plan.arrays.found().get("key") == plan.arrays.key for plan in plans):
        return plans
    made = [_of_same_settings(inputs, plans[0], container) for container in containers(layout, inputs.label)]
    earlier = [known for known in made if known and _has_same_forms(inputs, known)]
    unread = [known for known in earlier if not compare or _noted(known).get("sources") == inputs.states]
    if unread:
        return unread[0]
    changed = []
    for known in (known for known in earlier if _is_whole(known)):
        difference = _difference(inputs, known)
        if not difference:
            return known
        changed.append(difference)
    if changed:
        LOG.info("a source of %s changed since it was prepared: %s; this is another volume", inputs.label, changed[0])
    return plans


def remember(inputs: VolumeInputs, plans: list[WritePlan]) -> None:
    """Record the state of the sources of this volume."""
    write_sealed(_path(plans), {"key": plans[0].arrays.key, "sources": inputs.states})


def _of_same_settings(inputs: VolumeInputs, plan: WritePlan, container: Path) -> list[WritePlan]:
    """The plans of the volume when it was prepared; empty if the settings or the set of sources differ."""
    given = plan.arrays.provenance
    there = [plan.arrays.found() for plan in write_plans(inputs, container, given)]
    found = next(filter(None, there), {})
    for name in ("parameters", "inputs"):
        if not isinstance(found.get(name), Mapping):
            return []
    if found["parameters"] != given["parameters"] or set(found["inputs"]) != set(inputs.states):
        return []
    return write_plans(inputs, container, found)


def _is_whole(plans: list[WritePlan]) -> bool:
    """True if the arrays are finished and the journals hold every brick, so that all voxels can be compared."""
    return all(plan.arrays.is_done() and len(plan.arrays.notes()) == len(plan.bricks) for plan in plans)


def _difference(inputs: VolumeInputs, plans: list[WritePlan]) -> str:
    """The first brick that differs in the sources now; empty if there is none."""
    LOG.info("the files of %s changed since they were prepared; their voxels are compared", inputs.name)
    with Progress(STAGE, total=sum(box.size for plan in plans for box in plan.bricks), unit="voxel") as progress:
        for plan in plans:
            for number, note in plan.arrays.notes().items():
                box = plan.bricks[number]
                values, _ = writing.make_brick(inputs, plan, box)
                for dataset in (d for d, v in values.items() if hash_of_array(v) != note.checksums.get(d)):
                    return f"{_source_of(inputs, dataset)} has other voxels in {box.translate(inputs.region.begin_vox)}"
                progress.advance(box.size)
    return ""


def _source_of(inputs: VolumeInputs, dataset: str) -> str:
    name = {RAW.dataset: "raw", LABELS.dataset: "labels", MASK.dataset: "mask"}[dataset]
    return (inputs.sources.get(name) or inputs.sources["labels"]).where


def _has_same_forms(inputs: VolumeInputs, plans: list[WritePlan]) -> bool:
    """True if the sources have the recorded formats, as far as these were recorded."""
    noted = _noted(plans)
    return "sources" not in noted or _forms(noted["sources"]) == _forms(inputs.states)


def _forms(states: Mapping[str, Any]) -> dict[str, Any]:
    return {name: state.get("form") if isinstance(state, Mapping) else None for name, state in states.items()}


def _noted(plans: list[WritePlan]) -> dict[str, Any]:
    """The record that `remember` wrote for these plans; empty for a volume of contract 1.6 or before."""
    try:
        noted = read_sealed(_path(plans), "prepare run")
    except (MissingInput, BadData):
        return {}
    if noted.get("key") != plans[0].arrays.key:
        return {}
    return noted if isinstance(noted.get("sources"), dict) else {}


def _path(plans: list[WritePlan]) -> Path:
    return plans[0].arrays.container / ".lsdflow" / "sources.json"
