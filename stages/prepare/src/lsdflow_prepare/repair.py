"""repair: make again the bricks of prepared volumes that are lost or damaged, from the sources, and no others.

1. the manifest says which work the volumes are of; sources or parameters that are others now are refused
2. every brick is compared with the journal; those that differ are made again
3. a brick goes to disk only if it is what was noted then, so a source that was changed in place does no harm
"""

from __future__ import annotations

import logging

from lsdflow_contract.errors import BadData, OutputConflict
from lsdflow_contract.hashing import hash_of_array
from lsdflow_contract.manifest import Manifest
from lsdflow_prepare.config import PrepareConfig
from lsdflow_prepare.finished import STAGE
from lsdflow_prepare.inputs import VolumeInputs
from lsdflow_prepare.writing import WritePlan, make_brick

LOG = logging.getLogger("lsdflow.prepare")
HINT = "bring the source back as it was, or make another volume from what it is now: prepare run"


def require_same_work(table: PrepareConfig, manifest: Manifest, label: str, plans: list[WritePlan]) -> None:
    """Raise OutputConflict (73) if the table is another one now, BadData (65) if the sources of the volume are."""
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
            fix=HINT,
        )


def mend(label: str, inputs: VolumeInputs, plans: list[WritePlan], made: dict[str, str]) -> list[str]:
    """Make the broken bricks of a volume again; which they were. `made`: identity of each group of arrays, as recorded.

    Raises BadData (65) if a source does not give what it gave then; that brick is not written.
    """
    mended = []
    for plan in plans:
        known = plan.arrays.identity() == made.get(plan.arrays.job)
        numbers = plan.arrays.damaged(plan.bricks)
        if numbers:
            plan.arrays.mend_metadata()
            numbers = plan.arrays.damaged(plan.bricks)
        for number in numbers:
            where = f"{label} {plan.arrays.job} {plan.bricks[number]}"
            LOG.warning("%s is made again", where)
            _make_again(inputs, plan, number, where, known)
            mended.append(where)
        if plan.arrays.identity() != made.get(plan.arrays.job):
            raise _changed(f"{label} {plan.arrays.job}")
    return mended


def _make_again(inputs: VolumeInputs, plan: WritePlan, number: int, where: str, known: bool) -> None:
    """One brick; `known`: the journal is whole, so it says what the brick must be."""
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
        fix=HINT,
    )
