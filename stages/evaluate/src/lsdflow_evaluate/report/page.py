"""The page of the report: everything inline, nothing fetched, names escaped.

It forbids itself the network by a content security policy; its only script (the slider that fades the labels, the
copy buttons) is named there by its hash, so that no other script can run.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import logging
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from lsdflow_contract.citations import REFERENCES
from lsdflow_contract.files import write_atomically, write_json
from lsdflow_contract.geometry import Box
from lsdflow_evaluate.report import content
from lsdflow_evaluate.report.charts import draw_charts
from lsdflow_evaluate.report.data import ReportData
from lsdflow_evaluate.report.findings import findings, next_steps, worst_errors
from lsdflow_evaluate.report.words import methods

LOG = logging.getLogger("lsdflow.evaluate")


def write_page(folder: Path, data: ReportData) -> None:
    """Write index.html and neuroglancer.json, each by rename."""
    write_json(folder / "neuroglancer.json", data.viewer_state or {})
    page = render_page(data).encode()
    write_atomically(folder / "index.html", lambda file: file.write(page))
    LOG.info("report: %s", folder / "index.html")


def render_page(data: ReportData) -> str:
    """The page: complete on its own, in light and dark, for wide and narrow screens."""
    folder = files("lsdflow_evaluate.report")
    style, script = ((folder / name).read_text("utf-8") for name in ("page.css", "page.js"))
    planes = content.planes(data)
    scores = sorted(data.scores.get("thresholds", ()), key=lambda row: row != data.chosen_score)
    columns = content.score_columns(scores)
    template = _environment().get_template("page.html.j2")
    return template.render(
        style=Markup(style),  # noqa: S704 - a file of this package
        script=Markup(script),  # noqa: S704 - a file of this package
        policy=_policy(script),
        data=data,
        tiles=content.tiles(data),
        planes=planes,
        trained=[(snapshot, content.training_panels(snapshot)) for snapshot in data.trained],
        neurites=content.neurites_panel(data.neurites) if data.neurites else None,
        compared=content.compared_rows(data.compared),
        compared_panels=content.compared_panels(data.compared, planes[0] if planes else None),
        compared_columns=("threshold", *content.COMPARED_SCORES, "segments", "age"),
        charts=[Markup(svg) for svg in draw_charts(data)],  # noqa: S704 - all texts in them are escaped already
        columns=columns,
        scores=[(row, content.score_texts(row, columns)) for row in scores],
        findings=findings(data),
        steps=next_steps(data),
        compare=content.affinities_compared(data, planes),
        stages=content.stage_rows(data),
        block_maps=content.block_panels(data),
        worst=worst_errors(data.scores),
        roi=_region(data.scores.get("roi")),
        methods=methods(data),
        citations=[reference.text() for reference in REFERENCES],
        commands="\n".join(s.last.command for s in data.stages if s.last and s.last.command),
        view_command=f"lsdflow view {data.folder}",
        state=json.dumps(data.viewer_state, indent=1) if data.viewer_state else "",
    )


def _region(roi: Mapping[str, Any] | None) -> str:
    return str(Box(tuple(roi["begin_vox"]), tuple(roi["shape_vox"]))) if roi else ""


@functools.cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("lsdflow_evaluate", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _policy(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    return f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
