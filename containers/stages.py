"""Writes the stages of stages.toml into the files that cannot read it. `make stages` calls it.

--check: writes nothing, names the files that differ, and ends with 1 if there are any.

Their SLURM wrappers and compose services are written whole, the lists of the other files in place. Each pyproject.toml
names the versions of the packages of lsdflow that it needs.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import Iterator, Sequence

from facts import DECLARED, ROOT, STAGES, version_of

BLOCK_STAGES = [stage for stage, about in DECLARED.items() if about.get("blocks")]
GPU_STAGES = [stage for stage, about in DECLARED.items() if about.get("gpu")]
TRAININGS = [stage for stage, about in DECLARED.items() if about["environment"] == "training"]

WRAPPER = """\
#!/usr/bin/env bash
# {stage}: {does}. sbatch slurm_wrappers/{stage}.sbatch EXPERIMENT [VERB] [OPTIONS]; --help explains more
#SBATCH --job-name={stage} --output=%x.%j.log --open-mode=append --requeue --signal=B:USR2@120
#SBATCH --cpus-per-task=4 --mem=7G --time=12:00:00{gpu}
here=${{1:-}} # of a submission; else SLURM runs a copy of this file, and its record of the job names the original
[[ -r $here/stage.sbatch ]] || here=$(dirname "$0")
[[ -r $here/stage.sbatch ]] || here=$(scontrol show job "${{SLURM_JOB_ID:-}}" | \
sed -n '/Command=/{{s|^ *Command=\\(.*\\)/{stage}\\.sbatch.*|\\1|p;q}}')
[[ -r $here/stage.sbatch ]] || here=${{LSDFLOW_WRAPPERS:-${{SLURM_SUBMIT_DIR:-.}}/slurm_wrappers}}
[[ -r $here/stage.sbatch ]] || {{ echo "error: no stage.sbatch in $here: \
set LSDFLOW_WRAPPERS to slurm_wrappers of the clone" >&2; exit 66; }}
exec bash "$here/stage.sbatch" {stage} "$@"
"""
SERVICE = """\
  {stage}:{note}
    <<: *stage
    image: ${{{key}_IMAGE:?pin it in images.env}}
    environment: {{LSDFLOW_IMAGE_DIGEST: "${{{key}_IMAGE_DIGEST-}}"}}
"""
WAITS = "    depends_on: {{{before}: {{condition: service_completed_successfully}}}}\n"
NOTES = {"train-lsd": " # does nothing in modes that need no LSD network"}


def _services() -> Iterator[str]:
    for before, stage in itertools.pairwise(("", *STAGES)):
        service = SERVICE.format(stage=stage, note=NOTES.get(stage, ""), key=stage.upper().replace("-", "_"))
        yield service + (WAITS.format(before=before) if before else "")


def _bash(stages: Sequence[str]) -> str:
    return f"({' '.join(stages)})"


def lists() -> dict[str, list[tuple[str, str]]]:
    """By file, the patterns of its lists (from the text before to the text after), and the lists themselves."""
    in_blocks = [f"lsdflow-{stage}" for stage in (*STAGES, "descriptors") if stage not in TRAININGS]
    every, gpu, trainings = (json.dumps(stages) for stages in (STAGES, GPU_STAGES, TRAININGS))
    return {
        "stages/_launch/pyproject.toml": [(r"(?<=\nblocks = )\[.*?\]", json.dumps(in_blocks))],
        "docker-bake.hcl": [
            (r"(?<=matrix     = { stage = )\[.*?\]", every),
            (r"(?<=contains\()\[[^\]]*\](?=, stage\) \? TORCH)", gpu),
            (r'(?<=contains\()\[[^\]]*\](?=, stage\) \? "torch")', trainings),
        ],
        "slurm_wrappers/_common.sh": [
            (r"(?<= TORCH_STAGES=)\(.*?\)", _bash(GPU_STAGES)),
            (r"(?<= BLOCK_STAGES=)\(.*?\)", _bash(BLOCK_STAGES)),
            (r"(?<= ALL_STAGES=)\(.*?\)", _bash(STAGES)),
        ],
        "slurm_wrappers/example.settings.env": [(r"(?<=\nSTAGES=)'.*?'", f"'{' '.join(STAGES)}'")],
        "compose/compose.yaml": [(r"(?<=\nservices:\n).*?\n(?=\n  # Does nothing)", "\n".join(_services()))],
        "compose/compose.gpu.yaml": [(r"(?<=\nservices:\n).*", "".join(f"  {stage}: *gpu\n" for stage in GPU_STAGES))],
    }


def _with_versions(project: str) -> str:
    """A pyproject.toml with the present version of each package of lsdflow that it needs."""
    packages = {path.parent.name.lstrip("_"): path.parent.name for path in ROOT.glob("stages/*/pyproject.toml")}

    def pin(found: re.Match[str]) -> str:
        return f'"lsdflow-{found[1]}=={version_of(packages[found[1]])}"'

    return re.sub(r'"lsdflow-([a-z-]+)(?:==[0-9.]+)?"(?=[],])', pin, project)


def written() -> dict[str, str]:
    """The text of each file, by its path in the repository."""
    found = {}
    for stage, about in DECLARED.items():
        gpu = " --gres=gpu:1" if about.get("gpu") else ""
        found[f"slurm_wrappers/{stage}.sbatch"] = WRAPPER.format(stage=stage, does=about["does"], gpu=gpu)
    for path, parts in lists().items():
        found[path] = (ROOT / path).read_text(encoding="utf-8")
        for pattern, text in parts:
            found[path], count = re.subn(pattern, lambda _, text=text: text, found[path], flags=re.DOTALL)
            if count != 1:
                raise ValueError(f"{path}: {count} places of {pattern}")
    for file in ROOT.glob("stages/*/pyproject.toml"):
        path = str(file.relative_to(ROOT))
        found[path] = _with_versions(found.get(path) or file.read_text(encoding="utf-8"))
    return found


def main(words: Sequence[str]) -> int:
    """Entry point; returns the exit code."""
    files = {ROOT / path: text for path, text in written().items()}
    stale = [path for path, text in files.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if words:
        sys.stdout.writelines(f"{path.relative_to(ROOT)}\n" for path in stale)
        return int(bool(stale))
    for path in stale:
        path.write_text(files[path], encoding="utf-8")
        path.chmod(0o755 if path.suffix == ".sbatch" else 0o644)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
