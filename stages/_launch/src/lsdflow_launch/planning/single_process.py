"""Estimates of prepare and the trainings, which have no blocks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lsdflow_launch.planning.evidence import Evidence, Made
from lsdflow_launch.planning.quantity import Quantity, first_known, unknown

NOT_MEASURED = "not known before it has run, here or in another experiment (--like)"
MIB = 2**20
CHUNK_VOX = 64
SAME_TRAINING = ("kind", "raw_shape_vox", "output_shape_vox", "patches_per_step", "device")


@dataclass(frozen=True)
class Alone:
    """Numbers of such a stage, and the share of it that is left."""

    numbers: dict[str, Quantity]
    share_left: float


def preparation(evidence: Evidence) -> Alone:
    """Estimate the copy of the volumes: bytes as prepare expects them, seconds scaled from finished copies."""
    here = evidence.here
    volumes = _volumes(here.facts)
    expected = sum(volume["bytes_expected"] for volume in volumes.values())
    left = sum(v["bytes_expected"] for v in volumes.values() if not v.get("done"))
    found = [_of_bytes(made, expected) for made in (here, *evidence.like)]
    seconds = first_known(found, NOT_MEASURED)
    numbers = {
        "seconds": seconds,
        "walltime_s": seconds,
        "voxels": Quantity(_voxels(volumes.values()), "prepare plan"),
        "bytes_written": first_known((_counted(here, "size_bytes"), Quantity(expected, "computed by prepare")), ""),
        "files": first_known((_counted(here, "files"), _files_of_chunks(volumes.values())), NOT_MEASURED),
    }
    return Alone(numbers, 0.0 if here.finished else left / expected if expected else 1.0)


def training(evidence: Evidence) -> Alone:
    """Estimate a training from its own speed so far, a measurement, or the same training elsewhere."""
    here = evidence.here
    wanted, minutes = here.facts.get("max_iteration"), here.facts.get("max_minutes")
    found = [_of_iterations(here, wanted), _of_measured(evidence, wanted)]
    found += [_of_other(made, here, wanted) for made in evidence.like]
    seconds = first_known(found, NOT_MEASURED)
    if evidence.has_gpu and here.facts.get("device") == "cpu":
        # The partition of a GPU run is not recorded. If this machine reports "cpu", it may be a login node.
        seconds = seconds.times(1.0, "; right if that was on a GPU as that of its partition")
    if minutes is not None and (seconds.value is None or seconds.value > 60 * minutes):
        seconds = Quantity(60 * float(minutes), "its limit, max_minutes")
    done = int(here.facts.get("done_iterations") or 0)
    made = (here, *evidence.like)
    numbers = {
        "iterations": Quantity(wanted, "train plan") if wanted else unknown("no max_iteration"),
        "seconds": seconds,
        "walltime_s": seconds,
        "bytes_written": first_known((_counted(one, "size_bytes") for one in made), NOT_MEASURED),
        "files": first_known((_counted(one, "files") for one in made), NOT_MEASURED),
        **_memory(evidence),
    }
    return Alone(numbers, 0.0 if here.finished else max(0.0, 1 - done / wanted) if wanted else 1.0)


def _of_iterations(made: Made, wanted: Any) -> Quantity:
    speed = made.manifest.get("it_per_s")
    if not speed or not wanted:
        return unknown("")
    return Quantity(wanted / speed, f"{made.where}: {made.manifest.get('iteration')} iterations, {speed} a second")


def _of_other(made: Made, here: Made, wanted: Any) -> Quantity:
    """Estimate from a training of another experiment on the same kind of device, scaled by the size of the network."""
    if made.facts.get("device") != here.facts.get("device"):
        return unknown(f"the training of {made.where} ran on another kind of device ({made.facts.get('device')})")
    speed, theirs, ours = _of_iterations(made, wanted), made.facts.get("multiply_adds"), here.facts.get("multiply_adds")
    if all(made.facts.get(key) == here.facts.get(key) for key in SAME_TRAINING):
        return speed
    if not theirs or not ours:
        return unknown(f"the training of {made.where} is another one (patches or network)")
    return speed.times(ours / theirs, ", for a network and patch of another size")


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
    told = {name: evidence.measured[fact] for name, fact in names.items() if fact in evidence.measured}
    return {name: Quantity(mib * MIB, _source(evidence)) for name, mib in told.items()}


def _source(evidence: Evidence) -> str:
    measured, processes = evidence.measured, _processes(evidence)
    device = measured.get("device_name", measured["device"])
    alone = "" if processes == 1 else f", one process alone of the {processes} that will train together"
    return f"{measured['iteration']} iterations measured on {measured['host']}, {device}{alone}"


def _processes(evidence: Evidence) -> int:
    """Return the number of processes that train together; a measurement always uses one."""
    return int(evidence.here.facts.get("processes", 1))


def _of_bytes(made: Made, expected: float) -> Quantity:
    theirs = sum(volume["bytes_expected"] for volume in _volumes(made.facts).values())
    if not made.finished or made.seconds is None or not theirs:
        return unknown("")
    return Quantity(made.seconds * expected / theirs, f"{made.where}: {theirs / 1e6:.0f} MB in {made.seconds:.0f} s")


def _counted(made: Made, what: str) -> Quantity:
    if made.finished and made.disk.complete:
        return Quantity(getattr(made.disk, what), f"on the disk ({made.where})")
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
