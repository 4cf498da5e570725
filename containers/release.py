"""A release of this checkout: checks it, then tags the commit. `make release` calls it.

1. Everything is committed.
2. What differs from the last release (the newest tag v<number>) has another version than it had there: every package of
   stages/, and every stage of which any content of its image differs.
3. CHANGELOG.md of each package with a new version, and that of the whole, start with that version.
4. The tags: v<version of stages/_launch> for the whole, <stage>-v<version> for every stage with a new version.

--dry-run prints the tags and makes none. The tags are pushed by hand; .github/workflows/publish.yml does the rest.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from facts import REFUSED, ROOT, STAGES, USAGE, Refusal, content_of, exit_code_of, version_of

FRONT = "_launch"


def tags_of_release() -> list[str]:
    """The tags that this commit gets. Refusal (73): it cannot be released, with every reason."""
    if changed := _git("status", "--porcelain").splitlines():
        raise Refusal(REFUSED, f"a release is a commit; not committed: {', '.join(line[3:] for line in changed)}")
    last = _git("describe", "--tags", "--abbrev=0", "--match=v[0-9]*", check=False).strip()
    packages = sorted(path.parent.name for path in ROOT.glob("stages/*/pyproject.toml"))
    new = [package for package in packages if version_of(package) != _version_at(last, package)]
    problems = [
        f"stages/{package}: changed since {last}, with the same version {version_of(package)}: {', '.join(files)}"
        for package in packages
        if package not in new and (files := _changed_since(last, package))
    ]
    changelogs = {ROOT / "stages" / package / "CHANGELOG.md": package for package in new}
    for path, package in {ROOT / "CHANGELOG.md": FRONT, **changelogs}.items():
        if (first := _first_version(path)) != version_of(package):
            wanted = f"## {version_of(package)}"
            problems.append(f"{path.relative_to(ROOT)}: its first section is of {first}, wanted: {wanted}")
    if FRONT not in new:
        problems.append(f"stages/{FRONT}: {last} is released; raise this version, which is that of the whole")
    if problems:
        raise Refusal(REFUSED, "not ready for a release\n   " + "\n   ".join(problems))
    return [f"v{version_of(FRONT)}", *(f"{s}-v{version_of(s)}" for s in STAGES if s in new)]


def _version_at(tag: str, package: str) -> str:
    """The version of a package in a release; empty if there was no release, or no such package."""
    text = _git("show", f"{tag}:stages/{package}/pyproject.toml", check=False) if tag else ""
    return str(tomllib.loads(text)["project"]["version"]) if text else ""


def _changed_since(tag: str, package: str) -> list[str]:
    content = content_of(package) if package in STAGES else [f"stages/{package}"]
    return _git("diff", "--name-only", tag, "HEAD", "--", *content).split()


def _first_version(changelog: Path) -> str:
    """The version of the first section: `## 0.2.0`, with or without words in brackets behind it."""
    found = re.search(r"^## (.*)$", changelog.read_text(encoding="utf-8"), re.MULTILINE)
    number = found and re.fullmatch(r"(\d+\.\d+\.\d+)( \((?!not released).*\))?", found[1])
    return number[1] if number else found[1] if found else "no version"


def _git(*words: str, check: bool = True) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        raise Refusal(REFUSED, f"git {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout if done.returncode == 0 else ""


def main(words: list[str]) -> int:
    """Entry point; returns the exit code."""
    if words not in ([], ["--dry-run"]):
        raise Refusal(USAGE, (__doc__ or "").strip())
    for tag in tags_of_release():
        if not words:
            _git("tag", "--annotate", tag, "--message", tag)
        sys.stdout.write(f"{tag}\n")
    return 0


if __name__ == "__main__":
    sys.exit(exit_code_of(main, sys.argv[1:]))
