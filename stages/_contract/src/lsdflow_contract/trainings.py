"""The trainings of an experiment: one folder each, and a link to the current one.

    results/train-lsd/5b0e77aa/    checkpoints/, best.json, loss.csv, log/, snapshots/; manifest.json once finished
    results/train-lsd/90c1d2f3/    an earlier training with other settings
    train/train-lsd                -> ../results/train-lsd/5b0e77aa

The link changes when a training begins, because later stages can use the checkpoints of an unfinished training.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from lsdflow_contract.errors import MissingInput, OutputConflict
from lsdflow_contract.files import TEMPORARY_SUFFIX, storage_errors
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import current_key, read_kept_manifest

LOG = logging.getLogger("lsdflow.training")
# The loss of a network that learns falls to less than this share of its first values.
FELL = 0.8


def shortfall(facts: Mapping[str, Any]) -> str:
    """What a finished training lacks, in words: iterations, or a loss that fell; empty if it lacks nothing.

    facts: those of its manifest; imported networks do not say how many iterations were wanted.
    """
    parts = []
    done, wanted = facts.get("iteration", 0), facts.get("max_iteration", 0)
    if done < wanted:
        share = f"{100 * done / wanted:.2g}" if done < 0.995 * wanted else "99"
        parts.append(f"trained {share} % of its iterations ({done:,} of {wanted:,}), ended by {facts['ended_by']}")
    begin, end = facts.get("loss_begin"), facts.get("loss_end")
    if begin is not None and end is not None and end > FELL * begin:
        fell = "hardly fell" if end < begin else "did not fall"
        parts.append(f"the loss {fell} ({begin:.3g} to {end:.3g})")
    return "; ".join(parts)


def training_outputs(layout: ExperimentLayout, stage: str, key: str) -> dict[str, str]:
    """The outputs of a training as its manifest lists them."""
    folder = layout.result(stage, key).relative_to(layout.root)
    return {"checkpoints": f"{folder}/checkpoints", "best": f"{folder}/best.json"}


def current_training(layout: ExperimentLayout, stage: str) -> str:
    """The name of the folder in results/<stage>/ to which the link points; empty without a link."""
    link = layout.train_dir(stage)
    return link.readlink().name if link.is_symlink() else ""


def make_current(layout: ExperimentLayout, stage: str, key: str) -> Path:
    """Make the training of `key` the current one; returns its folder, which is created if it does not exist.

    Later stages then find its checkpoints, and its manifest if it has finished. No other training is changed.
    Raises OutputConflict (73) if a folder in the place of the link cannot be moved aside.
    """
    folder = layout.result(stage, key)
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if current_key(layout, stage) != key:
            layout.manifest(stage).unlink(missing_ok=True)
        _link(layout.train_dir(stage), folder)
        with suppress(MissingInput):
            read_kept_manifest(layout, stage, key).write(layout, stage)
    return folder


def _move_copy_aside(copy: Path) -> None:
    """Rename a folder that replaced the link because the experiment was copied by a program that follows links.

    Raises OutputConflict (73) if the new name is in use.
    """
    aside = copy.with_name(f"{copy.name}.copy")
    if aside.exists():
        raise OutputConflict("two folders hold the same training", where=copy, found=aside, fix="move one of them away")
    copy.rename(aside)
    LOG.warning("%s was a copy of a result, and is no longer used: it is now %s and can be deleted", copy, aside)


def _link(link: Path, folder: Path) -> None:
    """Make `link` point to `folder`, atomically; a folder in its place is moved aside."""
    if link.is_dir() and not link.is_symlink():
        _move_copy_aside(link)
    link.parent.mkdir(parents=True, exist_ok=True)
    new = link.with_name(f".{link.name}.{os.getpid()}{TEMPORARY_SUFFIX}")
    new.unlink(missing_ok=True)
    new.symlink_to(os.path.relpath(folder, link.parent))
    new.replace(link)
