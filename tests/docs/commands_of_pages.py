"""The commands of pages: lines of fenced blocks without a language (or bash), and lsdflow commands in running text.

Blocks of `text`, `toml`, `python`, ... are none. A line is taken apart into simple commands; comments and prompts go.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
LANGUAGES = ("", "bash", "sh")
PAGES = (
    *("README.md", "CONTRIBUTING.md", "docs/*.md", "slurm_wrappers/README.md", "slurm_wrappers/*/README.md"),
    *("stages/*/README.md", "containers/README.md", "compose/README.md"),
)
# made by programs, from commands that they have run
GENERATED = ("docs/bad_input.md", "docs/fault_baselines.md", "docs/fault_release.md")
LSDFLOW = re.compile(r"^(bin/[a-z-]+|lsdflow|make) \S")
PROGRAMS = re.compile(r"(bin/|\.venv/\w+/bin/|(make|torchrun|lsdflow|prepare|train-lsd|train-acrlsd|predict|segment) )")
_INDENTED = re.compile(r"(?:^    \S.*\n?)+", re.MULTILINE)
_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"(^|\s+)#(\s.*)?$")
_ASSIGNMENT = re.compile(r"^[A-Z_]+=")
_SEPARATORS = frozenset({"&&", "||", ";", "|", "(", ")", "&", "<", ">", ">>"})


@dataclass(frozen=True)
class Command:
    """A simple command of a page: its words without variables before it, and its line."""

    page: str
    line: str
    words: tuple[str, ...]

    @property
    def program(self) -> str:
        """The name without its folder, for programs of lsdflow: bin/lsdflow is lsdflow."""
        word = self.words[0]
        return Path(word).name if re.match(r"(\$PWD/)?(bin|\.venv/\w+/bin)/", word) else word

    def __str__(self) -> str:
        return f"{self.page}: {' '.join(self.words)}"


def pages() -> list[Path]:
    """The pages, by name."""
    found = {path for pattern in PAGES for path in REPOSITORY.glob(pattern)}
    return sorted(path for path in found if path.relative_to(REPOSITORY).as_posix() not in GENERATED)


def commands() -> list[Command]:
    """The commands of all pages."""
    return [command for page in pages() for command in commands_of(page)]


def commands_of(page: Path) -> Iterator[Command]:
    """Commands of a page's fenced blocks, then those in its running text."""
    name, text = page.relative_to(REPOSITORY).as_posix(), page.read_text(encoding="utf-8")
    for line in shell_lines(text):
        yield from _simple_commands(name, line)
    for span in re.findall(r"`([^`\n]+)`", _FENCE.sub("", text)):
        if LSDFLOW.match(span) and "…" not in span and "..." not in span:
            yield from _simple_commands(name, span)


def shell_lines(text: str) -> Iterator[str]:
    """Lines of fenced and indented blocks that hold commands; those that end in a backslash continue in the next."""
    blocks = [block for language, block in _FENCE.findall(text) if language in LANGUAGES]
    blocks += [block for block in _INDENTED.findall(_FENCE.sub("", text)) if PROGRAMS.match(block.strip())]
    for block in blocks:
        for line in re.sub(r"\\\n\s*", "", block).splitlines():
            if command := _COMMENT.sub("", line).strip():
                yield command


def _simple_commands(page: str, line: str) -> Iterator[Command]:
    # of a synopsis: [--option VALUE] may be given, a|b is a choice
    plain = re.sub(r"(?<=\w)\|(?=\w)", "/", re.sub(r"\[(-.*?|[A-Z]+.*?)\]", r"\1", line)).replace(" ...", "")
    lexer = shlex.shlex(plain, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        found = list(lexer)
    except ValueError:
        found = [line]  # no line of a shell: an unknown command, which the test reports
    words: list[str] = []
    skipped = False
    for word in [*found, ";"]:
        if word in _SEPARATORS:
            if words and not skipped:
                yield Command(page, line, tuple(words))
            skipped = word in {"<", ">", ">>"}
            words = []
        elif words or not _ASSIGNMENT.match(word):
            words.append(word)
