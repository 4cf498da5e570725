"""Estimate of a whole stage, from its evidence and its workers.

work      seconds in the blocks of all passes, for one worker
walltime  work / workers at a time + start of the command + serial time of one process (from --like)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lsdflow_launch.chain import BLOCK_STAGES
from lsdflow_launch.planning.evidence import (
    Evidence,
    Facts,
    Quantity,
    StageRecord,
    first_known,
    mean_use_of_blocks,
    of_key,
    passes_of,
    seconds_outside_blocks,
    total,
    unknown,
)
from lsdflow_launch.planning.resources import StageWorkers

NOT_MEASURED = "no block is done, measured (--measure) or known from another experiment (--like)"
SERIAL = ("segment", "evaluate")
# The seconds in blocks grow with the first of these that both plans have.
WORK = ("multiply_adds", "voxels_read_with_context", "voxels")
MIB = 2**20
# Memory of Python with the libraries of a stage, before it has read a block: 92 to 165 MiB were measured.
PROCESS_MIB = 150
# One of an array and one of rows. All other files of a stage are tables and reports, the same for any volume.
FILES_OF_A_BLOCK = 2
# Part of the serial seconds that does not grow with the volume: importing libraries, pictures of the report.
FIXED_SECONDS = {"segment": 1.0, "evaluate": 10.0}
NEVER_RUN = "not known before it has run, here or in another experiment (--like)"
CHUNK_VOX = 64
SAME_TRAINING = ("kind", "raw_shape_vox", "output_shape_vox", "patches_per_step", "device")


@dataclass(frozen=True)
class StageEstimate:
    """Numbers of a whole stage, and the share of it that is left to do."""

    numbers: dict[str, Quantity]
    share_left: float

    def as_dict(self) -> dict[str, Any]:
        """Return the estimate as stored in plan.json."""
        return {"share_left": self.share_left, **{name: q.as_dict() for name, q in self.numbers.items()}}

    def __getitem__(self, name: str) -> Quantity:
        return self.numbers.get(name, unknown("not known for this stage"))


def estimate(stage: str, evidence: Evidence, workers: StageWorkers) -> StageEstimate:
    """Return all numbers of a stage."""
    facts, finished = evidence.here.facts, evidence.here.finished
    if stage in BLOCK_STAGES and "blocks" in facts:
        return _of_blocks(stage, evidence, workers)
    # For a target without ground truth, evaluate has nothing to compute.
    nothing_to_do = facts.get("nothing_to_do") or ("no truth to compare with" if facts.get("truth") is False else None)
    why = facts.get("not known yet") or nothing_to_do
    if why or stage in BLOCK_STAGES:
        nothing = unknown(str(why or "its blocks are not known yet"))
        done = finished or nothing_to_do is not None
        return StageEstimate({"seconds": nothing, "walltime_s": nothing}, 0.0 if done else 1.0)
    estimated = _preparation(evidence) if stage == "prepare" else _training(evidence)
    spent = _hours(estimated.numbers["seconds"], estimated.numbers["walltime_s"], workers)
    return StageEstimate({**estimated.numbers, **spent}, estimated.share_left)


def _of_blocks(stage: str, evidence: Evidence, workers: StageWorkers) -> StageEstimate:
    passes = passes_of(evidence.here.facts)
    blocks, done = (sum(int(p[key]) for p in passes.values()) for key in ("blocks", "blocks_done"))
    done = blocks if evidence.here.finished else done
    seconds = total(_seconds(name, evidence) for name in passes)
    per_block = max(int(p["blocks"]) for p in passes.values())
    walltime = _walltime(stage, evidence, seconds, min(workers.workers.count, per_block))
    numbers = {
        "blocks": Quantity(blocks, f"{stage} plan"),
        "voxels": Quantity(next(iter(passes.values()))["voxels"], f"{stage} plan"),
        "seconds": seconds,
        "seconds_per_block": seconds.times(1 / blocks),
        "walltime_s": walltime,
        "bytes_read": total(_read(name, evidence) for name in passes),
        "bytes_written": _on_disk(evidence, "size_bytes", "bytes_written", blocks, done),
        "files": _on_disk(evidence, "files", "files", blocks, done),
        "rss_per_worker_bytes": _rss(passes, evidence),
        "vram_per_worker_bytes": _vram(evidence),
        **_hours(seconds, walltime, workers),
    }
    return StageEstimate(numbers, 0.0 if evidence.here.finished else 1 - done / blocks)


def _seconds(name: str, evidence: Evidence) -> Quantity:
    """Return the seconds of all blocks of a pass."""
    return first_known(
        (
            _of_finished(name, evidence, evidence.here, "finished blocks of this experiment"),
            _measured_part(name, evidence, "seconds"),
            *(_of_finished(name, evidence, record, f"finished blocks of {record.where}") for record in evidence.like),
        ),
        NOT_MEASURED,
    )


def _of_finished(name: str, evidence: Evidence, record: StageRecord, what: str) -> Quantity:
    """Return the seconds of a pass, scaled from its finished blocks here or in another experiment."""
    found, plan, has_gpu = passes_of(record.facts).get(name, {}), passes_of(evidence.here.facts)[name], evidence.has_gpu
    use, recorded = found.get("taken") or mean_use_of_blocks(record), of_key(record.attempts, str(found.get("key", "")))
    if not use or "voxels" not in found:
        return unknown("")
    if has_gpu and recorded is not None and recorded.gpu_bytes == 0:
        return unknown(f"the {what} were done on the CPU, but its workers have GPUs")
    unit = next(unit for unit in WORK if found.get(unit) and plan.get(unit))
    shape = "" if found["block_shape_vox"] == plan["block_shape_vox"] else ", of another shape"
    seconds = use["seconds_per_block"] * found["blocks"] * plan[unit] / found[unit]
    return Quantity(seconds, f"{use['records']} {what}{shape}")


def _measured_part(name: str, evidence: Evidence, fact: str) -> Quantity:
    """Return a number of a pass, scaled from the voxels of the measured block to those of the pass."""
    measured = evidence.measured
    if "not known" in measured:
        return unknown(measured["not known"])
    if measured.get(fact) is None:
        return unknown(NOT_MEASURED if fact == "seconds" else "known only from --measure")
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
    parts = [seconds.times(1 / workers, f", {workers} at a time"), _outside_blocks(stage, evidence)]
    found = total(parts)
    return Quantity(found.value, "; ".join(filter(None, (p.source for p in parts))), found.at_least)


def _outside_blocks(stage: str, evidence: Evidence) -> Quantity:
    """Return the seconds outside blocks: the start of the command, and the serial time, which grows with the voxels."""
    starting, serial = evidence.measured.get("seconds_to_start"), stage in SERIAL
    if starting is not None and not serial:
        return Quantity(starting, "with the start of the command")
    for record in (evidence.here, *evidence.like):
        seconds = seconds_outside_blocks(record)
        if seconds is not None:
            fixed = min(FIXED_SECONDS.get(stage, 0.0), seconds)
            scale = evidence.here.facts["voxels"] / record.facts["voxels"] if serial else 1
            return Quantity(fixed + (seconds - fixed) * scale, f"outside the blocks as {record.where}")
    return unknown("the start and the serial part are known from --like" if serial else "the start not known")


def _read(name: str, evidence: Evidence) -> Quantity:
    """Return the bytes that a pass reads, from finished blocks here, the measured block, or another experiment."""
    plan = passes_of(evidence.here.facts)[name]
    elsewhere = [_read_by_attempts(name, record, plan) for record in evidence.like]
    here = _read_by_attempts(name, evidence.here, plan)
    return first_known((here, _measured_part(name, evidence, "bytes_read"), *elsewhere), NOT_MEASURED)


def _read_by_attempts(name: str, record: StageRecord, plan: Mapping[str, Any]) -> Quantity:
    found = passes_of(record.facts).get(name, {})
    use = of_key(record.attempts, str(found.get("key", "")))
    if use is None:
        return unknown("")
    scale = plan["voxels"] / found["voxels"]
    return Quantity(use.read_bytes * found["blocks"] * scale, f"{use.blocks} blocks done in {record.where}")


def _on_disk(evidence: Evidence, counted: str, fact: str, blocks: int, done: int) -> Quantity:
    """Return bytes or files of all blocks: counted here, from a measured block, or counted in another experiment."""
    here, found = evidence.here, []
    if done and here.disk.complete:
        found.append(Quantity(getattr(here.disk, counted) * blocks / done, f"on the disk, of {done} finished blocks"))
    found.append(total(_measured_part(name, evidence, fact) for name in passes_of(here.facts)))
    for record in evidence.like:
        if record.finished and record.disk.complete and "voxels" in record.facts:
            number = _grown_on_disk(getattr(record.disk, counted), fact, record.facts, here.facts)
            found.append(Quantity(number, f"on the disk of {record.where}"))
    return first_known(found, NOT_MEASURED)


def _grown_on_disk(counted: float, fact: str, found: Facts, plan: Facts) -> float:
    """Scale the bytes or files counted for another plan: bytes by the size of its arrays, files by its blocks."""
    if fact == "files" and "blocks" in plan:
        each = min(counted // found["blocks"], FILES_OF_A_BLOCK)
        return float(counted + each * (plan["blocks"] - found["blocks"]))
    unit = "bytes_out_uncompressed" if found.get("bytes_out_uncompressed") else "voxels"
    return float(counted * plan[unit] / found[unit])


def _rss(passes: Mapping[str, Facts], evidence: Evidence) -> Quantity:
    mean_use = mean_use_of_blocks(evidence.here)
    here = [p["taken"]["peak_rss_mib"] for p in (*passes.values(), {"taken": mean_use}) if p.get("taken")]
    found = [Quantity(max(here) * MIB, "most of the finished blocks of this experiment")] if here else []
    if evidence.measured.get("peak_rss_mib"):
        found.append(Quantity(evidence.measured["peak_rss_mib"] * MIB, "the process that measured one block"))
    for record in evidence.like:
        same = record.facts.get("block_shape_vox") == evidence.here.facts["block_shape_vox"]
        use = record.facts.get("taken") or mean_use_of_blocks(record)
        if use and same:
            found.append(Quantity(use["peak_rss_mib"] * MIB, f"most of the finished blocks of {record.where}"))
    computed = evidence.here.facts.get("main_memory_per_worker_bytes")
    if computed:
        found.append(Quantity(computed, "computed from the network, the tile and the block; not measured"))
    found += [_scaled_rss(record, evidence.here) for record in evidence.like]
    return first_known(found, NOT_MEASURED)


def _scaled_rss(record: StageRecord, here: StageRecord) -> Quantity:
    """Scale the memory of blocks of another shape, beyond that of the process, by the voxels that a block reads."""
    use = record.facts.get("taken") or mean_use_of_blocks(record)
    read = [m.facts.get("voxels_read_with_context", 0) / max(1, m.facts.get("blocks", 0)) for m in (record, here)]
    if not use or not all(read):
        return unknown(NOT_MEASURED)
    of_blocks = max(use["peak_rss_mib"] - PROCESS_MIB, 0.0) * read[1] / read[0]
    return Quantity((PROCESS_MIB + of_blocks) * MIB, f"finished blocks of {record.where}, of another shape")


def _vram(evidence: Evidence) -> Quantity:
    """Return the GPU memory of the process that measured a block, else of attempts, else as the stage computes it."""
    facts, peak = evidence.here.facts, evidence.measured.get("device_peak_mib")
    if peak is not None:
        return Quantity(peak * MIB, f"one block measured on {evidence.measured.get('device_name', 'the GPU')}")
    for record in (evidence.here, *evidence.like):
        keys = [str(p.get("key", "")) for p in passes_of(record.facts).values()]
        held = [use.gpu_bytes for key in keys if (use := of_key(record.attempts, key)) is not None]
        if any(held):
            return Quantity(max(held), f"most of the blocks done in {record.where}")
    if not evidence.has_gpu:
        return Quantity(0, "no GPU is used")
    computed = facts.get("device_memory_per_worker_bytes")
    why = "computed from the network and the tile; not measured"
    return unknown(NOT_MEASURED) if computed is None else Quantity(computed, why)


def _hours(seconds: Quantity, walltime: Quantity, workers: StageWorkers) -> dict[str, Quantity]:
    """Return the hours of cores and GPUs: of the workers during blocks, of a coordinator for the whole walltime."""
    job, coordinator = workers.workers, workers.coordinator
    held = total((seconds.times(job.cores), *([walltime.times(coordinator.cores)] if coordinator else [])))
    return {
        "cpu_hours": Quantity(held.value, held.source, held.at_least).times(1 / 3600),
        "gpu_hours": seconds.times(job.gpus / 3600) if job.gpus else Quantity(0, "no GPU is used"),
    }


def _preparation(evidence: Evidence) -> StageEstimate:
    """Estimate the copy of the volumes: bytes as prepare expects them, seconds scaled from finished copies."""
    here = evidence.here
    volumes = _volumes(here.facts)
    expected = sum(volume["bytes_expected"] for volume in volumes.values())
    left = sum(v["bytes_expected"] for v in volumes.values() if not v.get("done"))
    found = [_of_bytes(record, expected) for record in (here, *evidence.like)]
    seconds = first_known(found, NEVER_RUN)
    numbers = {
        "seconds": seconds,
        "walltime_s": seconds,
        "voxels": Quantity(_voxels(volumes.values()), "prepare plan"),
        "bytes_written": first_known((_counted(here, "size_bytes"), Quantity(expected, "computed by prepare")), ""),
        "files": first_known((_counted(here, "files"), _files_of_chunks(volumes.values())), NEVER_RUN),
    }
    return StageEstimate(numbers, 0.0 if here.finished else left / expected if expected else 1.0)


def _training(evidence: Evidence) -> StageEstimate:
    """Estimate a training from its own speed so far, a measurement, or the same training elsewhere."""
    here = evidence.here
    wanted, minutes = here.facts.get("max_iteration"), here.facts.get("max_minutes")
    found = [_of_iterations(here, wanted), _of_measured(evidence, wanted)]
    found += [_of_other(record, here, wanted) for record in evidence.like]
    seconds = first_known(found, NEVER_RUN)
    if evidence.has_gpu and here.facts.get("device") == "cpu":
        # The partition of a GPU run is not recorded. If this machine reports "cpu", it may be a login node.
        seconds = seconds.times(1.0, "; right if that was on a GPU as that of its partition")
    if minutes is not None and (seconds.value is None or seconds.value > 60 * minutes):
        seconds = Quantity(60 * float(minutes), "its limit, max_minutes")
    done = int(here.facts.get("done_iterations") or 0)
    records = (here, *evidence.like)
    numbers = {
        "iterations": Quantity(wanted, "train plan") if wanted else unknown("no max_iteration"),
        "seconds": seconds,
        "walltime_s": seconds,
        "bytes_written": first_known((_counted(one, "size_bytes") for one in records), NEVER_RUN),
        "files": first_known((_counted(one, "files") for one in records), NEVER_RUN),
        **_memory(evidence),
    }
    return StageEstimate(numbers, 0.0 if here.finished else max(0.0, 1 - done / wanted) if wanted else 1.0)


def _of_iterations(record: StageRecord, wanted: Any) -> Quantity:
    speed = record.manifest.get("it_per_s")
    if not speed or not wanted:
        return unknown("")
    return Quantity(wanted / speed, f"{record.where}: {record.manifest.get('iteration')} iterations, {speed} a second")


def _of_other(record: StageRecord, here: StageRecord, wanted: Any) -> Quantity:
    """Estimate from a training of another experiment on the same kind of device, scaled by the size of the network."""
    if record.facts.get("device") != here.facts.get("device"):
        return unknown(f"the training of {record.where} ran on another kind of device ({record.facts.get('device')})")
    speed, work_there, work_here = (
        _of_iterations(record, wanted),
        record.facts.get("multiply_adds"),
        here.facts.get("multiply_adds"),
    )
    if all(record.facts.get(key) == here.facts.get(key) for key in SAME_TRAINING):
        return speed
    if not work_there or not work_here:
        return unknown(f"the training of {record.where} is another one (patches or network)")
    return speed.times(work_here / work_there, ", for a network and patch of another size")


def _of_measured(evidence: Evidence, wanted: Any) -> Quantity:
    """Estimate all iterations from the measured ones, which ran in one process."""
    measured = evidence.measured
    if "it_per_s" not in measured or not wanted:
        return unknown(measured.get("not known", ""))
    if evidence.has_gpu and measured["device"] == "cpu":
        return unknown("its steps were measured on the CPU, but it will have a GPU: measure there")
    several = "" if _processes(evidence) == 1 else ": their steps take longer, each waits for the slowest"
    return Quantity(wanted / measured["it_per_s"], f"{_source(evidence)}{several}")


def _memory(evidence: Evidence) -> dict[str, Quantity]:
    """Return the memory of a training process with its data loaders, and of its GPU; empty if not measured."""
    names = {"rss_per_worker_bytes": "peak_rss_mib", "vram_per_worker_bytes": "device_peak_mib"}
    peaks = {name: evidence.measured[fact] for name, fact in names.items() if fact in evidence.measured}
    return {name: Quantity(mib * MIB, _source(evidence)) for name, mib in peaks.items()}


def _source(evidence: Evidence) -> str:
    measured, processes = evidence.measured, _processes(evidence)
    device = measured.get("device_name", measured["device"])
    note = "" if processes == 1 else f", one of the {processes} processes that will train together"
    return f"{measured['iteration']} iterations measured on {measured['host']}, {device}{note}"


def _processes(evidence: Evidence) -> int:
    """Return the number of processes that train together; a measurement always uses one."""
    return int(evidence.here.facts.get("processes", 1))


def _of_bytes(record: StageRecord, expected: float) -> Quantity:
    bytes_there = sum(volume["bytes_expected"] for volume in _volumes(record.facts).values())
    if not record.finished or record.seconds is None or not bytes_there:
        return unknown("")
    return Quantity(
        record.seconds * expected / bytes_there, f"{record.where}: {bytes_there / 1e6:.0f} MB in {record.seconds:.0f} s"
    )


def _counted(record: StageRecord, what: str) -> Quantity:
    if record.finished and record.disk.complete:
        return Quantity(getattr(record.disk, what), f"on the disk ({record.where})")
    return unknown("")


def _files_of_chunks(volumes: Iterable[Any]) -> Quantity:
    """Return the number of files: one for each chunk of raw, labels and mask."""
    chunks = [math.prod(-(-n // CHUNK_VOX) for n in v["shape_vox"]) * (3 if v.get("labelled") else 1) for v in volumes]
    return Quantity(sum(chunks), "computed from chunks of 64 x 64 x 64 voxels")


def _volumes(facts: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {name: v for name, v in facts.items() if isinstance(v, dict) and "bytes_expected" in v}


def _voxels(volumes: Any) -> int:
    found = 0
    for volume in volumes:
        z, y, x = volume["shape_vox"]
        found += z * y * x
    return found
