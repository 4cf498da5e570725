"""The report as one self-contained page of HTML: everything inline, nothing fetched, every name escaped.

The page forbids itself the network by a content security policy; its only script (the slider that fades the labels, the
copy button) is named there by its hash, so that no other script can run.
"""

from __future__ import annotations

import base64
import hashlib
import json
from importlib.resources import files

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from lsdflow_evaluate.report import content, numbers, wording
from lsdflow_evaluate.report.data import ReportData


def render_report(data: ReportData) -> str:
    """The page for `data`; complete on its own, in light and dark, for wide and narrow screens."""
    folder = files("lsdflow_evaluate.report")
    style, script = ((folder / name).read_text("utf-8") for name in ("page.css", "page.js"))
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string((folder / "page.html.j2").read_text("utf-8"))
    chosen = content.chosen_score(data)
    return template.render(
        data=data,
        policy=_policy(script),
        style=Markup(style),  # noqa: S704 - our own file
        script=Markup(script),  # noqa: S704 - our own file
        tiles=content.tiles(data),
        planes=content.planes(data),
        charts={name: [Markup(svg) for svg in svgs] for name, svgs in numbers.charts(data).items()},  # noqa: S704
        stages=numbers.stage_rows(data),
        missing=wording.missing_parts(data),
        methods=wording.methods(data),
        citations=wording.CITATIONS,
        score_values=numbers.score_values(chosen) if chosen else (),
        state=json.dumps(data.neuroglancer_state, indent=1) if data.neuroglancer_state else "",
    )


def _policy(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    return f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
