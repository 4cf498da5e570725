"""Train networks side by side for the time that is left, as a user would, and keep their bundles.

One of FIB-SEM with isotropic voxels (z < 150 of FIB-25), one of serial sections (AC4); or those of an ablation. Each is
returned as one file:
RESULTS/NAME.tar with weights.safetensors, bundle.json, bundle.sha256, loss.csv and the settings of its training.
A training that did not end in time leaves its newest checkpoint.
"""

from __future__ import annotations

import sys
import tarfile
from functools import partial
from pathlib import Path

from experiments import ABLATION, EXPERIMENTS, UNENDING, Experiment, given, training
from gpu_machine import Busy, formatted, print_head
from part import Part, settings, start

from lsdflow_contract.checkpoint import read_best, read_bundle

STAGE = "train-acrlsd"
LARGEST_MIB = 15
FILES = ("weights.safetensors", "bundle.json", "bundle.sha256")
PACKING_S = 4.0
STARTING_S = 1.5  # of each training, by which they all begin later


def main() -> int:
    """Train, pack, print the table; 1 if something failed."""
    part = Part(__doc__)
    experiments = ABLATION if part.ablation else EXPERIMENTS
    part.plan(*(experiment.name for experiment in experiments))
    for experiment in experiments:
        training(part, experiment)
    part.until -= PACKING_S
    minutes = max(0.01, (part.left_s - part.reserve - STARTING_S * len(experiments)) / 60)
    commands = []
    for experiment in experiments:
        options = {**UNENDING, **experiment.options, "max_minutes": round(minutes, 4)}
        words = settings({"experiment.seed": experiment.seed, **given(part, STAGE, options)})
        (experiment.file(part).parent / "settings.txt").write_text("\n".join([STAGE, *words]) + "\n")
        commands.append(start(STAGE, "run", "--experiment", experiment.file(part), *words))
    with Busy(part.device) as busy:
        codes = part.finish(commands)
    print_head(
        f"quality: {minutes:.2f} minutes of training, side by side",
        ("network", "iteration", "loss, last 10 rows", "file", "MiB", ""),
    )
    for experiment, code in zip(experiments, codes, strict=True):
        part.attempt(experiment.name, partial(keep, experiment, code, part))
    print(f"\nGPU busy {formatted(busy.percent, '.0f')} %, {formatted(busy.gib, '.1f')} GiB at most", flush=True)
    return int(any(codes) or None in codes)


def keep(experiment: Experiment, code: int | None, part: Part) -> None:
    """Pack what a training left, and print its row."""
    ended = {0: "", None: "ended at its limit"}.get(code, f"exit code {code}")
    folder = experiment.file(part).parent
    trained = next((folder / "results" / STAGE).glob("*/checkpoints"), folder).parent
    bundle = newest_bundle(trained)
    if bundle is None:
        part.row(experiment.name, [experiment.name, "no checkpoint", "", "", "", ended], done=False)
        return
    made = pack(part.results / f"{experiment.name}.tar", bundle, [trained / "loss.csv", *folder.glob("*.t[ox][mt]*")])
    mib = made.stat().st_size / 2**20
    if mib > LARGEST_MIB:
        made.unlink()
        ended += f" {mib:.1f} MiB are too large for a file: not kept"
    cells = [experiment.name, read_bundle(bundle).iteration, losses(trained / "loss.csv"), made.name, f"{mib:.1f}"]
    part.row(experiment.name, [*cells, ended], done=mib <= LARGEST_MIB and code == 0)


def newest_bundle(trained: Path) -> Path | None:
    """The checkpoint that the training calls the best, else its newest one; none if there is none."""
    try:
        best = f"{read_best(trained / 'best.json').iteration:08d}"
    except Exception:  # noqa: BLE001  any other checkpoint is better than none
        best = ""
    found = sorted(trained.glob("checkpoints/*/bundle.sha256"))
    return next(
        (path.parent for path in reversed(found) if path.parent.name == best), found[-1].parent if found else None
    )


def pack(target: Path, bundle: Path, more: list[Path]) -> Path:
    """One file of a bundle and what belongs to it; complete or not there."""
    partial = target.with_suffix(".partial")
    with tarfile.open(partial, "w") as tar:
        for path in [*(bundle / name for name in FILES), *more]:
            if path.exists():
                tar.add(path, arcname=f"{target.stem}/{path.name}")
    return partial.replace(target)


def losses(table: Path) -> str:
    """The mean of the last losses."""
    lines = table.read_text().splitlines()[1:][-10:] if table.exists() else []
    values = [float(line.split(",")[1]) for line in lines]
    return f"{sum(values) / len(values):.4f}" if values else ""


if __name__ == "__main__":
    sys.exit(main())
