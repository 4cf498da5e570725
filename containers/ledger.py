"""containers/published.tsv: what was published, one line per stage and version, added at the end and never changed.

ledger.py may-build STAGE              refuses (73) to build a published version from other content
ledger.py publish STAGE REGISTRY       pushes lsdflow/STAGE:VERSION and adds its line; refuses (73) if it has one
ledger.py check                        is the ledger well formed, and are its lines those of the last commit and more?

The content of an image (facts.py) may not change under a version that people pin.
The variants of a stage (TORCH, BACKEND: facts.py) have versions of their own.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from dataclasses import astuple, dataclass, fields

from facts import (
    BAD_DATA,
    REFUSED,
    ROOT,
    STAGES,
    TOOL,
    USAGE,
    Refusal,
    ask_engine,
    content_of,
    engine,
    exit_code_of,
    image_name,
    image_version,
    inspect,
)

LEDGER = ROOT / "containers" / "published.tsv"


@dataclass(frozen=True)
class Published:
    """One line of the ledger."""

    stage: str
    version: str
    digest: str
    contract: str
    revision: str
    date: str

    def problems(self) -> list[str]:
        """What is wrong with the line."""
        forms = {
            "version": r"\d+\.\d+\.\d+(-(cpu|cuda|cuda12|tensorflow|cuda-tensorflow))?",
            "digest": r"sha256:[0-9a-f]{64}",
            "contract": r"\d+\.\d+\.\d+",
            "revision": r"[0-9a-f]{40}",
            "date": r"\d{4}-\d{2}-\d{2}",
        }
        wrong = [n for n, form in forms.items() if not re.fullmatch(form, getattr(self, n))]
        return wrong if self.stage in STAGES else ["stage", *wrong]


def read_ledger(text: str) -> list[Published]:
    """All lines.

    Raises Refusal (65) naming the line that is malformed or says a second thing of a stage and version.
    """
    lines = text.splitlines()
    header = [f.name for f in fields(Published)]
    if not lines or lines[0].split("\t") != header:
        raise Refusal(BAD_DATA, f"{LEDGER.name}: the first line must be the column names: {' '.join(header)}")
    entries: list[Published] = []
    for number, line in enumerate(lines[1:], start=2):
        cells = line.split("\t")
        if len(cells) != len(header):
            raise Refusal(BAD_DATA, f"{LEDGER.name}:{number}: {len(cells)} columns, wanted {len(header)}")
        entry = Published(*cells)
        if wrong := entry.problems():
            raise Refusal(BAD_DATA, f"{LEDGER.name}:{number}: malformed {', '.join(wrong)}")
        if any((e.stage, e.version) == (entry.stage, entry.version) for e in entries):
            raise Refusal(BAD_DATA, f"{LEDGER.name}:{number}: {entry.stage} {entry.version} is listed twice")
        entries.append(entry)
    return entries


def published_line(stage: str) -> Published | None:
    """The published line of the version that the checkout has of a stage."""
    version = image_version(stage)
    return next((e for e in read_ledger(LEDGER.read_text()) if (e.stage, e.version) == (stage, version)), None)


def may_build(stage: str) -> None:
    """Refuse (73) if this version is published and its content here is not what was published."""
    entry = published_line(stage)
    if entry is None:
        return
    done = _git("diff", "--name-only", entry.revision, "--", *content_of(stage))
    untracked = _git("ls-files", "--others", "--exclude-standard", "--", *content_of(stage))
    changed = [*done.stdout.split("\n"), *untracked.stdout.split("\n")]
    changed = [path for path in changed if path]
    if done.returncode != 0:
        changed = [f"(the published revision {entry.revision} is not in this checkout)"]
    if changed:
        raise Refusal(
            REFUSED,
            f"{stage} {entry.version} is published ({entry.digest}), and a published version does not change\n"
            f"   changed since: {', '.join(changed)}\n"
            f"   fix: raise the version in stages/{stage}/pyproject.toml, and say why in its CHANGELOG.md",
        )


def publish(stage: str, registry: str) -> str:
    """Push the image of a stage and add its line to the ledger; returns the pin.

    Raises Refusal (73) if the version is in the ledger with another digest, if the registry has another image
    under that tag, or if the image is not of a clean commit; (66) if there is no image.
    """
    version = image_version(stage)
    local = image_name(stage)
    name = f"{registry.rstrip('/')}/{stage}"
    labels = _image_labels(local)
    entry = published_line(stage)
    known = _registry_digest(local, name)
    if entry is not None and entry.digest == known:
        return f"{name}:{version}@{known}"
    if entry is not None:
        raise Refusal(
            REFUSED,
            f"{stage} {version} is published as {entry.digest}\n   found: {known or 'an image of other content'}\n"
            f"   fix: raise the version in stages/{stage}/pyproject.toml",
        )
    _require_publishable(stage, version, labels)
    _require_free_tag(stage, f"{name}:{version}", local)
    ask_engine("tag", local, f"{name}:{version}")
    ask_engine("push", f"{name}:{version}")
    digest = _registry_digest(f"{name}:{version}", name)
    if not digest:
        raise Refusal(BAD_DATA, f"{TOOL} pushed {name}:{version} and reports no digest of it")
    line = Published(
        stage,
        version,
        digest,
        labels["lsdflow.contract"],
        labels["org.opencontainers.image.revision"],
        time.strftime("%Y-%m-%d", time.gmtime()),
    )
    with LEDGER.open("a", encoding="utf-8") as file:
        file.write("\t".join(astuple(line)) + "\n")
    return f"{name}:{version}@{digest}"


def _require_publishable(stage: str, version: str, labels: dict[str, str]) -> None:
    revision = labels.get("org.opencontainers.image.revision", "")
    faults = []
    if not re.fullmatch(r"[0-9a-f]{40}", revision):
        faults.append(f"its revision is {revision or 'unknown'}: build it from a clean commit")
    if labels.get("org.opencontainers.image.version") != version:
        faults.append(f"its label says version {labels.get('org.opencontainers.image.version')}: build it again")
    if faults:
        raise Refusal(REFUSED, f"the image of {stage} {version} is not one to publish\n   " + "\n   ".join(faults))


def _require_free_tag(stage: str, tagged: str, local: str) -> None:
    """The ledger may be older than the registry: somebody else published and this checkout does not know yet."""
    if engine("pull", "--quiet", tagged).returncode != 0:
        return
    remote, own = (inspect(image, "{{.Id}}") for image in (tagged, local))
    if remote != own:
        raise Refusal(
            REFUSED,
            f"{tagged} is in the registry, made of other content, and this ledger does not know it\n"
            f"   fix: pull the newest commit; else raise the version in stages/{stage}/pyproject.toml",
        )


def check() -> None:
    """Refuse (65) a ledger that is malformed or lost or changed a line of the last commit."""
    text = LEDGER.read_text()
    read_ledger(text)
    committed = _git("show", f"HEAD:containers/{LEDGER.name}")
    if committed.returncode == 0 and not text.startswith(committed.stdout):
        raise Refusal(BAD_DATA, f"{LEDGER.name}: lines of the last commit were changed; lines are only added")


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


def _image_labels(image: str) -> dict[str, str]:
    form = '{{range $key, $value := .Config.Labels}}{{printf "%s=%s\\n" $key $value}}{{end}}'
    lines = inspect(image, form).splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def _registry_digest(image: str, name: str) -> str:
    """The digest under which the repository `name` knows the image; empty if it does not."""
    found = inspect(image, "{{range .RepoDigests}}{{println .}}{{end}}").split()
    return next((f.split("@", 1)[1] for f in found if f.startswith(f"{name}@")), "")


def main(arguments: list[str]) -> int:
    """Entry point; returns the exit code."""
    match arguments:
        case ["may-build", stage]:
            may_build(stage)
        case ["publish", stage, registry]:
            sys.stdout.write(publish(stage, registry) + "\n")
        case ["check"]:
            check()
        case _:
            raise Refusal(USAGE, (__doc__ or "").strip())
    return 0


if __name__ == "__main__":
    sys.exit(exit_code_of(main, sys.argv[1:]))
