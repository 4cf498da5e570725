"""The pages of the report, of the experiment and of each stage: everything inline, nothing fetched, names escaped.

A page forbids itself the network by a content security policy; its only script (the slider that fades the labels, the
copy buttons) is named there by its hash, so that no other script can run.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from lsdflow_evaluate.report import content, numbers, stage_content, wording
from lsdflow_evaluate.report.block_pictures import MapPicture, map_pictures
from lsdflow_evaluate.report.compared_view import COLUMNS, compared_view
from lsdflow_evaluate.report.data import ReportData
from lsdflow_evaluate.report.methods import methods
from lsdflow_evaluate.report.records import StageRecord
from lsdflow_evaluate.report.snapshot_view import SnapshotView, snapshot_view
from lsdflow_evaluate.report.timeline import timeline
from lsdflow_evaluate.report.training_view import TrainingView, training_view


@dataclass(frozen=True)
class _Looks:
    """What pages show, made once: planes of figures, the snapshot, charts; maps of blocks and trainings by stage."""

    planes: tuple[content.Plane, ...]
    snapshot: SnapshotView | None
    charts: dict[str, list[str]]
    maps: dict[str, tuple[MapPicture, ...]]
    trained: dict[str, TrainingView]

    @classmethod
    def of(cls, data: ReportData) -> _Looks:
        return cls(
            content.planes(data),
            snapshot_view(data.snapshot) if data.snapshot else None,
            numbers.charts(data),
            {record.stage: map_pictures(record.blocks) for record in data.stages if record.blocks},
            {snapshot.stage: training_view(snapshot) for snapshot in data.trained},
        )


def render_pages(data: ReportData) -> Iterator[tuple[str, str]]:
    """(name, page): `index`, and one page for each stage."""
    looks = _Looks.of(data)
    yield "index", _report(data, looks)
    for record in data.stages:
        yield record.stage, _stage(data, record, looks)


def render_report(data: ReportData) -> str:
    """The page of the experiment alone; complete on its own, in light and dark, for wide and narrow screens."""
    return _report(data, _Looks.of(data))


def _report(data: ReportData, looks: _Looks) -> str:
    chosen = content.chosen_score(data)
    grids = {record.stage for record in data.stages if record.blocks and record.blocks.states.size > 1}
    return _render(
        "page.html.j2",
        data=data,
        record=None,
        tiles=content.tiles(data),
        planes=looks.planes,
        trained=list(looks.trained.values()),
        snapshot=looks.snapshot,
        compared=compared_view(data.compared),
        compared_columns=COLUMNS,
        charts={name: _safe(svgs) for name, svgs in looks.charts.items()},
        stages=numbers.stage_rows(data),
        timeline=timeline(data.stages, time.time()),
        block_maps=[(stage, maps) for stage, maps in looks.maps.items() if stage in grids],
        worst=content.worst_first(data.worst),
        missing=wording.missing_parts(data),
        methods=methods(data),
        citations=wording.CITATIONS,
        score_values=numbers.score_values(chosen) if chosen else (),
        versions=numbers.version_rows(data),
        commands="\n".join(s.last.command for s in data.stages if s.last and s.last.command),
        view_command=f"lsdflow view {data.folder}",
        state=json.dumps(data.neuroglancer_state, indent=1) if data.neuroglancer_state else "",
    )


def _stage(data: ReportData, record: StageRecord, looks: _Looks) -> str:
    panels = stage_content.panels(looks.planes, record.stage)
    over_raw = any(panel.figure and panel.figure.kind == "labels" for _, row in panels for panel, _ in row)
    return _render(
        "stage.html.j2",
        data=data,
        record=record,
        problems=[problem for problem in data.problems if problem.stage == record.stage],
        tiles=stage_content.tiles(data, record),
        panels=panels,
        planes=looks.planes if over_raw else (),
        trained=looks.trained.get(record.stage),
        snapshot=looks.snapshot if record.stage == "segment" else None,
        charts=_safe(stage_content.charts(data, record, looks.charts)),
        maps=looks.maps.get(record.stage, ()),
        runs=stage_content.run_rows(record),
        command=record.last.command if record.last else "",
        jobs=[tuple(job.split(": ", 1)) for job in record.jobs],
        result=stage_content.result(record),
    )


@functools.cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("lsdflow_evaluate", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _render(template: str, **values: Any) -> str:
    folder = files("lsdflow_evaluate.report")
    style, script = ((folder / name).read_text("utf-8") for name in ("page.css", "page.js"))
    ours = {"style": Markup(style), "script": Markup(script)}  # noqa: S704 - our own files
    return _environment().get_template(template).render(policy=_policy(script), **ours, **values)


def _safe(svgs: list[str]) -> list[Markup]:
    return [Markup(svg) for svg in svgs]  # noqa: S704 - all texts in them are escaped already


def _policy(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    return f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
