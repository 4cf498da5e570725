"""verify checks that every brick of the prepared volumes is as it was written; repair recomputes damaged bricks.

1. The manifest names the settings and sources of the volumes; if they have changed, repair refuses.
2. Every brick is compared with the journal. verify reports differences; repair recomputes these bricks from the
   sources.
3. A brick is written only if it matches the journal, so a source that was changed in place does no harm.
"""

from __future__ import annotations

import logging

from lsdflow_contract.errors import BadData, OutputConflict
from lsdflow_contract.hashing import hash_of_array
from lsdflow_contract.manifest import Manifest
from lsdflow_prepare.config import PrepareConfig
from lsdflow_prepare.finished import STAGE, finished_report
from lsdflow_prepare.inputs import VolumeInputs
from lsdflow_prepare.writing import WritePlan, make_brick

LISTED = 10
LOG = logging.getLogger("lsdflow.prepare")
FIX = "bring the source back as it was, or make another volume from what it is now: prepare run"


def require_whole(label: str, plans: list[WritePlan]) -> int:
    """Read back every brick of a volume and compare it with the journal; returns the number of bricks.

    Raises OutputConflict (73) if the volume has other parameters or is not finished, BadData (65) naming the bricks
    that are missing or damaged.
    """
    where = plans[0].arrays.container
    if finished_report(plans) is None:
        raise OutputConflict(
            f"the volume {label} is not made, or with other parameters or inputs", where=where, fix="run: prepare run"
        )
    damaged = [
        f"{plan.arrays.job} {plan.bricks[number]}" for plan in plans for number in plan.arrays.damaged(plan.bricks)
    ]
    if damaged:
        raise BadData(
            f"{len(damaged)} bricks of {label} are lost or damaged",
            where=where,
            found="; ".join(damaged[:LISTED]),
            fix="recompute them: prepare repair",
        )
    return sum(len(plan.bricks) for plan in plans)


def require_same_work(table: PrepareConfig, manifest: Manifest, label: str, plans: list[WritePlan]) -> None:
    """Raise OutputConflict (73) if the table has changed, BadData (65) if the sources of the volume have changed."""
    if manifest.config != table.model_dump(mode="json"):
        raise OutputConflict(
            "the volumes were made with other parameters",
            where=plans[0].arrays.container,
            fix=f"restore the earlier [{STAGE}] settings, or make other volumes with these: prepare run",
        )
    made, now = manifest.inputs.get(label, ""), plans[0].arrays.key
    if made != now:
        raise BadData(
            f"a source of {label} is not what it was when the volume was made",
            where=plans[0].arrays.container,
            wanted=f"sources of key {made[:12]}",
            found=f"key {now[:12]}",
            fix=FIX,
        )


def repair_bricks(label: str, inputs: VolumeInputs, plans: list[WritePlan], made: dict[str, str]) -> list[str]:
    """Recompute the damaged bricks of a volume; returns them. `made`: recorded identity of each group of arrays.

    Raises BadData (65) if a source has other voxels now; that brick is not written.
    """
    repaired = []
    for plan in plans:
        known = plan.arrays.identity() == made.get(plan.arrays.job)
        numbers = plan.arrays.damaged(plan.bricks)
        if numbers:
            plan.arrays.restore_metadata()
            numbers = plan.arrays.damaged(plan.bricks)
        for number in numbers:
            where = f"{label} {plan.arrays.job} {plan.bricks[number]}"
            LOG.warning("%s is computed again", where)
            _recompute(inputs, plan, number, where, known)
            repaired.append(where)
        if plan.arrays.identity() != made.get(plan.arrays.job):
            raise _changed(f"{label} {plan.arrays.job}")
    return repaired


def _recompute(inputs: VolumeInputs, plan: WritePlan, number: int, where: str, known: bool) -> None:
    """Recompute one brick; `known`: the journal is complete, so the brick must match it."""
    box = plan.bricks[number]
    values, facts = make_brick(inputs, plan, box)
    note = plan.arrays.noted(number)
    if known and note is not None and note.checksums != {n: hash_of_array(v) for n, v in values.items()}:
        raise _changed(where)
    plan.arrays.write(number, box, values, facts)


def _changed(where: str) -> BadData:
    return BadData(
        "the sources do not give what they gave when the volume was made",
        where=where,
        wanted="the checksums of the journal",
        found="other values",
        fix=FIX,
    )
