"""The documentation site in a real browser: asks for nothing but itself, searches, fits a phone, light and dark."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

SITE = Path(__file__).resolve().parents[2] / "site"
PAGES = ("", "how_it_works/", "configuration/", "troubleshooting/", "errors/")
DESKTOP, PHONE = {"width": 1400, "height": 900}, {"width": 390, "height": 800}


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    assert (SITE / "index.html").is_file(), "make docs builds the site"
    handler = functools.partial(_Quiet, directory=str(SITE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


@pytest.mark.parametrize(("viewport", "scheme"), [(DESKTOP, "light"), (PHONE, "dark")])
def test_pages_ask_for_nothing_but_the_site_and_are_no_wider_than_the_screen(
    chromium: Browser, address: str, viewport: dict[str, int], scheme: str
) -> None:
    errors: list[str] = []
    asked: list[str] = []
    with chromium.new_context(viewport=viewport, color_scheme=scheme) as context:
        page = context.new_page()
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("request", lambda request: asked.append(request.url))
        for name in PAGES:
            page.goto(address + name)
            expect(page.locator("h1")).to_be_visible()
            assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"], name
        active = page.locator("body").get_attribute("data-md-color-scheme")
    assert active == {"light": "default", "dark": "slate"}[scheme]
    assert errors == []
    assert len(asked) > len(PAGES)
    assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []


@pytest.fixture
def desktop(chromium: Browser) -> Iterator[Page]:
    with chromium.new_context(viewport=DESKTOP) as context:
        yield context.new_page()


def test_the_search_finds_a_key_of_the_configuration(desktop: Page, address: str) -> None:
    desktop.goto(address + "?q=min_seed_distance_vox")
    found = desktop.locator(".md-search-result__link")
    expect(found.first).to_be_visible(timeout=20_000)
    assert any("configuration" in (link.get_attribute("href") or "") for link in found.all())


def test_a_link_to_a_key_goes_to_its_row(desktop: Page, address: str) -> None:
    desktop.goto(address + "configuration/#watershed.context")
    row = desktop.locator("td", has=desktop.locator('[id="watershed.context"]'))
    expect(row).to_be_in_viewport(timeout=10_000)
