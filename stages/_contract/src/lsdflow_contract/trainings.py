"""The trainings of an experiment: one folder each, and a link to the current one.

    results/train-lsd/5b0e77aa/    checkpoints/, best.json, loss.csv, log/, snapshots/; manifest.json once finished
    results/train-lsd/90c1d2f3/    an earlier training with other settings
    train/train-lsd                -> ../results/train-lsd/5b0e77aa

The link changes when a training begins, because later stages can use the checkpoints of an unfinished training. In an
experiment of contract 1, train/<stage> is the folder itself; the next training moves it to the results.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from lsdflow_contract import CONTRACT_VERSION
from lsdflow_contract.checkpoint import bundle_folder, bundle_iterations, read_bundle
from lsdflow_contract.errors import BadData, MissingInput, OutputConflict, StageError
from lsdflow_contract.files import TEMPORARY_SUFFIX, storage_errors
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import current_key, read_kept_manifest, read_manifest

LOG = logging.getLogger("lsdflow.training")
TRAININGS = ("train-lsd", "train-acrlsd")
# The loss of a network that learns falls to less than this share of its first values.
FELL = 0.8


def shortfall(facts: Mapping[str, Any]) -> str:
    """What a finished training lacks, in words: iterations, or a loss that fell; empty if it lacks nothing.

    facts: those of its manifest; trainings of earlier versions do not say how many iterations were wanted.
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


def training_folder(layout: ExperimentLayout, stage: str, key: str) -> Path:
    """The folder of the training with this key, which may not exist yet."""
    return layout.train_dir(stage) if _is_of_contract_1(layout, stage) else layout.result(stage, key)


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
    """
    move_to_results(layout, stage, key)
    folder = layout.result(stage, key)
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if current_key(layout, stage) != key:
            layout.manifest(stage).unlink(missing_ok=True)
        _link(layout.train_dir(stage), folder)
        with suppress(MissingInput):
            read_kept_manifest(layout, stage, key).write(layout, stage)
    return folder


def move_to_results(layout: ExperimentLayout, stage: str, key: str = "") -> None:
    """Move the training of an experiment of contract 1, if there is one, to the results, and link to it.

    key: for a training without a finished checkpoint; without a key such a training is not moved. After an
    interruption, the same call completes the move.
    """
    if _is_of_contract_1(layout, stage):
        key = current_key(layout, stage) or _key_of_checkpoints(layout.checkpoints(stage)) or key
        if not key:
            return
        folder = layout.result(stage, key)
        with storage_errors(folder):
            if folder.exists():
                _move_copy_aside(layout.train_dir(stage))
                _link(layout.train_dir(stage), folder)
                return
            folder.parent.mkdir(parents=True, exist_ok=True)
            layout.train_dir(stage).rename(folder)
            _link(layout.train_dir(stage), folder)
    with suppress(MissingInput, BadData):
        manifest = read_manifest(layout, stage)
        folder, outputs = layout.result(stage, manifest.key), training_outputs(layout, stage, manifest.key)
        if folder.is_dir() and manifest.outputs != outputs:
            with storage_errors(folder):
                if not layout.train_dir(stage).is_symlink():
                    _link(layout.train_dir(stage), folder)
            manifest.model_copy(update={"outputs": outputs, "contract": CONTRACT_VERSION}).write(layout, stage)


def _move_copy_aside(copy: Path) -> None:
    """Rename a folder that replaced the link because the experiment was copied by a program that follows links.

    Raises OutputConflict (73) if the new name is in use.
    """
    aside = copy.with_name(f"{copy.name}.copy")
    if aside.exists():
        raise OutputConflict("two folders hold the same training", where=copy, found=aside, fix="move one of them away")
    copy.rename(aside)
    LOG.warning("%s was a copy of a result, and is no longer used: it is now %s and can be deleted", copy, aside)


def _is_of_contract_1(layout: ExperimentLayout, stage: str) -> bool:
    return layout.train_dir(stage).is_dir() and not layout.train_dir(stage).is_symlink()


def _key_of_checkpoints(checkpoints: Path) -> str:
    """The key of the newest readable bundle; empty if there is none."""
    for iteration in reversed(bundle_iterations(checkpoints)):
        with suppress(StageError):
            return read_bundle(bundle_folder(checkpoints, iteration)).training_key
    return ""


def _link(link: Path, folder: Path) -> None:
    """Make `link` point to `folder`, atomically."""
    link.parent.mkdir(parents=True, exist_ok=True)
    new = link.with_name(f".{link.name}.{os.getpid()}{TEMPORARY_SUFFIX}")
    new.unlink(missing_ok=True)
    new.symlink_to(os.path.relpath(folder, link.parent))
    new.replace(link)
