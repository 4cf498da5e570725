"""The page: complete on its own, safe with any name, errors first, nothing left blank."""

from __future__ import annotations

import dataclasses
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from lsdflow_contract.manifest import Manifest, Writer
from lsdflow_evaluate.report.charts import draw_charts
from lsdflow_evaluate.report.content import score_columns, score_texts, stage_rows, tiles
from lsdflow_evaluate.report.data import (
    LossCurve,
    Neurites,
    Picture,
    Problem,
    ReportData,
    StageBlocks,
    StageRecord,
    StageRun,
)
from lsdflow_evaluate.report.page import render_page

HOSTILE = "\"'><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7 * 7 }}</style>"
KINDS = {"raw": "grey", "lsds": "colour", "affinities": "colour", "fragments": "labels", "segmentation": "labels"}


class _Page(HTMLParser):
    """All tags with their attributes, in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def all(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.tags if tag == name]


def _pictures() -> tuple[Picture, ...]:
    shapes = {"z": (12, 16), "y": (8, 16), "x": (8, 12)}
    made = []
    for axis, shape in shapes.items():
        for layer, kind in {**KINDS, "truth": "labels"}.items():
            image = np.ones((*shape, 3) if kind == "colour" else shape, np.uint64 if kind == "labels" else np.uint8)
            made.append(Picture(layer, kind, axis, 4, image, (10.0, 10.0)))  # type: ignore[arg-type]
    return tuple(made)


def _score(threshold: float, merge_function: str = "hist_quant_75") -> dict[str, Any]:
    """A row of scores.json."""
    voi = {"voi_split": 1.0, "voi_merge": 0.5, "voi": 1.5, "nvi_split": 0.2, "nvi_merge": 0.1}
    rand = {"rand_split": 0.9, "rand_merge": 0.8, "rand": 0.85, "adapted_rand_error": 0.3}
    return {"merge_function": merge_function, "threshold": threshold, "number_of_segments": 321, **voi, **rand}


def _scores(**changed: Any) -> dict[str, Any]:
    """scores.json with two thresholds, of which the second is chosen."""
    rows = [_score(0.3), _score(0.4)]
    settings = {"seed": "1"}
    return {**rows[1], "has_truth": True, "settings": settings, "thresholds": rows, **changed}


def _manifest(stage: str, version: str = "0.3.0", revision: str = "f00", **facts: Any) -> Manifest:
    writer = Writer(stage=stage, version=version, image_digest="sha256:abc", revision=revision)
    return Manifest(writer=writer, key="k", config={}, inputs={}, outputs={}, facts=facts, identity="cafe")


def _split(number: Any) -> dict[str, Any]:
    part = {"segment": 1, "truth": number, "voxels": 10}
    return {"kind": "split", "id": number, "voxels": 20, "bits": 0.5, "parts": 2, "first": part, "second": part}


def _full() -> ReportData:
    iterations = np.arange(0, 1000, 10)
    luts = tuple(
        {"merge_function": "hist_quant_75", "threshold": t, "segments": n} for t, n in ((0.3, 400), (0.4, 321))
    )
    sizes = {"size_edges_vox": [1, 10, 100], "size_segments": [3, 4]}
    return ReportData(
        "demo",
        "2026-01-01",
        scores=_scores(),
        luts=luts,
        pictures=_pictures(),
        losses=(LossCurve("train-lsd", iterations, {"training": 1.0 / (1 + iterations)}),),
        blocks={"watershed": StageBlocks(3, 1, 4, np.array([1.0, 2.0, 3.0]))},
        stages=(StageRecord("watershed", "failed"), StageRecord("segment", "not started")),
        manifests={"watershed": _manifest("watershed", seconds=75.0), "segment": _manifest("segment", **sizes)},
        voxel_size_nm=(40.0, 8.1, 8.1),
        shape_vox=(8, 12, 16),
        viewer_state={"layers": [{"source": "zarr://http://127.0.0.1:9000/raw"}]},
    )


def test_the_page_loads_nothing_from_anywhere() -> None:
    html = render_page(_full())
    page = _Page(html)
    assert not page.all("link")
    assert not page.all("iframe")
    for tag, attributes in page.tags:
        for name in ("src", "href", "srcset", "data", "action"):
            assert (attributes.get(name) or "data:").startswith("data:"), (tag, name)
    assert all(address.startswith("data:image/png;base64,") for address in re.findall(r"url\(([^)]*)\)", html))
    assert "@import" not in html


def test_the_page_forbids_the_network_and_all_scripts_but_its_own() -> None:
    policy = next(m["content"] for m in _Page(render_page(_full())).all("meta") if m.get("http-equiv")) or ""
    assert "default-src 'none'" in policy
    assert "script-src 'sha256-" in policy
    assert "http" not in policy


def test_every_layer_has_a_picture_in_every_plane() -> None:
    alts = [image["alt"] or "" for image in _Page(render_page(_full())).all("img")]
    for layer in ("Raw", "LSDs", "Affinities", "Fragments", "Segmentation", "Truth"):
        for plane in ("xy", "xz", "yz"):
            assert sum(alt.startswith(f"{layer}, {plane} plane") for alt in alts) == 1


def test_scale_bars_have_the_share_of_the_picture_that_they_name() -> None:
    html = render_page(_full())
    found = re.findall(r'class="bar-box" style="width: ([\d.]+)%"><i></i><b>(\d+) nm</b>', html)
    assert len(found) == 18
    widths_nm = {round(100.0 * float(length) / float(percent)) for percent, length in found}
    assert widths_nm == {160, 120}


def test_hostile_names_are_escaped_wherever_they_come_from() -> None:
    full = _full()
    advice = {"threshold": 0.4, "method": HOSTILE, "reason": HOSTILE}
    data = dataclasses.replace(
        full,
        experiment=HOSTILE,
        created=HOSTILE,
        scores=_scores(
            **_score(0.4, HOSTILE),
            thresholds=[_score(0.4, HOSTILE)],
            settings={HOSTILE: HOSTILE},
            reason=HOSTILE,
            worst=[_split(HOSTILE)],
        ),
        viewer_url=HOSTILE,
        viewer_state={"name": HOSTILE},
        problems=(Problem(HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE),),
        luts=({"merge_function": HOSTILE, "threshold": 0.4, "segments": 3},),
        losses=(LossCurve(HOSTILE, np.arange(3), {HOSTILE: np.ones(3)}),),
        blocks={HOSTILE: StageBlocks(3, 0, 3, np.ones(3))},
        stages=(StageRecord(HOSTILE, "failed", settings=((HOSTILE, HOSTILE),), log=HOSTILE, log_path=HOSTILE),),
        manifests={HOSTILE: _manifest(HOSTILE, HOSTILE, HOSTILE), "segment": _manifest("segment", advice=advice)},
        neurites=Neurites(full.pictures[1], (1,), (1e9,), HOSTILE),
    )
    page, plain = _Page(render_page(data)), _Page(render_page(full))
    assert len(page.all("script")) == len(plain.all("script")) == 1
    assert not [a for _, attributes in page.tags for a in attributes if a.startswith("on")]
    assert len(page.all("img")) == 18 + 1
    assert "49" not in re.findall(r"<h1>(.*?)</h1>", render_page(data), re.DOTALL)[0]


def test_problems_come_before_everything_else() -> None:
    problem = Problem("watershed", "2 blocks failed", "runs/x", "all done", "out of memory", "give it more memory")
    html = render_page(dataclasses.replace(_full(), problems=(problem,)))
    assert html.index('id="errors"') < html.index('id="summary"') < html.index('id="pictures"')
    for text in ("2 blocks failed", "runs/x", "all done", "out of memory", "give it more memory"):
        assert text in html
    assert 'id="errors"' not in render_page(_full())


def test_a_report_of_nothing_says_what_is_missing() -> None:
    html = render_page(ReportData("empty", "2026-01-01"))
    for sentence in (
        "There are no pictures",
        "There are no scores: no truth was given.",
        "Nothing is known of any stage.",
        "There is no viewer state",
        "Nothing is recorded",
        "No segmentation was made yet.",
    ):
        assert sentence in html


def test_a_layer_that_is_still_to_come_has_a_placeholder_and_one_that_need_not_exist_has_none() -> None:
    for layer, placeholders in (("segmentation", 3), ("lsds", 0), ("truth", 0)):
        data = dataclasses.replace(_full(), pictures=tuple(p for p in _pictures() if p.layer != layer))
        assert render_page(data).count("No picture: ") == placeholders, layer


@pytest.mark.parametrize(("limit", "text"), [(2.0, "✓ passed, &lt; 2"), (1.5, "✗ failed, not &lt; 1.5")])
def test_success_is_in_words_and_not_in_colour_alone(limit: float, text: str) -> None:
    html = render_page(dataclasses.replace(_full(), voi_limit=limit))
    assert text in html
    assert ("✓ passed" in html) != ("✗ failed, not" in html)


def test_the_summary_carries_the_numbers_of_the_chosen_threshold() -> None:
    html = render_page(_full())
    summary = html[html.index('id="summary"') : html.index('id="pictures"')].replace("\u200b", "")
    for text in (
        "1.500",
        "1.000 + 0.500 bits",
        "321",
        "0.4",
        "hist_quant_75",
        "8\u00d712\u00d716",
        "40 \u00d7 8.1 \u00d7 8.1 nm",
        "1 min 15 s",
    ):
        assert text in summary


def test_every_score_of_a_threshold_is_in_the_column_of_its_name() -> None:
    runs = {"expected_run_length_nm": 2500.0, "normalized_erl": 0.5}
    rows = [_score(0.3), {**_score(0.4), **runs}]
    columns = score_columns(rows)
    assert dict(zip(columns, score_texts(rows[1], columns), strict=True)) == {
        "VOI split": "1.0000",
        "VOI merge": "0.5000",
        "VOI": "1.5000",
        "adapted Rand": "0.3000",
        "Rand split": "0.9000",
        "Rand merge": "0.8000",
        "ERL µm": "2.50",
        "norm. ERL": "0.5000",
        "segments": "321",
    }
    assert score_texts(rows[0], ["ERL µm"]) == ["–"]
    assert "ERL µm" not in score_columns(rows[:1])


def test_every_curve_of_quality_shows_its_own_values() -> None:
    voi, rand = draw_charts(_full())[:2]
    for title in ("split: 1 at 0.3", "merge: 0.5 at 0.3", "sum: 1.5 at 0.3"):
        assert f"<title>{title}</title>" in voi
    for title in ("split: 0.9 at 0.3", "merge: 0.8 at 0.3", "adapted error: 0.3 at 0.3"):
        assert f"<title>{title}</title>" in rand


@pytest.mark.parametrize(("limit", "state"), [(2.0, "good"), (1.5, "bad")])
def test_the_tile_of_the_voi_has_the_style_of_its_verdict(limit: float, state: str) -> None:
    assert tiles(dataclasses.replace(_full(), voi_limit=limit))[0].state == state


def test_blocks_of_a_stage_are_counted_of_all_that_were_planned() -> None:
    row = next(row for row in stage_rows(_full()) if row["record"].stage == "watershed")
    assert (row["work"], row["failed"], row["block_time"]) == ("3 of 4 blocks", 1, "2 s · 95 %: 2.9 s")


def test_runs_result_settings_and_log_of_a_stage_are_on_the_page_and_open_where_it_failed() -> None:
    run = StageRun("watershed", "r", 1.7e9, 9.0, 65, "out of memory", "node-7", "4711", "watershed run -e x")
    record = StageRecord("watershed", "failed", (run,), settings=(("size", "3"),), log="the last line")
    html = render_page(dataclasses.replace(_full(), stages=(record, StageRecord("segment", "not started"))))
    details = html[html.index('<details id="stage-watershed" open>') :].split("</details>")[0]
    for text in ("2023-11-14 22:13:20 UTC", "9 s", "✗ 65: out of memory", "node-7 job 4711", "size", "the last line"):
        assert text in details
    assert "watershed run -e x" in html
    assert "stage-segment" not in html


def test_failed_blocks_are_named_in_the_table_of_stages() -> None:
    html = render_page(_full())
    assert "3 of 4 blocks" in html
    assert "1 failed" in html
    assert "0.3.0" in html


def test_the_methods_name_the_papers_and_the_software() -> None:
    html = render_page(_full())
    for text in (
        "s41592-022-01711-z",
        "TPAMI.2018.2835450",
        "gunpowder",
        "daisy",
        "waterz",
        "merge function hist_quant_75",
    ):
        assert text in html


def test_light_and_dark_and_narrow_screens_are_provided_for() -> None:
    html = render_page(_full())
    assert "prefers-color-scheme: dark" in html
    assert "width=device-width" in html
    assert "max-width: 560px" in html
