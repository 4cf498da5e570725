"""The 3-D snapshot as the page shows it: the picture over the edges of its box, a scale bar, a list of neurites."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from lsdflow_evaluate.report.data import Snapshot
from lsdflow_evaluate.report.figures import ScaleBar, colours_of_ids, png_uri, scale_bar

CUBIC_MICROMETRE_NM3 = 1e9


@dataclass(frozen=True)
class SnapshotView:
    """`edges`: SVG path data in pixels of the picture, behind it and in front of it; `neurites`: colour, id, volume."""

    uri: str
    width: int
    height: int
    behind: str
    before: str
    bar: ScaleBar
    neurites: tuple[tuple[str, str, str], ...]
    alt: str
    caption: str


def snapshot_view(snapshot: Snapshot) -> SnapshotView:
    """The view of a snapshot."""
    height, width = snapshot.pixels.shape[:2]
    behind, before = _edges(snapshot)
    colours = colours_of_ids(np.array(snapshot.ids, np.uint64))
    volumes = [f"{v / CUBIC_MICROMETRE_NM3:.3g} µm³" for v in snapshot.volumes_nm3]
    neurites = tuple(
        ("#" + "".join(f"{part:02x}" for part in colour), str(label), volume)
        for colour, label, volume in zip(colours.tolist(), snapshot.ids, volumes, strict=True)
    )
    largest = f"the {len(neurites)} largest segments" if len(neurites) > 1 else "the only segment"
    where = "the whole segmentation" if snapshot.whole else f"the box in its middle, {snapshot.box}"
    return SnapshotView(
        uri=png_uri(snapshot.pixels),
        width=width,
        height=height,
        behind=behind,
        before=before,
        bar=scale_bar(width * snapshot.pixel_nm),
        neurites=neurites,
        alt=f"3-D view of {largest} in {where}",
        caption=f"{largest.capitalize()} of {where}; z points up.",
    )


def _edges(snapshot: Snapshot) -> tuple[str, str]:
    """Edges of the box that meet at its farthest corner, and the others: corners that differ in one bit are joined."""
    behind: list[str] = []
    before: list[str] = []
    for first, second in itertools.combinations(range(8), 2):
        if (first ^ second).bit_count() == 1:
            (r0, c0), (r1, c1) = snapshot.corners[first], snapshot.corners[second]
            path = behind if snapshot.farthest in (first, second) else before
            path.append(f"M{c0:.1f} {r0:.1f}L{c1:.1f} {r1:.1f}")
    return "".join(behind), "".join(before)
