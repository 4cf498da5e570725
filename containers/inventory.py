"""What the locks of the stages hold, and which of it is known to be vulnerable.

inventory.py sbom TOOLS FOLDER [STAGE...]   FOLDER/<stage>[-tensorflow][-cpu|-cuda].cdx.json: CycloneDX of each lock;
                                            <stage>-lsds.cdx.json: the package lsds, which all images of a training have
inventory.py audit TOOLS                    asks a vulnerability service about every package of every lock

TOOLS is the environment of tools.lock. `audit` ends with 0 if nothing is known of any package, 1 if something is, 69 if
the service could not be asked about all of them (an answer about none is not an answer that none is vulnerable).
AUDIT_SERVICE: pypi (default), osv or esms.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from facts import BAD_DATA, ROOT, STAGES, USAGE, Refusal, exit_code_of, has_backends, known

VULNERABLE, NOT_ASKED = 1, 69
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.MULTILINE)


def locks_of(stage: str) -> list[Path]:
    """requirements.lock, or those for CPU and CUDA, those of tensorflow, and lsds. Refusal (2): no such stage."""
    stages = ROOT / "stages"
    found = sorted((stages / known(stage)).glob("*.lock"))
    if has_backends(stage):
        found += [*sorted((stages / "_tensorflow").glob("*.lock")), stages / "_training" / "lsds.lock"]
    return found


def variant_of(lock: Path) -> str:
    """The suffix of a lock's bill: -cpu, -tensorflow-cpu, -lsds, or nothing."""
    backend = "-tensorflow" if lock.parent.name == "_tensorflow" else ""
    return backend + ("" if lock.stem == "requirements" else f"-{lock.stem}")


def write_sboms(tools: Path, folder: Path, stages: list[str]) -> list[Path]:
    """One bill of materials per lock; the same lock gives the same file. Needs no network."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for stage in stages or STAGES:
        for lock in locks_of(stage):
            target = folder / f"{stage}{variant_of(lock)}.cdx.json"
            project = ROOT / "stages" / stage / "pyproject.toml"
            words = ["requirements", "--pyproject", project, "--output-reproducible", "--output-file", target, lock]
            done = _call(tools / "bin" / "cyclonedx-py", *words)
            if done.returncode != 0:
                raise Refusal(
                    BAD_DATA, f"no bill of materials of {lock.relative_to(ROOT)}\n   {_last_line(done.stderr)}"
                )
            written.append(target)
    return written


def pins_of_locks() -> dict[tuple[str, str], list[str]]:
    """(package, version) -> the locks that hold it; `+cpu` and the like are builds of one version."""
    pins: dict[tuple[str, str], list[str]] = defaultdict(list)
    for pattern in ("stages/*/*.lock", "tests/*.lock", "containers/*.lock"):
        for lock in sorted(ROOT.glob(pattern)):
            for name, version in _PIN.findall(lock.read_text()):
                pins[name.lower(), version.partition("+")[0]].append(str(lock.relative_to(ROOT)))
    return dict(pins)


def audit(tools: Path) -> tuple[int, list[str]]:
    """The exit code and the lines to print. Refusal (69) if the service does not answer."""
    pins = pins_of_locks()
    lines, skipped, vulnerable = [], [], 0
    for asked in _rounds(pins):
        for found in _ask_service(tools, asked):
            if "skip_reason" in found:
                skipped.append(found["name"])
                continue
            for fault in found["vulns"]:
                vulnerable += 1
                fixed_in = ", ".join(fault.get("fix_versions", [])) or "no version"
                where = ", ".join(pins.get((found["name"], found["version"]), []))
                lines.append(f"{found['name']} {found['version']}: {fault['id']}, fixed by {fixed_in} ({where})")
    lines.append(
        f"{len(pins)} packages, {len(skipped)} of them not known to {_service()}, {vulnerable} vulnerabilities"
    )
    if skipped:
        names = " ".join(sorted(skipped)) if len(skipped) < len(pins) else "any package (a mirror without advisories?)"
        lines.append(f"NOT AUDITED: {_service()} could be asked but has no answer about {names}")
    return VULNERABLE if vulnerable else NOT_ASKED if skipped else 0, lines


def _rounds(pins: dict[tuple[str, str], list[str]]) -> Iterator[list[str]]:
    """Every package once; pip-audit takes one version of a package at a time."""
    versions: dict[str, list[str]] = defaultdict(list)
    for name, version in sorted(pins):
        versions[name].append(version)
    for number in range(max(map(len, versions.values()), default=0)):
        yield [f"{name}=={found[number]}" for name, found in versions.items() if number < len(found)]


def _ask_service(tools: Path, requirements: list[str]) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder) / "packages.txt"
        listed.write_text("\n".join(requirements) + "\n")
        options = [
            "--disable-pip",
            "--no-deps",
            "--progress-spinner=off",
            "--format=json",
            f"--cache-dir={folder}/cache",
        ]
        done = _call(tools / "bin" / "pip-audit", *options, f"--vulnerability-service={_service()}", "-r", listed)
    try:
        return list(json.loads(done.stdout)["dependencies"])
    except (ValueError, KeyError) as error:
        raise Refusal(
            NOT_ASKED,
            f"not audited: the vulnerability service {_service()} could not be asked\n"
            f"   found: {_last_line(done.stderr)}\n"
            "   fix: run it where the service can be reached, or name another: AUDIT_SERVICE=pypi, osv or esms",
        ) from error


def _service() -> str:
    return os.environ.get("AUDIT_SERVICE") or "pypi"


def _call(*words: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    return subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False, env=environment)


def _last_line(text: str) -> str:
    return next(iter(text.strip().splitlines()[-1:]), "nothing")[:500]


def main(arguments: list[str]) -> int:
    """Entry point; returns the exit code."""
    code = 0
    match arguments:
        case ["sbom", tools, folder, *stages]:
            lines = [str(path) for path in write_sboms(Path(tools), Path(folder), stages)]
        case ["audit", tools]:
            code, lines = audit(Path(tools))
        case _:
            raise Refusal(USAGE, (__doc__ or "").strip())
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return code


if __name__ == "__main__":
    sys.exit(exit_code_of(main, sys.argv[1:]))
