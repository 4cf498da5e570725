"""Every command, verb, argument and option, as the commands themselves say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tables import code, plain, table

INTRODUCTION = """\
# Commands

Every command with its verbs and options, asked of the commands themselves (`docs/generate/facts.py`). After
`make setup` they are in `bin/`; each stage's image has its own. All take `--help`. What exit codes mean:
[errors](errors.md).
"""
FIRST = "lsdflow"


def text(commands: Mapping[str, dict[str, Any]]) -> str:
    """The page."""
    names = sorted(commands, key=lambda name: (name != FIRST, name))
    return INTRODUCTION + "".join(part for name in names for part in _command(name, commands[name], 2))


def _command(name: str, about: dict[str, Any], level: int) -> Iterator[str]:
    yield f"\n{'#' * level} {name}\n\n"
    if about["help"]:
        yield plain(about["help"]) + "\n\n"
    words = [code(" ".join([name, *map(_argument, about["arguments"])]))] if about["arguments"] else []
    yield from (f"{line}\n\n" for line in words)
    if about["options"]:
        yield table(("option", "what", "type", "default"), map(_option, about["options"]))
    for verb, inner in about["commands"].items():
        yield from _command(f"{name} {verb}", inner, min(level + 1, 4))


def _argument(argument: Mapping[str, Any]) -> str:
    word = argument["name"].upper() + ("..." if argument["nargs"] == -1 else "")
    return word if argument["required"] else f"[{word}]"


def _option(option: Mapping[str, Any]) -> tuple[str, str, str, str]:
    names = ", ".join(map(code, option["names"]))
    kind = option["type"] + (", may be repeated" if option["repeated"] else "")
    default = "needed" if option["required"] else ""
    if not option["flag"] and option["default"] is not None:
        default = code(str(option["default"]))
    return names, plain(option["help"]), kind, default
