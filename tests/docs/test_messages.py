"""Every message of lsdflow that docs/troubleshooting.md quotes occurs in the sources."""

from __future__ import annotations

import ast
import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs" / "troubleshooting.md"
FAULTS = range(1, 28)


def _texts_of_the_sources() -> str:
    """Every text of the Python sources, one a line; what is written in pieces is joined, fields are ellipses."""
    texts = []
    for path in sorted((REPOSITORY / "stages").glob("*/src/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
            elif isinstance(node, ast.JoinedStr):
                parts = [str(p.value) if isinstance(p, ast.Constant) else "…" for p in node.values]
                texts.append("".join(parts))
    return "\n".join(texts)


def _quoted(page: str) -> list[str]:
    """Messages: words of a program in quotation marks."""
    return re.findall(r'`"([^`]+)"`', page)


def test_every_quoted_message_is_one_that_the_program_can_say() -> None:
    sources = _texts_of_the_sources()
    quotes = [quote for quote in _quoted(PAGE.read_text(encoding="utf-8")) if quote != "in quotation marks"]
    pieces = [piece.strip() for quote in quotes for piece in quote.split("…")]
    assert len(quotes) > 20
    assert [piece for piece in pieces if piece not in sources] == []


def test_every_fault_of_the_list_has_a_section_with_a_command_or_a_setting() -> None:
    page = PAGE.read_text(encoding="utf-8")
    sections = {int(n): text for n, text in re.findall(r"^## TRB-(\d\d): (.*?)(?=^## |\Z)", page, re.M | re.S)}
    assert sorted(sections) == list(FAULTS)
    assert [n for n, text in sections.items() if "`" not in text] == []
