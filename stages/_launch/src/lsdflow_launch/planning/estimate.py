"""What a stage will take, as a whole: from the evidence of it, and who works on it.

work      seconds in blocks of all passes, one worker alone
walltime  work / workers at a time + start of the command + what one process does alone (from --like)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from lsdflow_launch.planning.allotment import Allotment
from lsdflow_launch.planning.attempts_taken import of_key
from lsdflow_launch.planning.evidence import (
    Evidence,
    Facts,
    Made,
    passes_of,
    seconds_beside_blocks,
    taken_as_a_whole,
)
from lsdflow_launch.planning.quantity import Quantity, first_known, total, unknown
from lsdflow_launch.planning.single_process import preparation, training
from lsdflow_launch.slurm.table import BLOCK_STAGES

NOT_MEASURED = "no block is done, measured (--measure) or known from another experiment (--like)"
SERIAL = ("segment", "evaluate")
MIB = 2**20


@dataclass(frozen=True)
class StageEstimate:
    """Numbers of a stage as a whole, and the share of it that is left to do."""

    numbers: dict[str, Quantity]
    share_left: float

    def as_dict(self) -> dict[str, Any]:
        """As it stands in plan.json."""
        return {"share_left": self.share_left, **{name: q.as_dict() for name, q in self.numbers.items()}}

    def __getitem__(self, name: str) -> Quantity:
        return self.numbers.get(name, unknown("not told for this stage"))


def estimate(stage: str, evidence: Evidence, allotment: Allotment, roi: bool = False) -> StageEstimate:
    """All numbers of a stage; roi: the experiment file gives it a part of the volume."""
    # Of a target without truth evaluate has nothing to count.
    unplanned = "blocks" not in evidence.here.facts and evidence.here.facts.get("truth", True)
    if stage in BLOCK_STAGES and unplanned and not roi:
        evidence = _as_if_like(evidence)
    facts, finished = evidence.here.facts, evidence.here.finished
    if stage in BLOCK_STAGES and "blocks" in facts:
        return _of_blocks(stage, evidence, allotment)
    why = facts.get("not known yet") or facts.get("nothing_to_do")
    if why or stage in BLOCK_STAGES:
        nothing = unknown(str(why or "its blocks are not known yet"))
        done = finished or "nothing_to_do" in facts
        return StageEstimate({"seconds": nothing, "walltime_s": nothing}, 0.0 if done else 1.0)
    alone = preparation(evidence) if stage == "prepare" else training(evidence)
    spent = _hours(alone.numbers["seconds"], alone.numbers["walltime_s"], allotment)
    return StageEstimate({**alone.numbers, **spent}, alone.share_left)


def _as_if_like(evidence: Evidence) -> Evidence:
    """A stage whose inputs are not made yet, planned as the other experiment cut it, for the voxels of this target."""
    like, voxels = evidence.like, evidence.target_voxels
    if like is None or voxels is None or not like.facts.get("voxels") or not like.finished:
        return evidence
    scale = voxels / like.facts["voxels"]
    passes = {
        name: {
            **told,
            "blocks": math.ceil(told["blocks"] * scale),
            "voxels": told["voxels"] * scale,
            "blocks_done": 0,
            "taken": {},
        }
        for name, told in passes_of(like.facts).items()
    }
    facts = passes[""] if "" in passes else {**next(iter(passes.values())), "passes": passes}
    return replace(evidence, here=replace(evidence.here, facts={**facts, "planned_as": like.where}))


def _of_blocks(stage: str, evidence: Evidence, allotment: Allotment) -> StageEstimate:
    passes = passes_of(evidence.here.facts)
    blocks, done = (sum(int(p[key]) for p in passes.values()) for key in ("blocks", "blocks_done"))
    done = blocks if evidence.here.finished else done
    seconds = total(_seconds(name, evidence) for name in passes)
    per_block = max(int(p["blocks"]) for p in passes.values())
    walltime = _walltime(stage, evidence, seconds, min(allotment.workers.count, per_block))
    numbers = {
        "blocks": Quantity(blocks, _planned_by(stage, evidence)),
        "voxels": Quantity(next(iter(passes.values()))["voxels"], _planned_by(stage, evidence)),
        "seconds": seconds,
        "seconds_per_block": seconds.times(1 / blocks),
        "walltime_s": walltime,
        "bytes_read": total(_read(name, evidence) for name in passes),
        "bytes_written": _on_disk(evidence, "size_bytes", "bytes_written", blocks, done),
        "files": _on_disk(evidence, "files", "files", blocks, done),
        "rss_per_worker_bytes": _rss(passes, evidence),
        "vram_per_worker_bytes": _vram(evidence),
        **_hours(seconds, walltime, allotment),
    }
    return StageEstimate(numbers, 0.0 if evidence.here.finished else 1 - done / blocks)


def _planned_by(stage: str, evidence: Evidence) -> str:
    like = evidence.here.facts.get("planned_as")
    return f"blocks as those of {like}" if like else f"{stage} plan"


def _seconds(name: str, evidence: Evidence) -> Quantity:
    """Of all blocks of a pass."""
    return first_known(
        (
            _of_finished(name, evidence, evidence.here, "finished blocks of this experiment"),
            _measured_part(name, evidence, "seconds"),
            *(_of_finished(name, evidence, made, f"finished blocks of {made.where}") for made in _like(evidence)),
        ),
        NOT_MEASURED,
    )


def _of_finished(name: str, evidence: Evidence, made: Made, what: str) -> Quantity:
    """Seconds of a pass from what finished blocks of it took, here or elsewhere."""
    found, plan, has_gpu = passes_of(made.facts).get(name, {}), passes_of(evidence.here.facts)[name], evidence.has_gpu
    taken, noted = found.get("taken") or taken_as_a_whole(made), of_key(made.attempts, str(found.get("key", "")))
    if not taken or "voxels" not in found:
        return unknown("")
    if has_gpu and noted is not None and noted.gpu_bytes == 0:
        return unknown(f"the {what} were done on the CPU, but its workers have GPUs")
    per_voxel = taken["seconds_per_block"] * found["blocks"] / found["voxels"]
    shape = "" if found["block_shape_vox"] == plan["block_shape_vox"] else ", of another shape"
    return Quantity(per_voxel * plan["voxels"], f"{taken['records']} {what}{shape}")


def _measured_part(name: str, evidence: Evidence, fact: str) -> Quantity:
    """A number of a pass, scaled from the voxels of the measured block to all."""
    measured = evidence.measured
    if "not known" in measured:
        return unknown(measured["not known"])
    if measured.get(fact) is None:
        return unknown(NOT_MEASURED if fact == "seconds" else "only --measure tells")
    if fact == "seconds" and evidence.has_gpu and measured.get("device") == "cpu":
        return unknown("the block was measured on the CPU, but its workers have GPUs: measure there")
    if measured.get("pass", name) != name:
        return unknown(f"the pass {name} needs those before it")
    plan = passes_of(evidence.here.facts)[name]
    device = f", {measured.get('device_name', measured['device'])}" if "device" in measured else ""
    scaled = measured[fact] / measured["voxels"] * plan["voxels"]
    return Quantity(scaled, f"one block measured on {measured.get('host', '')}{device}")


def _walltime(stage: str, evidence: Evidence, seconds: Quantity, workers: int) -> Quantity:
    if seconds.value is None:
        return seconds
    parts = [seconds.times(1 / workers, f", {workers} at a time"), _beside(stage, evidence)]
    found = total(parts)
    return Quantity(found.value, "; ".join(filter(None, (p.source for p in parts))), found.at_least)


def _beside(stage: str, evidence: Evidence) -> Quantity:
    """Seconds beside the blocks: the start of the command, and what one process does alone, which grows with voxels."""
    starting, alone = evidence.measured.get("seconds_to_start"), stage in SERIAL
    if starting is not None and not alone:
        return Quantity(starting, "with the start of the command")
    for made in (evidence.here, *_like(evidence)):
        seconds = seconds_beside_blocks(made)
        if seconds is not None:
            scale = evidence.here.facts["voxels"] / made.facts["voxels"] if alone else 1
            return Quantity(seconds * scale, f"beside the blocks as {made.where}")
    return unknown("the start and what one process does alone is known from --like" if alone else "the start not known")


def _read(name: str, evidence: Evidence) -> Quantity:
    """Bytes that a pass reads: of finished blocks here, of the measured one, or of those of another experiment."""
    plan = passes_of(evidence.here.facts)[name]
    elsewhere = [_read_by_attempts(name, made, plan) for made in _like(evidence)]
    here = _read_by_attempts(name, evidence.here, plan)
    return first_known((here, _measured_part(name, evidence, "bytes_read"), *elsewhere), NOT_MEASURED)


def _read_by_attempts(name: str, made: Made, plan: Mapping[str, Any]) -> Quantity:
    found = passes_of(made.facts).get(name, {})
    taken = of_key(made.attempts, str(found.get("key", "")))
    if taken is None:
        return unknown("")
    scale = plan["voxels"] / found["voxels"]
    return Quantity(taken.read_bytes * found["blocks"] * scale, f"{taken.blocks} blocks done in {made.where}")


def _on_disk(evidence: Evidence, counted: str, fact: str, blocks: int, done: int) -> Quantity:
    """Bytes or files of all blocks: counted here, from a measured block, or counted in another experiment."""
    here, found = evidence.here, []
    if done and here.disk.complete:
        found.append(Quantity(getattr(here.disk, counted) * blocks / done, f"on the disk, of {done} finished blocks"))
    found.append(total(_measured_part(name, evidence, fact) for name in passes_of(here.facts)))
    for made in _like(evidence):
        if made.finished and made.disk.complete and "voxels" in made.facts:
            scale = here.facts["voxels"] / made.facts["voxels"]
            found.append(Quantity(getattr(made.disk, counted) * scale, f"on the disk of {made.where}"))
    return first_known(found, NOT_MEASURED)


def _rss(passes: Mapping[str, Facts], evidence: Evidence) -> Quantity:
    whole = taken_as_a_whole(evidence.here)
    here = [p["taken"]["peak_rss_mib"] for p in (*passes.values(), {"taken": whole}) if p.get("taken")]
    found = [Quantity(max(here) * MIB, "most of the finished blocks of this experiment")] if here else []
    if evidence.measured.get("peak_rss_mib"):
        found.append(Quantity(evidence.measured["peak_rss_mib"] * MIB, "the process that measured one block"))
    for made in _like(evidence):
        same = made.facts.get("block_shape_vox") == evidence.here.facts["block_shape_vox"]
        taken = made.facts.get("taken") or taken_as_a_whole(made)
        if taken and same:
            found.append(Quantity(taken["peak_rss_mib"] * MIB, f"most of the finished blocks of {made.where}"))
        elif taken:
            found.append(unknown(f"blocks of {made.where} have another shape"))
    computed = evidence.here.facts.get("main_memory_per_worker_bytes")
    if computed:
        found.append(Quantity(computed, "computed from the network, the tile and the block; not measured"))
    return first_known(found, NOT_MEASURED)


def _vram(evidence: Evidence) -> Quantity:
    """Of the process that measured a block; else as the stage computes it."""
    facts, peak = evidence.here.facts, evidence.measured.get("device_peak_mib")
    if peak is not None:
        return Quantity(peak * MIB, f"one block measured on {evidence.measured.get('device_name', 'the GPU')}")
    for made in (evidence.here, *_like(evidence)):
        keys = [str(p.get("key", "")) for p in passes_of(made.facts).values()]
        held = [taken.gpu_bytes for key in keys if (taken := of_key(made.attempts, key)) is not None]
        if any(held):
            return Quantity(max(held), f"most of the blocks done in {made.where}")
    if not evidence.has_gpu:
        return Quantity(0, "no GPU is used")
    computed = facts.get("device_memory_per_worker_bytes")
    why = "computed from the network and the tile; not measured"
    return unknown(NOT_MEASURED) if computed is None else Quantity(computed, why)


def _hours(seconds: Quantity, walltime: Quantity, allotment: Allotment) -> dict[str, Quantity]:
    """Hours of cores and GPUs that are taken: of the workers while they work, of a coordinator all the time."""
    workers, coordinator = allotment.workers, allotment.coordinator
    held = total((seconds.times(workers.cores), *([walltime.times(coordinator.cores)] if coordinator else [])))
    return {
        "cpu_hours": Quantity(held.value, held.source, held.at_least).times(1 / 3600),
        "gpu_hours": seconds.times(workers.gpus / 3600) if workers.gpus else Quantity(0, "no GPU is used"),
    }


def _like(evidence: Evidence) -> Iterator[Made]:
    if evidence.like is not None:
        yield evidence.like
