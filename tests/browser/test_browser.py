"""The browser of these tests sees what a page does wrong; without that, the other tests here could not fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def test_the_browser_reports_console_errors_and_requests_of_a_page(visit: Any, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text('<img src="http://127.0.0.1:9/no.png"><script>console.error("reported"); thrown()</script>')
    visit.page.goto(page.as_uri())
    assert visit.network_requests() == ["http://127.0.0.1:9/no.png"]
    assert any("reported" in text for text in visit.console_errors)
    assert any("thrown" in text for text in visit.console_errors)
