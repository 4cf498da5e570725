"""Every error a user can meet, read from the sources: exit codes, classes, and the messages raised with each.

A message is the first argument of an error class where it is raised; what the program fills in is shown as an ellipsis.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tables import plain, table

from lsdflow_contract import errors

FILLED_IN = "…"
CLASSES = "stages/_contract/src/lsdflow_contract/errors.py"
NOT_A_STAGE = {
    "_contract": "all",
    "_command": "all",
    "_runtime": "stages of blocks",
    "_training": "trainings",
    "_importers": "trainings",
}
INTRODUCTION = f"""\
# Errors and exit codes

Made from the sources (`docs/generate/errors_page.py`): the codes are those of
`{CLASSES}`, the messages those that the code raises; `{FILLED_IN}` is
filled in when it happens. An error reports what is wrong, **where**, what was **wanted**, what was **found**, and
the **fix**; with `--json` the same as fields (`error`, `exit_code`, `what`, `where`, `wanted`, `found`, `fix`), with
`--debug` also the traceback.
Whole messages, for {{cases}} mistakes made on purpose: [what lsdflow says to bad input](bad_input.md).
Symptoms that are no errors: [troubleshooting](troubleshooting.md).
0 means: done, and verified.

"""


@dataclass(frozen=True)
class ErrorClass:
    """A class of errors: its exit code and what it means."""

    name: str
    code: int
    meaning: str
    is_special: bool

    @property
    def anchor(self) -> str:
        """Of its section: what a message can point to."""
        return self.name.lower() if self.is_special else f"exit-{self.code}"


@dataclass(frozen=True, order=True)
class Raised:
    """A message that is raised somewhere."""

    what: str
    error: str
    package: str
    fix: str


def text(repository: Path) -> str:
    """The page."""
    classes = error_classes()
    messages = sorted(set(raised_messages(repository, {c.name for c in classes})))
    cases = len(re.findall(r"\| \d+ \| ", (repository / "docs" / "bad_input.md").read_text(encoding="utf-8")))
    overview = table(
        ("exit code", "class", "means", "messages"),
        [
            (f"[{c.code}](#{c.anchor})", f"`{c.name}`", plain(c.meaning), str(sum(m.error == c.name for m in messages)))
            for c in classes
        ],
    )
    sections = [_section(c, [m for m in messages if m.error == c.name]) for c in classes]
    return INTRODUCTION.format(cases=cases) + overview + "".join(sections)


def error_classes() -> list[ErrorClass]:
    """The classes of the contract, by exit code."""
    found = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.StageError)]
    classes = [_class_of(kind) for kind in found if kind is not errors.StageError]
    return sorted(classes, key=lambda c: (c.code, c.is_special))


def _class_of(kind: type[errors.StageError]) -> ErrorClass:
    special = errors.StageError not in kind.__bases__
    return ErrorClass(kind.__name__, kind.exit_code, inspect.getdoc(kind) or "", special)


def raised_messages(repository: Path, names: set[str]) -> Iterator[Raised]:
    """Every call of an error class whose first argument is written there."""
    for path in sorted((repository / "stages").glob("*/src/**/*.py")):
        package = path.relative_to(repository / "stages").parts[0]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in names and node.args:
                what = _written(node.args[0])
                fixes = [_written(k.value) for k in node.keywords if k.arg == "fix"]
                if what.strip(FILLED_IN + " :"):
                    yield Raised(what, getattr(node.func, "id", ""), package, fixes[0] if fixes else "")


def _written(node: ast.expr) -> str:
    """A text as written in the source, an ellipsis for what is filled in; "" for what is no text."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(_written(part) if isinstance(part, ast.Constant) else FILLED_IN for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return (_written(node.left) or FILLED_IN) + (_written(node.right) or FILLED_IN)
    if isinstance(node, ast.IfExp):
        return " / ".join(filter(None, (_written(node.body), _written(node.orelse))))
    return ""


def _section(error: ErrorClass, messages: list[Raised]) -> str:
    head = f"\n## {error.code}: {error.name} {{#{error.anchor}}}\n\n{plain(error.meaning)}\n\n"
    if not messages:
        return head + "No message of its own in the sources.\n"
    rows = [(_anchored(m), plain(NOT_A_STAGE.get(m.package, m.package.lstrip("_"))), plain(m.fix)) for m in messages]
    return head + table(("message", "reported by", "fix"), rows)


def _anchored(message: Raised) -> str:
    name = re.sub(r"[^a-z0-9]+", "-", message.what.lower()).strip("-")[:60]
    return f'<span id="{message.error.lower()}-{name}"></span>{plain(message.what)}'
