"""The report in a real browser: finished, failing and empty experiments; desktop and phone, light and dark, on paper.

Pages are made once, by the Python of the block stages, from the small experiment of the tests of evaluate.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
KINDS = ("finished", "failing", "empty")
PHONE_PX = 390
LEAST_CONTRAST = 4.5
LARGEST_BYTES = 5 << 20

# Every text that is seen, against the colour behind it: backgrounds are laid over one another, from the page.
CONTRASTS = (HERE / "contrasts.js").read_text()

# Every text of the charts that are shown: whether it leaves its chart, and which other text of the chart it covers.
TEXTS_OF_CHARTS = """() => [...document.querySelectorAll('svg.chart')].flatMap((chart) => {
  const box = chart.getBoundingClientRect();
  const texts = [...chart.querySelectorAll('text')].filter((text) => text.textContent.trim());
  const rects = texts.map((text) => text.getBoundingClientRect());
  const before = (a, b) => a.right - 1 <= b.left || a.bottom - 2 <= b.top;
  const crosses = (a, b) => !before(a, b) && !before(b, a);
  return box.width === 0 ? [] : texts.map((text, i) => ({
    text: text.textContent,
    cut: rects[i].left < box.left - 1 || rects[i].right > box.right + 1
      || rects[i].top < box.top - 1 || rects[i].bottom > box.bottom + 1,
    overlaps: texts.filter((_, j) => j !== i && crosses(rects[i], rects[j])).map((other) => other.textContent).join(),
  }));
})"""


@pytest.fixture(scope="session")
def reports(tmp_path_factory: pytest.TempPathFactory, blocks_python: Path) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("reports")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [blocks_python, HERE / "make_reports.py", folder], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    return {kind: folder / kind / "report" for kind in KINDS}


@dataclass
class Seen:
    """What was seen of a page on a phone: its width, the contrasts of its texts by scheme, and what it asked for."""

    wide_px: int
    contrasts: dict[str, list[dict[str, Any]]]
    requests: list[str]
    errors: list[str]
    headings: int


@pytest.fixture(scope="session")
def seen(reports: dict[str, Path], phone: Any) -> dict[str, Seen]:
    """The page of every report, opened once on a phone."""
    found = {}
    for kind, report in reports.items():
        phone.requests.clear()
        phone.console_errors.clear()
        phone.page.goto((report / "index.html").as_uri())
        phone.page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        wide = phone.page.evaluate("document.documentElement.scrollWidth")
        contrasts = {}
        for scheme in ("light", "dark"):
            phone.page.emulate_media(color_scheme=scheme)
            contrasts[scheme] = phone.page.evaluate(CONTRASTS)
        headings = phone.page.locator("h1").count()
        found[kind] = Seen(wide, contrasts, list(phone.requests), list(phone.console_errors), headings)
    return found


def test_pages_say_no_error_and_ask_the_network_for_nothing(seen: dict[str, Seen]) -> None:
    assert set(seen) == set(KINDS)
    for name, page in seen.items():
        assert page.errors == [], name
        assert [url for url in page.requests if not url.startswith("data:")] == page.requests[:1], name
        assert page.requests[0].startswith("file:"), name
        assert page.headings == 1, name


def test_no_page_is_wider_than_a_phone(seen: dict[str, Seen]) -> None:
    assert {name: page.wide_px for name, page in seen.items() if page.wide_px > PHONE_PX} == {}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_has_the_contrast_that_people_need(scheme: str, seen: dict[str, Seen]) -> None:
    for name, page in seen.items():
        assert len(page.contrasts[scheme]) > 10, name
        low = [text for text in page.contrasts[scheme] if text["contrast"] < LEAST_CONTRAST]
        assert low == [], f"{name}: {low[:5]}"
    inks = {scheme: page.contrasts[scheme][0] for scheme in ("light", "dark")}
    assert inks["light"] != inks["dark"], "both schemes are the same"


def test_contrast_is_measured_as_wcag_defines_it(visit: Any) -> None:
    visit.page.set_content(
        "<body style='background:#fff'><p style='color:#767676'>just enough</p>"
        "<div style='background:rgba(0,0,0,.5)'><p style='color:#fff'>on half black</p></div>"
    )
    found = {text["text"]: round(text["contrast"], 2) for text in visit.page.evaluate(CONTRASTS)}
    assert found == {"just enough": 4.54, "on half black": 3.98}


def test_errors_come_first_and_are_text(reports: dict[str, Path], visit: Any) -> None:
    visit.page.goto((reports["failing"] / "index.html").as_uri())
    errors = visit.page.locator("main > section").first
    assert errors.get_attribute("id") == "errors"
    assert "the graph is <b>spoilt</b>" in errors.inner_text()
    assert "no affinities there" in errors.inner_text()
    failed = visit.page.locator("#stage-segment")
    assert failed.get_attribute("open") is not None
    assert "✗ 65: the graph is <b>spoilt</b>" in failed.inner_text()
    assert visit.page.locator("#stage-watershed").get_attribute("open") is None


def test_a_page_is_loaded_again_only_during_a_run(reports: dict[str, Path], visit: Any) -> None:
    found = {}
    for kind in KINDS:
        visit.page.goto((reports[kind] / "index.html").as_uri())
        found[kind] = visit.page.locator("meta[http-equiv=refresh]").count()
    assert found == {"finished": 0, "failing": 1, "empty": 0}


def test_the_block_map_distinguishes_done_failed_and_missing_blocks(reports: dict[str, Path], visit: Any) -> None:
    visit.page.goto((reports["failing"] / "index.html").as_uri())
    figure = visit.page.locator(".maps figure").filter(has_text="watershed")
    assert figure.locator("figcaption").inner_text() == "watershed: 60 done, 47 missing, 1 failed"
    assert figure.locator("img").evaluate("image => [image.naturalWidth, image.naturalHeight]") == [6, 6]


def test_pictures_are_there_and_have_words_for_those_who_do_not_see_them(reports: dict[str, Path], visit: Any) -> None:
    visit.page.goto((reports["finished"] / "index.html").as_uri())
    images = visit.page.locator("img")
    assert images.count() == 3 * 5 + 2  # planes x layers, the largest segments, the blocks of watershed
    for image in images.all():
        assert (image.get_attribute("alt") or "").strip()
        assert image.evaluate("image => image.complete && image.naturalWidth > 0")


def test_no_text_of_a_chart_is_cut_or_overlaps_another(reports: dict[str, Path], visit: Any) -> None:
    visit.page.goto((reports["finished"] / "index.html").as_uri())
    texts = visit.page.evaluate(TEXTS_OF_CHARTS)
    assert len(texts) > 40
    assert [text for text in texts if text["cut"] or text["overlaps"]] == []


def test_tabs_and_the_fading_of_labels_work(reports: dict[str, Path], visit: Any) -> None:
    visit.page.goto((reports["finished"] / "index.html").as_uri())
    assert visit.page.locator(".plane-z").is_visible()
    visit.page.get_by_text("y = ").first.click()
    assert visit.page.locator(".plane-y").is_visible()
    assert not visit.page.locator(".plane-z").is_visible()
    labels = visit.page.locator(".plane-y img.labels").first
    assert labels.evaluate("image => getComputedStyle(image).opacity") == "1"
    visit.page.locator("#fade").fill("0.5")
    assert labels.evaluate("image => getComputedStyle(image).opacity") == "0.5"


def test_on_paper_everything_is_open_and_nothing_is_cut(reports: dict[str, Path], visit: Any) -> None:
    visit.page.goto((reports["finished"] / "index.html").as_uri())
    visit.page.emulate_media(media="print")
    for plane in ("z", "y", "x"):
        assert visit.page.locator(f".plane-{plane}").is_visible()
    assert not visit.page.locator(".tabs").is_visible()
    assert visit.page.locator("#stage-watershed table").first.is_visible()
    assert len(visit.page.pdf()) > 10_000


def test_the_page_stays_small(reports: dict[str, Path]) -> None:
    assert (reports["finished"] / "index.html").stat().st_size < LARGEST_BYTES
