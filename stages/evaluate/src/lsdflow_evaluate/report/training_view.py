"""A snapshot of a training as the page shows it: pictures of one plane of the patch, a table of its datasets."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lsdflow_evaluate.report.content import CROSS, NOTHING, Panel, Plane
from lsdflow_evaluate.report.data import SnapshotRow, TrainingSnapshot
from lsdflow_evaluate.report.figures import figure_of

SMALL_TITLES = ("Raw", "target", "prediction")


@dataclass(frozen=True)
class TrainingView:
    """`plane`: all pictures, None if no snapshot can be read; `small`: those for the page of the experiment."""

    stage: str
    told: str
    plane: Plane | None
    small: tuple[Panel, ...]
    rows: tuple[tuple[str, ...], ...]
    left_out: tuple[str, ...]


def training_view(snapshot: TrainingSnapshot) -> TrainingView:
    """The view of a snapshot. Its plane has the name of the stage for an axis: the raw beneath labels is its own."""
    panels = tuple(Panel(title, figure_of(picture)) for title, picture in snapshot.pictures)
    figure = panels[0].figure if panels else None
    plane = None
    if figure is not None:
        plane = Plane(snapshot.stage, "yx", f"z = {figure.index_vox}", panels, figure.uri, figure.aspect)
    told = "no snapshot can be read" if snapshot.iteration is None else f"iteration {snapshot.iteration:,}"
    small = tuple(panel for panel in panels if panel.title.rpartition(": ")[2] in SMALL_TITLES)
    return TrainingView(snapshot.stage, told, plane, small, tuple(map(_words, snapshot.rows)), snapshot.left_out)


def _words(row: SnapshotRow) -> tuple[str, ...]:
    shape = f" {CROSS} ".join(str(n) for n in row.shape)
    return row.name, shape, row.dtype, f"{row.low:.4g} to {row.high:.4g}", _error(row.error, row.share)


def _error(error: float | None, share: float | None) -> str:
    if error is None or share is None:
        return NOTHING
    if share == 0:
        return "no weight > 0: nothing is trained here"
    value = f"{error:.4g}" if math.isfinite(error) else "not a number"
    return f"{value}, of {100 * share:.3g} % of the values"
