"""A real browser for tests: Debian's Chromium, headless, with nothing to phone; commands of the other environments.

This environment (.venv/browser) holds playwright and nothing of lsdflow: what has to be made first, a test makes by the
commands of bin/ or by the Python of the block stages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Playwright, sync_playwright

REPOSITORY = Path(__file__).resolve().parents[2]
CHROMIUM = Path("/usr/bin/chromium")
QUIET = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
SOFTWARE_GL = ("--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader")


@dataclass
class Visit:
    """A page in the browser, with what it said on the console, and what it asked for, since it was opened."""

    page: Page
    console_errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def network_requests(self) -> list[str]:
        """The requests that are no files and no inline data."""
        return [url for url in self.requests if not url.startswith(("file:", "data:", "blob:"))]


@pytest.fixture(scope="session")
def playwright() -> Iterator[Playwright]:
    """What drives browsers: one of a process; a machine without Chromium fails (tests/browser/install_chromium.sh)."""
    assert CHROMIUM.is_file(), "no /usr/bin/chromium: run tests/browser/install_chromium.sh"
    with sync_playwright() as started:
        yield started


@pytest.fixture(scope="session")
def chromium(playwright: Playwright) -> Iterator[Browser]:
    """The browser, one for all tests of a process."""
    with launched(playwright, QUIET) as browser:
        yield browser


@pytest.fixture(scope="session")
def drawing_chromium(playwright: Playwright) -> Iterator[Browser]:
    """A browser that draws by WebGL, in software: viewers of volumes need it."""
    with launched(playwright, (*(flag for flag in QUIET if flag != "--disable-gpu"), *SOFTWARE_GL)) as browser:
        yield browser


@contextmanager
def launched(playwright: Playwright, flags: Sequence[str]) -> Iterator[Browser]:
    """Debian's Chromium with these flags."""
    browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=list(flags), chromium_sandbox=False)
    yield browser
    browser.close()


@contextmanager
def visiting(browser: Browser, **context: Any) -> Iterator[Visit]:
    """An empty page in a fresh context (`viewport`, `color_scheme` ...) that keeps its errors and requests."""
    with browser.new_context(**context) as opened:
        visit = Visit(opened.new_page())
        visit.page.on("console", lambda m: visit.console_errors.append(m.text) if m.type == "error" else None)
        visit.page.on("pageerror", lambda error: visit.console_errors.append(str(error)))
        visit.page.on("request", lambda request: visit.requests.append(request.url))
        yield visit


@pytest.fixture
def visit(chromium: Browser) -> Iterator[Visit]:
    """An empty page at desktop width."""
    with visiting(chromium, viewport={"width": 1280, "height": 900}) as found:
        yield found


@pytest.fixture(scope="module")
def drawing_visit(drawing_chromium: Browser) -> Iterator[Visit]:
    """An empty page of the browser that draws by WebGL, one for all tests of a file: a viewer takes long to load."""
    with visiting(drawing_chromium, viewport={"width": 1000, "height": 700}) as found:
        yield found


@pytest.fixture(scope="session")
def phone(chromium: Browser) -> Iterator[Visit]:
    """A page as wide as a phone, one for all tests."""
    with visiting(chromium, viewport={"width": 390, "height": 844}) as found:
        yield found


@pytest.fixture(scope="session")
def commands() -> Path:
    """The folder of the commands of this checkout."""
    return REPOSITORY / "bin"


@pytest.fixture(scope="session")
def blocks_python() -> Path:
    """The Python of the block stages, for a test that has to make an experiment."""
    return REPOSITORY / ".venv" / "blocks" / "bin" / "python"
