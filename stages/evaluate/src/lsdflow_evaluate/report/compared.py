"""The finished results of evaluate side by side: the settings of their chains, their scores, their segmentations.

A result of evaluate names the identities of its inputs. The chain of a result is found by these identities among the
manifests that all results keep, so it does not matter which results are current.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from lsdflow_contract.errors import StageError
from lsdflow_contract.experiment import STAGES
from lsdflow_contract.geometry import Geometry
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import Manifest, differences, finished_manifests
from lsdflow_evaluate.config import STAGE
from lsdflow_evaluate.report.data import ComparedResult, Picture
from lsdflow_evaluate.report.volumes import PlaneBox, picture_of
from lsdflow_runtime.io.volumes import open_volume

MOST_PICTURES = 6


def compared_results(
    layout: ExperimentLayout,
    manifests: Mapping[str, Manifest],
    current: Manifest | None,
    grid: Geometry | None,
    plane: PlaneBox | None,
) -> tuple[ComparedResult, ...]:
    """The finished results of evaluate, the current one first, then the newest; none if there are fewer than two.

    manifests: of the stages that have finished; current: the result of the present settings, which need not be on disk
    yet; plane: where the segmentations are shown, on the target's grid: each once, of the first few results.
    """
    known = {stage: finished_manifests(layout, stage) for stage in STAGES}
    now = {**manifests, **({STAGE: current} if current else {})}
    others = {path: found for path, found in known[STAGE].items() if current is None or found.key != current.key}
    rows = [*filter(None, [current]), *(others[path] for path in sorted(others, key=_age_s))]
    pictures: dict[str, Picture | None] = {}
    compared = []
    for manifest in rows if len(rows) > 1 else ():
        chain = _chain(manifest, known)
        segment = chain.get("segment")
        picture = None
        if grid and plane and segment and segment.identity not in pictures and len(pictures) < MOST_PICTURES:
            picture = pictures[segment.identity] = _section(layout, segment, grid, plane)
        compared.append(
            ComparedResult(
                key=manifest.key[:8],
                current=manifest is current,
                settings=tuple(_settings(now, {**chain, STAGE: manifest})),
                scores=manifest.facts,
                segments=segment.facts.get("segments") if segment else None,
                age_s=next((_age_s(path) for path, found in known[STAGE].items() if found == manifest), 0.0),
                picture=picture,
            )
        )
    return tuple(compared)


def _section(layout: ExperimentLayout, segment: Manifest, grid: Geometry, plane: PlaneBox) -> Picture | None:
    """One plane of a segmentation; None if it cannot be read."""
    with suppress(StageError):
        volume = open_volume(*segment.output_array(layout, "segmentation"), grid)
        return picture_of("segmentation", volume.read(plane.box, outside="zero"), plane, grid.voxel_size_nm)
    return None


def _age_s(path: Path) -> float:
    return max(time.time() - path.stat().st_mtime, 0.0)


def _chain(result: Manifest, known: Mapping[str, Mapping[Path, Manifest]]) -> dict[str, Manifest | None]:
    """The manifests of what a result was made from, by stage; None for one that is no longer there."""
    chain: dict[str, Manifest | None] = {}
    waiting = [result]
    while waiting:
        for stage, identity in waiting.pop().inputs.items():
            if stage in known and stage not in chain:
                chain[stage] = next((m for m in known[stage].values() if m.identity == identity), None)
                waiting += filter(None, [chain[stage]])
    return chain


def _settings(now: Mapping[str, Manifest], chain: Mapping[str, Manifest | None]) -> Iterator[str]:
    """How each stage of a chain differs from that of now, with the key of its result."""
    for stage in STAGES:
        made, current = chain.get(stage), now.get(stage)
        if made is None:
            if stage in chain:
                yield f"{stage}: the result was dropped"
        elif current is None or made.identity != current.identity:
            changed = _differences(current, made) if current else ""
            if changed or stage != STAGE:
                yield f"{stage} {made.key[:8]}" + (f": {changed}" if changed else "")


def _differences(current: Manifest, other: Manifest) -> str:
    """Settings as the user wrote them, and inputs that no stage has made."""
    known, inputs = ({name: m.inputs[name] for name in m.inputs if name not in STAGES} for m in (current, other))
    return differences(current.model_copy(update={"inputs": known}), other.config, inputs)
