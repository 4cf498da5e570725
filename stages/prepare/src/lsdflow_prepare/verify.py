"""verify: are the prepared volumes still as they were written, brick by brick?"""

from __future__ import annotations

from lsdflow_contract.errors import BadData, OutputConflict
from lsdflow_prepare.finished import finished_report
from lsdflow_prepare.writing import WritePlan

LISTED = 10


def require_whole(label: str, plans: list[WritePlan]) -> int:
    """Read back every brick of a volume and compare with the journal; how many there are.

    Raises OutputConflict (73) if the volume was made with other parameters or is not finished, BadData (65) naming the
    bricks that are lost or damaged.
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
