"""Checks whether the sources of a volume are the same as when it was prepared.

1. If the files have the recorded names, sizes and modification times, and the same bytes in a sample (`file_stamp`),
   they are the same, and no voxel is read. Their folder may have moved: the paths in the experiment file do not count.
2. Otherwise the voxels decide. They are read again, block by block, and compared with the checksums in the done marks.
   A copy of the same voxels is the same input, and its state is recorded for the next time. A changed voxel makes
   another input, and so a new volume next to the earlier one.

So no source is read only to compute a hash. A comparison takes as long as preparing the volume, and is needed once
after the files were rewritten or copied. An unfinished volume cannot be compared; only step 1 applies to it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from lsdflow_command.progress import Progress
from lsdflow_contract.arrays import LABELS, MASK, RAW
from lsdflow_contract.errors import BadData, ContractMismatch, MissingInput
from lsdflow_contract.hashing import hash_of_array
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.sealing import read_sealed, write_sealed
from lsdflow_prepare import volume_passes
from lsdflow_prepare.config import without_paths
from lsdflow_prepare.inputs import VolumeInputs
from lsdflow_prepare.volume_passes import STAGE, VolumePass, parameters_of, passes_of, provenance_of
from lsdflow_runtime.engine.block_task import TaskOfStage

LOG = logging.getLogger("lsdflow.prepare")


def containers(layout: ExperimentLayout, label: str) -> list[Path]:
    """Possible containers of a volume: the current one, then other results, newest first."""
    found = list((layout.results / STAGE).glob(f"*/{label.removeprefix('training/')}.zarr"))
    found.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    with suppress(BadData, ContractMismatch):
        found.insert(0, layout.prepared_volume(label))
    return [path for path in dict.fromkeys(found) if path.exists()]


def recognised(
    of_stage: TaskOfStage, inputs: VolumeInputs, passes: list[VolumePass], *, compare: bool
) -> list[VolumePass]:
    """`passes`, or those of an earlier volume that was prepared with the same settings from the same voxels.

    compare: whether voxels are compared; if not, an earlier volume with the same settings and paths counts as the same.
    Raises BadData (65) if a source cannot be read.
    """
    if provenance_of(passes[0].container, inputs.output_geometry).get("key") == passes[0].volume_key:
        return passes
    made = [_of_same_settings(of_stage, inputs, place) for place in containers(of_stage["layout"], inputs.label)]
    earlier = [known for known in made if known and _has_same_forms(inputs, known)]
    unread = [
        known
        for known in earlier
        if _noted(known).get("sources") == inputs.states or (not compare and _has_same_paths(inputs, known))
    ]
    if unread:
        return unread[0]
    changed = []
    for known in (known for known in earlier if all(task.is_whole for task in known)):
        difference = _difference(inputs, known)
        if not difference:
            return known
        changed.append(difference)
    if changed:
        LOG.info("a source of %s changed since it was prepared: %s; this is another volume", inputs.label, changed[0])
    return passes


def remember(inputs: VolumeInputs, passes: Sequence[VolumePass]) -> None:
    """Record the state of the sources of this volume, unless it is recorded: the volume may belong to others."""
    if _noted(passes).get("sources") != inputs.states:
        write_sealed(_path(passes), {"key": passes[0].volume_key, "sources": inputs.states})


def refuse_changed(inputs: VolumeInputs, passes: Sequence[VolumePass]) -> None:
    """Raise BadData (65) if a source changed while its blocks were read; none of them then counts as done."""
    now = inputs.states_now()
    changed = [source.where for name, source in inputs.sources.items() if now[name] != inputs.states[name]]
    if changed:
        for task in passes:
            task.marks.remove_all()
        raise BadData(
            "a source changed while it was read",
            where=", ".join(changed),
            wanted="the same files from the first block to the last",
            found="files written, added or removed since; what was read of them is dropped",
            fix="wait until the copy or the program that writes it has ended: prepare run",
        )


def _of_same_settings(of_stage: TaskOfStage, inputs: VolumeInputs, container: Path) -> list[VolumePass]:
    """The passes of the volume when it was prepared; empty if the settings or the set of sources differ."""
    found = provenance_of(container, inputs.output_geometry)
    settings, sources = without_paths(found.get("parameters")), found.get("inputs")
    if (
        settings != without_paths(parameters_of(inputs))
        or not isinstance(sources, Mapping)
        or set(sources) != set(inputs.states)
    ):
        return []
    return passes_of(of_stage, inputs, container, str(found.get("key", "")), sources)


def _difference(inputs: VolumeInputs, passes: Sequence[VolumePass]) -> str:
    """The first block that differs in the sources now; empty if there is none."""
    LOG.info("the files of %s changed since they were prepared; their voxels are compared", inputs.name)
    with Progress(STAGE, total=sum(task.plan.total.size for task in passes), unit="voxel") as progress:
        for task in passes:
            for number, record in task.marks.records().items():
                block = task.plan.block(number)
                arrays = volume_passes.make_block(inputs, task.content, block).arrays
                for dataset in (d for d, v in arrays.items() if hash_of_array(v) != record["checksums"].get(d)):
                    box = inputs.source_box(block.write)
                    return f"{_source_of(inputs, dataset)} has other voxels in {box}"
                progress.advance(block.write.size)
    return ""


def _source_of(inputs: VolumeInputs, dataset: str) -> str:
    name = {RAW.dataset: "raw", LABELS.dataset: "labels", MASK.dataset: "mask"}[dataset]
    return (inputs.sources.get(name) or inputs.sources["labels"]).where


def _has_same_paths(inputs: VolumeInputs, passes: Sequence[VolumePass]) -> bool:
    """True if the experiment file named the sources by the same paths when they were prepared."""
    found = provenance_of(passes[0].container, inputs.output_geometry)
    return found.get("parameters") == parameters_of(inputs)


def _has_same_forms(inputs: VolumeInputs, passes: Sequence[VolumePass]) -> bool:
    """True if the sources have the recorded formats, as far as these were recorded."""
    noted = _noted(passes)
    return "sources" not in noted or _forms(noted["sources"]) == _forms(inputs.states)


def _forms(states: Mapping[str, Any]) -> dict[str, Any]:
    return {name: state.get("form") if isinstance(state, Mapping) else None for name, state in states.items()}


def _noted(passes: Sequence[VolumePass]) -> dict[str, Any]:
    """The record that `remember` wrote for these passes; empty if it is missing or damaged."""
    try:
        noted = read_sealed(_path(passes), "prepare run")
    except (MissingInput, BadData, NotADirectoryError):
        return {}
    if noted.get("key") != passes[0].volume_key:
        return {}
    return noted if isinstance(noted.get("sources"), dict) else {}


def _path(passes: Sequence[VolumePass]) -> Path:
    return passes[0].container / ".lsdflow" / "sources.json"
