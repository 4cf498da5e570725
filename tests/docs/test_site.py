"""The site that `make docs` built: whole, on its own, and with every key, code and page of the repository.

Broken links and anchors, and pages of the navigation that are not there, end the build itself (mkdocs --strict).
"""

from __future__ import annotations

import importlib
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from lsdflow_contract import errors
from lsdflow_watershed.config import WatershedConfig

REPOSITORY = Path(__file__).resolve().parents[2]
SITE = REPOSITORY / "site"
LOADED_BY = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}


class _Loaded(HTMLParser):
    """Addresses that a browser fetches for a page, and the names of its anchors."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if "id" in values:
            self.anchors.add(values["id"] or "")
        if (key := LOADED_BY.get(tag)) and values.get("rel") not in ("canonical", "next", "prev"):
            self.addresses.append(values.get(key) or "")


def _page(path: str) -> _Loaded:
    page = _Loaded()
    page.feed((SITE / path / "index.html").read_text(encoding="utf-8"))
    return page


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    assert (SITE / "index.html").is_file(), "make docs builds the site"


def test_no_page_loads_anything_from_the_network() -> None:
    fetched = {}
    for file in SITE.rglob("*.html"):
        page = _Loaded()
        page.feed(file.read_text(encoding="utf-8"))
        if outside := [a for a in page.addresses if re.match(r"(https?:)?//", a)]:
            fetched[str(file)] = outside
    assert fetched == {}
    styles = "".join(file.read_text(encoding="utf-8") for file in SITE.rglob("*.css"))
    assert re.findall(r"(?:@import|url\()\s*['\"]?(?:https?:)?//[^)'\"]*", styles) == []


def test_every_picture_of_the_first_page_is_in_the_site() -> None:
    pictures = [a for a in _page("").addresses if a.endswith((".png", ".svg"))]
    assert "demo.png" in [Path(picture).name for picture in pictures]
    assert [picture for picture in pictures if not (SITE / picture).is_file()] == []


def test_the_readme_is_short() -> None:
    lines = (REPOSITORY / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) < 120
    assert [line for line in lines if len(line) >= 120] == []


def test_the_readme_says_that_nothing_is_published_as_long_as_that_is_true() -> None:
    published = (REPOSITORY / "containers" / "published.tsv").read_text(encoding="utf-8").splitlines()[1:]
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert ("nothing is published yet" in readme) == (not published)


def test_the_configuration_page_has_every_key_of_a_table_as_an_anchor() -> None:
    anchors = _page("configuration").anchors
    keys = {f"watershed.{key}" for key in WatershedConfig.model_fields}
    assert keys <= anchors
    assert {"store.engine", "train-acrlsd.max_iteration", "prepare.training.raw", "cluster.images"} <= anchors


def test_every_exit_code_has_a_section_that_messages_can_point_to() -> None:
    codes = {c.exit_code for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.StageError)}
    anchors = _page("errors").anchors
    assert {f"exit-{code}" for code in codes} <= anchors


def test_every_page_of_docs_is_in_the_navigation() -> None:
    navigation = (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8")
    missing = [p.name for p in (REPOSITORY / "docs").glob("*.md") if f"docs/{p.name}" not in navigation]
    assert missing == []


def test_the_drawings_are_those_that_their_program_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(REPOSITORY / "docs" / "generate"))
    drawings = importlib.import_module("drawings")
    kept = {path.stem: path.read_text(encoding="utf-8") for path in (REPOSITORY / "docs" / "drawings").glob("*.svg")}
    assert kept == {name: draw() for name, draw in drawings.DRAWINGS.items()}
