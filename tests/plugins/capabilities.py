"""Which capabilities of docs/capabilities.md a test proves; as a program, the table of those that no test proves.

Test files are read and not imported: no environment is needed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs" / "capabilities.md"
_ROW = re.compile(r"^\| ([A-Z]{3}-\d\d) \| (.*) \|$", re.MULTILINE)


def listed(page: Path = PAGE) -> dict[str, str]:
    """Return the capabilities of the page: by ID what each one is."""
    return dict(_ROW.findall(page.read_text(encoding="utf-8")))


def proofs(tests: Path = REPOSITORY / "tests") -> dict[str, list[str]]:
    """Return by ID the tests (FILE::NAME, or FILE for a mark of the whole file) that are marked with `proves`."""
    found: dict[str, list[str]] = {}
    for path in sorted(tests.rglob("test_*.py")):
        for name, node in _marked(ast.parse(path.read_text(encoding="utf-8"))):
            for call in (c for c in ast.walk(node) if isinstance(c, ast.Call)):
                if ast.unparse(call.func) == "pytest.mark.proves":
                    for word in call.args:
                        found.setdefault(ast.literal_eval(word), []).append(f"{path.relative_to(tests)}{name}")
    return found


def _marked(module: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Yield where marks stand: decorators of tests, and the `pytestmark` of the file."""
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield from ((f"::{node.name}", decorator) for decorator in node.decorator_list)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            yield "", node.value


def table() -> str:
    """Return the capabilities without a test, and how many have one."""
    wanted, proven = listed(), proofs()
    rows = [f"{name}  {what}" for name, what in wanted.items() if name not in proven]
    return "\n".join([*rows, f"{len(wanted) - len(rows)} of {len(wanted)} have a test; the {len(rows)} above do not"])


if __name__ == "__main__":
    print(table())
