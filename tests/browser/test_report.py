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
STAGES = ("prepare", "train-lsd", "train-acrlsd", "predict", "watershed", "agglomerate", "segment", "evaluate")
PHONE_PX = 390
LEAST_CONTRAST = 4.5
LARGEST_BYTES = 5 << 20

# Every text that is seen, against the colour behind it: backgrounds are laid over one another, from the page.
CONTRASTS = (HERE / "contrasts.js").read_text()

# The share of a picture that is not clear.
COVERED = """image => {
  const canvas = document.createElement('canvas');
  [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
  const context = canvas.getContext('2d');
  context.drawImage(image, 0, 0);
  const alphas = context.getImageData(0, 0, canvas.width, canvas.height).data.filter((_, i) => i % 4 === 3);
  return alphas.filter((a) => a > 127).length / alphas.length;
}"""

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


def _pages(report: Path) -> list[Path]:
    return [report / "index.html", *(report / f"{stage}.html" for stage in STAGES)]


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
    """Every page of every report, opened once on a phone."""
    found = {}
    for kind, report in reports.items():
        for page in _pages(report):
            phone.requests.clear()
            phone.console_errors.clear()
            phone.page.goto(page.as_uri())
            wide = phone.page.evaluate("document.documentElement.scrollWidth")
            phone.page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
            contrasts = {}
            for scheme in ("light", "dark"):
                phone.page.emulate_media(color_scheme=scheme)
                contrasts[scheme] = phone.page.evaluate(CONTRASTS)
            headings = phone.page.locator("h1").count()
            found[f"{kind}/{page.name}"] = Seen(
                wide, contrasts, list(phone.requests), list(phone.console_errors), headings
            )
    return found


def test_pages_say_no_error_and_ask_the_network_for_nothing(seen: dict[str, Seen]) -> None:
    assert len(seen) == len(KINDS) * (1 + len(STAGES))
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


def test_every_stage_is_reached_by_link_and_leads_back(reports: dict[str, Path], visit: Any) -> None:
    visit.page.goto((reports["empty"] / "index.html").as_uri())
    links = visit.page.locator("nav a").evaluate_all("links => links.map(a => a.getAttribute('href'))")
    assert links == ["index.html", *(f"{stage}.html" for stage in STAGES)]
    for stage in STAGES[::3]:
        visit.page.locator(f"nav a[href='{stage}.html']").click()
        assert visit.page.locator("h1").inner_text() == stage
        assert visit.page.locator("nav [aria-current]").inner_text().endswith(stage)
    visit.page.locator("nav").get_by_role("link", name="experiment").click()
    assert visit.page.url.endswith("/index.html")


def test_errors_come_first_and_are_text(reports: dict[str, Path], visit: Any) -> None:
    visit.page.goto((reports["failing"] / "index.html").as_uri())
    errors = visit.page.locator("main > section").first
    assert errors.get_attribute("id") == "errors"
    assert "the graph is <b>spoilt</b>" in errors.inner_text()
    assert "no affinities there" in errors.inner_text()
    visit.page.goto((reports["failing"] / "segment.html").as_uri())
    assert "✗ failed" in visit.page.locator("#summary").inner_text()
    assert "no affinities there" not in visit.page.locator("body").inner_text()


def test_a_page_is_loaded_again_only_during_a_run(reports: dict[str, Path], visit: Any) -> None:
    found = {}
    for kind in KINDS:
        visit.page.goto((reports[kind] / "index.html").as_uri())
        found[kind] = visit.page.locator("meta[http-equiv=refresh]").count()
    assert found == {"finished": 0, "failing": 1, "empty": 0}


def test_the_block_map_distinguishes_done_failed_and_missing_blocks(reports: dict[str, Path], visit: Any) -> None:
    visit.page.goto((reports["failing"] / "watershed.html").as_uri())
    content = visit.page.locator("#blocks").inner_text()
    for words in ("60 done", "1 failed", "47 missing"):
        assert words in content
    pictures = visit.page.locator("#blocks img")
    assert pictures.count() == 2
    assert pictures.first.evaluate("image => image.naturalWidth") > 100


def test_pictures_are_there_and_have_words_for_those_who_do_not_see_them(reports: dict[str, Path], visit: Any) -> None:
    visit.page.goto((reports["finished"] / "index.html").as_uri())
    images = visit.page.locator("img")
    assert images.count() >= 18 + 1
    for image in images.all():
        assert (image.get_attribute("alt") or "").strip()
        assert image.evaluate("image => image.complete && image.naturalWidth > 0")


def test_no_text_of_a_chart_is_cut_or_overlaps_another(reports: dict[str, Path], visit: Any) -> None:
    visit.page.goto((reports["finished"] / "index.html").as_uri())
    texts = visit.page.evaluate(TEXTS_OF_CHARTS)
    assert len(texts) > 40
    assert [text for text in texts if text["cut"] or text["overlaps"]] == []


def test_the_3_d_snapshot_shows_segments_in_the_colours_of_its_list(reports: dict[str, Path], visit: Any) -> None:
    visit.page.goto((reports["finished"] / "segment.html").as_uri())
    assert visit.page.locator(".snapshot tbody tr, .snapshot table > tr").count() >= 3
    share = visit.page.locator(".scene img").evaluate(COVERED)
    assert 0.2 < share < 0.95


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
    assert not visit.page.locator("nav").is_visible()
    assert visit.page.locator("#numbers details table").is_visible()
    assert len(visit.page.pdf()) > 10_000


def test_pages_stay_small(reports: dict[str, Path]) -> None:
    sizes = {page.name: page.stat().st_size for page in _pages(reports["finished"])}
    assert max(sizes.values()) < LARGEST_BYTES
