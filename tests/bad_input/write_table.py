"""Writes docs/bad_input.md: what is wrong, the command, the exit code, and the message, as the cases answer today."""

from __future__ import annotations

import logging
import re
import sys
import tempfile
from pathlib import Path

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parents[1]))

from bad_input.asking import REPOSITORY, without_paths
from bad_input.case import Case, answer_of
from bad_input.cases import SECTIONS
from bad_input.lab import Laboratory

TABLE = REPOSITORY / "docs" / "bad_input.md"
Rows = dict[str, str]
LONGEST_PART = 160
HEAD = """\
# What lsdflow says to bad input

Written from the tests: every row is a test on a real small experiment (`tests/bad_input`), which also checks that no
byte of the experiment was changed and that the answer took at most ten seconds. `lsdflow validate DIR` lists all
problems of an experiment at once; its exit code is that of the first. `DIR` is the folder of the experiment, `INPUT`
that of the source volumes; `stage validate` takes `--experiment DIR`.

| code | means |
|---|---|
| 2 | the command line is wrong |
| 65 | an input can be opened, but its content is wrong |
| 66 | an input does not exist |
| 69 | MongoDB does not respond |
| 70 | an error in lsdflow itself: please report it |
| 73 | the output was made by another experiment or run, or with other settings |
| 74 | reading or writing failed in the file system |
| 75 | stopped by a signal or time limit: run the command again to resume |
| 76 | incompatible versions, models or results |
| 77 | no permission |
| 78 | the experiment file is wrong |
| 79 | finished, but some blocks failed |
"""


def table_text(laboratory: Laboratory, known: Rows) -> str:
    """The page; `known` are answers that need not be asked for again."""
    parts = [HEAD]
    for title, cases in SECTIONS.items():
        parts.append(f"## {title}\n\n| what is wrong | command | code | message |\n|---|---|---|---|")
        parts[-1] += "".join(f"\n{_row(case, known.get(case.wrong) or _asked(case, laboratory))}" for case in cases)
    return "\n".join(parts) + "\n"


def _asked(case: Case, laboratory: Laboratory) -> str:
    answer, lab = answer_of(case, laboratory)
    return without_paths(answer.text, lab.root)


def _row(case: Case, text: str) -> str:
    where = ["DIR"] if case.command[0] == "lsdflow" else []
    more = [f'"{word}"' if " " in word else word for word in case.command[2:]]
    command = f"`{' '.join([*case.command[:2], *where, *more])}`"
    return f"| {_cell(case.wrong)} | {command} | {case.exit_code} | {_message(case, text)} |"


def _message(case: Case, text: str) -> str:
    """The first problem of the answer, its parts in one cell."""
    lines = [line for line in text.splitlines() if line.strip()]
    started = next((i for i, line in enumerate(lines) if re.match(r"(error|[a-z-]+): ", line)), 0)
    parts: list[str] = []
    for line in lines[started:]:
        named = re.match(r"\s*(where|wanted|found|fix): ", line)
        if parts and not named:
            break
        part = line.strip().removeprefix("error: ")
        parts.append(part if len(part) <= LONGEST_PART else part[:LONGEST_PART] + " ...")
    return "<br>".join(map(_cell, parts))


def _cell(text: str) -> str:
    """Text that a table of Markdown shows as it is."""
    return re.sub(r"([|*_`$\[\]<>\\])", r"\\\1", text).replace("\0", "\\0")


def main() -> None:
    """Write the page."""
    logging.getLogger().addHandler(logging.NullHandler())
    logging.getLogger().setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        text = table_text(Laboratory(Path(folder)), {})
    TABLE.parent.mkdir(exist_ok=True)
    TABLE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
