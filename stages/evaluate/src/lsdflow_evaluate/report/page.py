"""The pages of the report, of the experiment and of each stage: everything inline, nothing fetched, names escaped.

A page forbids itself the network by a content security policy; its only script (the slider that fades the labels, the
copy buttons) is named there by its hash, so that no other script can run.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any, BinaryIO

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from lsdflow_contract.citations import REFERENCES
from lsdflow_contract.files import write_atomically, write_json
from lsdflow_contract.geometry import Box
from lsdflow_evaluate.report import content
from lsdflow_evaluate.report.charts import Charts, draw_charts
from lsdflow_evaluate.report.data import ReportData, StageRecord
from lsdflow_evaluate.report.figures import MapPicture, map_pictures, timeline
from lsdflow_evaluate.report.findings import findings, next_steps, worst_errors
from lsdflow_evaluate.report.neurites import Scene, scene_of
from lsdflow_evaluate.report.words import methods, missing_parts, score_values

LOG = logging.getLogger("lsdflow.evaluate")


@dataclass(frozen=True)
class _Drawn:
    """What several pages show: planes of figures, the 3-D view, charts; maps of blocks and trainings by stage."""

    planes: tuple[content.Plane, ...]
    scene: Scene | None
    charts: Charts
    maps: dict[str, tuple[MapPicture, ...]]
    trained: dict[str, content.TrainingView]


def write_pages(folder: Path, data: ReportData) -> None:
    """Write index.html, a page of every stage and neuroglancer.json, each by rename."""
    write_json(folder / "neuroglancer.json", data.viewer_state or {})
    for name, page in render_pages(data):
        write_atomically(folder / f"{name}.html", partial(_write, page))
    LOG.info("report: %s", folder / "index.html")


def _write(page: str, file: BinaryIO) -> None:
    file.write(page.encode())


def render_pages(data: ReportData) -> Iterator[tuple[str, str]]:
    """(name, page): `index`, and one page for each stage. Each is complete on its own, in light and dark, for wide and
    narrow screens."""
    blocks = {record.stage: data.blocks.get(record.stage) for record in data.stages}
    drawn = _Drawn(
        planes=content.planes(data),
        scene=scene_of(data.neurites) if data.neurites else None,
        charts=draw_charts(data),
        maps={stage: map_pictures(found.map) for stage, found in blocks.items() if found and found.map},
        trained={snapshot.stage: content.training_view(snapshot) for snapshot in data.trained},
    )
    yield "index", _experiment_page(data, drawn)
    for record in data.stages:
        yield record.stage, _stage_page(data, record, drawn)


def _experiment_page(data: ReportData, drawn: _Drawn) -> str:
    chosen, charts = data.chosen_score, drawn.charts
    grids = {stage for stage, found in data.blocks.items() if found.map and found.map.states.size > 1}
    return _render(
        "page.html.j2",
        data=data,
        record=None,
        tiles=content.tiles(data),
        planes=drawn.planes,
        trained=list(drawn.trained.values()),
        scene=drawn.scene,
        compared=content.compared_rows(data.compared),
        compared_panels=content.compared_panels(data.compared),
        compared_columns=content.COMPARED_COLUMNS,
        charts=_safe((*charts.quality, *charts.counts, *charts.sizes, *charts.losses.values())),
        passed=content.passed(data.scores.get("voi"), data.voi_limit),
        scores=data.scores.get("thresholds", ()),
        chosen=chosen,
        score_values=score_values(chosen) if chosen else (),
        findings=findings(data),
        steps=next_steps(data),
        compare=content.affinities_compared(data, drawn.planes),
        missing=missing_parts(data),
        stages=content.stage_rows(data),
        timeline=timeline(data.stages, time.time()),
        block_maps=[(stage, maps) for stage, maps in drawn.maps.items() if stage in grids],
        worst=worst_errors(data.scores),
        roi=_region(data.scores.get("roi")),
        methods=methods(data),
        citations=[reference.text() for reference in REFERENCES],
        versions=content.version_rows(data),
        commands="\n".join(s.last.command for s in data.stages if s.last and s.last.command),
        view_command=f"lsdflow view {data.folder}",
        state=json.dumps(data.viewer_state, indent=1) if data.viewer_state else "",
    )


def _region(roi: Mapping[str, Any] | None) -> str:
    return str(Box(tuple(roi["begin_vox"]), tuple(roi["shape_vox"]))) if roi else ""


def _stage_page(data: ReportData, record: StageRecord, drawn: _Drawn) -> str:
    panels = content.stage_panels(drawn.planes, record.stage)
    over_raw = any(panel.figure and panel.figure.kind == "labels" for _, row in panels for panel, _ in row)
    return _render(
        "stage.html.j2",
        data=data,
        record=record,
        problems=[problem for problem in data.problems if problem.stage == record.stage],
        tiles=content.stage_tiles(data, record),
        panels=panels,
        planes=drawn.planes if over_raw else (),
        trained=drawn.trained.get(record.stage),
        scene=drawn.scene if record.stage == "segment" else None,
        charts=_safe(drawn.charts.of_stage(record.stage)),
        maps=drawn.maps.get(record.stage, ()),
        runs=content.run_rows(record),
        command=record.last.command if record.last else "",
        result=content.result_rows(record),
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
    inlined = {"style": Markup(style), "script": Markup(script)}  # noqa: S704 - files of this package
    return _environment().get_template(template).render(policy=_policy(script), **inlined, **values)


def _safe(svgs: Sequence[str]) -> list[Markup]:
    return [Markup(svg) for svg in svgs]  # noqa: S704 - all texts in them are escaped already


def _policy(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    return f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
