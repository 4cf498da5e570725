"""Writes the pages of the site that come from the code: configuration, commands, errors.

Usage: pages.py FOLDER FACTS.json...    (facts.py makes the facts, one file an environment)
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import commands_page
import configuration_page
import errors_page

REPOSITORY = Path(__file__).resolve().parents[2]


def main(arguments: list[str]) -> None:
    """Write the pages into the folder."""
    folder, *files = map(Path, arguments)
    facts = joined([json.loads(file.read_text(encoding="utf-8")) for file in files])
    for name, text in pages(facts).items():
        (folder / name).write_text(text, encoding="utf-8")


def joined(environments: list[dict[str, Any]]) -> dict[str, Any]:
    """Facts of several environments as those of one."""
    kinds = environments[0]
    return {kind: {name: about for facts in environments for name, about in facts[kind].items()} for kind in kinds}


def pages(facts: dict[str, Any]) -> dict[str, str]:
    """Text by file name."""
    return {
        "configuration.md": configuration_page.text(facts["tables"], facts["profiles"]),
        "commands.md": commands_page.text(facts["commands"]),
        "errors.md": errors_page.text(REPOSITORY),
    }


if __name__ == "__main__":
    main(sys.argv[1:])
