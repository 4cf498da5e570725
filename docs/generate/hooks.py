"""Hooks of mkdocs: the pages of the site are the Markdown files of the repository, each at its path.

Every page keeps its path in the repository as its name within the site: links between files are right here and there.
Only their addresses are shorter: docs/your_own_data.md is your_own_data/, README.md the first page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = (
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/*.md", "stages/*/README.md", "benchmarks/*.md"),
    *("containers/README.md", "compose/README.md", "compose/experiments/*/README.md", "slurm_wrappers/README.md"),
    *(
        "slurm_wrappers/*/README.md",
        "tests/cluster/README.md",
        "tests/faults/README.md",
        "tests/faults/baselines/README.md",
    ),
    "stages/_contract/CHANGELOG.md",
)
PICTURES = ("docs/*.png", "docs/*/*.png", "docs/*/*.svg", "docs/*.css")
FIRST_PAGE = "README.md"
_LIST_ITEM = re.compile(r"\s{0,3}([-*+]|\d+\.)\s")
_FENCE = re.compile(r"\s*(```|~~~)")


def on_files(files: Files, config: Any) -> Files:
    """The generated pages (in docs_dir) and those of the repository."""
    for path in sorted(path for pattern in (*PAGES, *PICTURES) for path in REPOSITORY.glob(pattern)):
        files.append(File.generated(config, path.relative_to(REPOSITORY).as_posix(), abs_src_path=str(path)))
    for file in files:
        if address := _address(file.src_uri):
            file.dest_uri = address
    return files


def _address(src_uri: str) -> str:
    if src_uri == FIRST_PAGE:
        return "index.html"
    short = src_uri.removeprefix("docs/")
    if not src_uri.endswith(".md") or src_uri.endswith("README.md"):
        return short if short != src_uri else ""
    return short.removesuffix(".md").lower() + "/index.html"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Blank lines before lists, tables and code that follow a paragraph: mkdocs needs them, others do not.

    README.md has a picture with a width, in HTML, whose address mkdocs does not adapt.
    """
    markdown = markdown.replace('<img src="docs/', '<img src="')
    return "\n".join(_spaced(markdown.split("\n"))) + "\n"


def _spaced(lines: list[str]) -> Iterator[str]:
    fenced = False
    before = ""
    for line in lines:
        is_fence = bool(_FENCE.match(line))
        if before.strip() and not fenced and (is_fence or _begins(line, before)):
            yield ""
        yield line
        if is_fence and fenced:
            yield ""  # what follows a fence is a paragraph of its own
        fenced = fenced != is_fence
        before = "" if is_fence else line


def _begins(line: str, before: str) -> bool:
    """A list or table that begins in this line, right after a line of text."""
    in_list = _LIST_ITEM.match(before) or before.startswith("  ")
    if _LIST_ITEM.match(line):
        return not in_list
    return line.startswith("|") and not before.startswith("|")
