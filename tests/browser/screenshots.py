"""The pictures of the report in the docs, made from a real report by a real browser: `make screenshots DEMO=demo`.

screenshots.py REPORT_FOLDER OUT_FOLDER: OUT_FOLDER/report_*.png, and demo.png beside OUT_FOLDER
"""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

CHROMIUM = "/usr/bin/chromium"
LARGEST_BYTES = 300_000
# Fewer and fewer colours, until a picture is small enough.
COLOURS = (256, 128, 64, 32)


@dataclass(frozen=True)
class Shot:
    """One picture: how wide and high the window, and the part of the page (CSS), if one.

    most_high: pixels of the picture's height that are kept.
    """

    name: str
    size: tuple[int, int] = (1280, 900)
    part: str = ""
    most_high: int = 10_000


SHOTS = (
    Shot("../demo", (1040, 900), part=".plane-z", most_high=714),  # without the LSD error
    Shot("report_top", (1280, 1120)),
    Shot("report_compared", part="#compared"),
    Shot("report_stages", part="#stages"),
)


def main(report: Path, out: Path) -> None:
    """Make them all; print the parts that this report does not have."""
    out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--disable-gpu"], chromium_sandbox=False)
        for shot in SHOTS:
            taken = _taken(browser, report, shot)
            if taken is None:
                print(f"{shot.name}: this report has no {shot.part}")
                continue
            (out / f"{shot.name}.png").write_bytes(_small(taken, shot.most_high))
        browser.close()


def _taken(browser: Browser, report: Path, shot: Shot) -> bytes | None:
    width, height = shot.size
    with browser.new_context(viewport={"width": width, "height": height}) as context:
        page = context.new_page()
        page.goto((report / "index.html").resolve().as_uri())
        if not shot.part:
            return page.screenshot()
        found = page.locator(shot.part)
        return found.first.screenshot() if found.count() else None


def _small(picture: bytes, most_high: int) -> bytes:
    """The picture in as many colours as fit the size that docs can bear."""
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    image = image.crop((0, 0, image.width, min(image.height, most_high)))
    for colours in COLOURS:
        buffer = io.BytesIO()
        image.quantize(colours, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
        if buffer.tell() <= LARGEST_BYTES:
            break
    return buffer.getvalue()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
