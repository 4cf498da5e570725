"""pip's settings on this machine, turned into a pip.conf for image builds.

Reads `pip config list` from standard input and prints the pip.conf. Only the settings that say where packages come
from are kept: others, such as `constraint`, name files of this machine that a build does not have. Local folders
(packages or indexes beside the machine's configured ones) cannot be seen from a build: each is linked under the served
folder and becomes an address of the bed's file server. Nothing is known beforehand about which indexes there are.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

INDEXES = {"index-url", "extra-index-url"}
FOLDERS = {"find-links"}
KEPT = INDEXES | FOLDERS | {"no-index", "trusted-host", "cert", "proxy", "timeout", "default-timeout", "retries"}


def settings(lines: Iterable[str]) -> dict[str, str]:
    """Key -> value from `pip config list`; the environment's (":env:") come over those of files."""
    found: dict[str, str] = {}
    ordered = sorted((line.strip() for line in lines if "=" in line), key=lambda line: line.startswith(":env:"))
    for line in ordered:
        key, _, value = line.partition("=")
        found[key.rpartition(".")[2]] = str(ast.literal_eval(value))
    return found


def for_images(found: dict[str, str], address: str, served: Path, certificates: str) -> dict[str, str]:
    """The same settings as a build needs them; makes the links under `served` that the file server needs."""
    out: dict[str, str] = {}
    local = False
    for key, value in ((key, value) for key, value in found.items() if key in KEPT):
        words = []
        for word in value.split():
            path = _local_folder(word) if key in INDEXES | FOLDERS else None
            if path is not None:
                # An index's pages link to files beside its folder, so its parent is what has to be served.
                _serve(path.parent if key in INDEXES else path, served)
                local = True
            words.append(word if path is None else f"{address}{path}")
        out[key] = certificates if key == "cert" else " ".join(words)
    if local:
        host = urlsplit(address).hostname or ""
        out["trusted-host"] = " ".join([*out.get("trusted-host", "").split(), host])
    return out


def _local_folder(word: str) -> Path | None:
    path = Path(urlsplit(word).path if word.startswith("file://") else word)
    return path if path.is_absolute() and path.is_dir() else None


def _serve(folder: Path, served: Path) -> None:
    link = served / folder.relative_to("/")
    if any(parent.is_symlink() for parent in (link, *link.parents)):
        return
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(folder)


def main() -> int:
    """Print the pip.conf."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address", help="of the file server, as builds see it")
    parser.add_argument("served", type=Path, help="folder that the file server shows")
    parser.add_argument("--certificates", required=True, help="path of the machine's certificates inside images")
    arguments = parser.parse_args()
    out = for_images(settings(sys.stdin), arguments.address, arguments.served, arguments.certificates)
    sys.stdout.write("[global]\n" + "".join(f"{key} = {value}\n" for key, value in sorted(out.items())))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
