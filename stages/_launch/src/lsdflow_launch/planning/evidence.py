"""Evidence for the numbers of a plan: what a part of the work took, as rates by the units of the stage's plan.

1. finished blocks of this experiment, the speed of its training, its files
2. a block, or some training steps, computed into a temporary folder (`<stage> measure`)
3. machines.toml: what the stages took on machines that were measured

Evidence of one kind of device gives no time or memory for the other: work on GPUs is never planned from CPUs.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from lsdflow_contract.errors import MissingInput, StageError
from lsdflow_contract.experiment import TRAININGS, Experiment
from lsdflow_contract.files import parse_toml, read_json, storage_errors
from lsdflow_contract.manifest import read_manifest
from lsdflow_launch.chain import stage_arguments
from lsdflow_launch.commands import Ask, ask_program
from lsdflow_launch.disk import DiskUse, disk_use, result_folders
from lsdflow_launch.planning.jobs import Job
from lsdflow_launch.status import speed_so_far

LOG = logging.getLogger("lsdflow.plan")
Facts = Mapping[str, Any]
MIB = 2**20
RSS, VRAM = "rss_per_worker_bytes", "vram_per_worker_bytes"
# Seconds of blocks grow with the first of these that the stage's plan has.
WORK = ("multiply_adds", "voxels_read_with_context", "voxels")
# What a stage reports of a measured block; reading and writing do not depend on the device.
AMOUNTS = ("seconds", "bytes_read", "bytes_written", "files")
OF_ANY_DEVICE = AMOUNTS[1:]
NOT_KNOWN = "nothing is done, measured (--measure) or in the table of machines"


@dataclass(frozen=True)
class Quantity:
    """A number. value: None if not known. source: origin, or why not known. at_least: the value is a lower bound."""

    value: float | None
    source: str
    at_least: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return the number as stored in plan.json."""
        return {"value": self.value, "from": self.source, **({"at_least": True} if self.at_least else {})}

    def times(self, factor: float) -> Quantity:
        """Return the value times a factor."""
        return self if self.value is None else replace(self, value=self.value * factor)


def total(parts: Iterable[Quantity]) -> Quantity:
    """Return the sum; `at_least` if a part is not known, unknown if no part is known."""
    listed = list(parts)
    values = [q.value for q in listed if q.value is not None]
    sources = "; ".join(dict.fromkeys(q.source for q in listed if q.source))
    partly = len(values) < len(listed) or any(q.at_least for q in listed)
    return Quantity(sum(values), sources, partly) if values else Quantity(None, sources)


@dataclass(frozen=True)
class Evidence:
    """What a part of the work took, or why nothing is known of it. rates: number -> unit -> amount for each one.

    Of several units the products are added, but of seconds the largest counts. device: "cpu" or "gpu"; "" for any.
    at_least: why the seconds are a lower bound.
    """

    source: str = ""
    device: str = ""
    rates: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    at_least: str = ""

    def scaled(self, name: str, units: Facts, job: Job) -> Quantity:
        """Return a number for these amounts of units, computed by such jobs."""
        parts = [rate * units[unit] for unit, rate in self.rates.get(name, {}).items() if unit in units]
        if not parts:
            return Quantity(None, "" if self.rates else self.source)
        if name not in OF_ANY_DEVICE and self.device not in ("", job.device):
            return Quantity(None, f"{self.source} (on a {self.device.upper()}, its workers have {job.device.upper()}s)")
        if name != "seconds":
            return Quantity(sum(parts), self.source)
        return Quantity(max(parts), self.source + self.at_least, bool(self.at_least))


# By each stage itself, from its settings; two files of a block: one of an array and one of rows.
COMPUTED = Evidence(
    "computed by the stage, not measured",
    rates={
        "bytes_written": {"bytes_expected": 1},
        "files": {"chunks": 1, "blocks": 2, "tables": 3},
        RSS: {"main_memory_per_worker_bytes": 1},
        VRAM: {"device_memory_per_worker_bytes": 1},
    },
)


def first_known(evidence: Iterable[Evidence], name: str, units: Facts, job: Job) -> Quantity:
    """Return the number from the first evidence that has it; if none has, an unknown one with all reasons."""
    found = [one.scaled(name, units, job) for one in evidence]
    why_not = "; ".join(dict.fromkeys(quantity.source for quantity in found if quantity.source))
    return next((q for q in found if q.value is not None), Quantity(None, why_not or NOT_KNOWN))


def passes_of(facts: Facts) -> Mapping[str, Facts]:
    """Return the passes of a stage's plan by name; the pass of a stage with one pass has the name ""."""
    return facts.get("passes") or {"": facts}


def evidence_of(
    experiment: Experiment, stage: str, facts: Facts, measured: Facts, job: Job
) -> Callable[[str], Sequence[Evidence]]:
    """Return a function that gives the evidence for a pass of a stage, the best first.

    facts: the plan of the stage in this experiment. measured: what `measure` returned for the stage.
    """
    files = _on_disk(experiment, stage, facts)

    def of_pass(name: str) -> Sequence[Evidence]:
        """Return the evidence for one pass."""
        here = _done_here(experiment, stage, passes_of(facts).get(name, {}))
        return [here, files, _measured(name, facts, measured), COMPUTED, *_table(stage, name, facts, job)]

    return of_pass


def is_finished(experiment: Experiment, stage: str) -> bool:
    """Return True if a stage has a readable manifest."""
    return bool(_manifest(experiment, stage))


def _manifest(experiment: Experiment, stage: str) -> Facts:
    try:
        return {"finished": True, **read_manifest(experiment.layout, stage).facts}
    except StageError:
        return {}


def speed_of_training(experiment: Experiment, stage: str) -> float | None:
    """Return the iterations a second of a training so far; None if it has not begun."""
    found = _manifest(experiment, stage) or speed_so_far(experiment.layout.train_dir(stage) / "loss.csv")
    return found.get("it_per_s")


def _done_here(experiment: Experiment, stage: str, facts: Facts) -> Evidence:
    """Return what was done here: finished blocks, iterations of a training, or the volumes that were prepared."""
    outcomes = [read_json(path) for path in experiment.layout.stage_runs(stage).glob("*/outcome.json")]
    if stage in TRAININGS:
        speed = speed_of_training(experiment, stage)
        on_gpu = bool(outcomes) and all(outcome.get("resources", {}).get("gpu") for outcome in outcomes)
        rates = {"seconds": {"iterations": 1 / speed}} if speed else {}
        return Evidence(f"this training, {speed} iterations a second" if speed else "", _device(on_gpu), rates)
    if taken := facts.get("taken"):
        unit = next(unit for unit in WORK if facts.get(unit))
        seconds = taken["seconds_per_block"] * facts["blocks"] / facts[unit]
        rates = {"seconds": {unit: seconds}, RSS: {"one": taken["peak_rss_mib"] * MIB}}
        what = f"{taken['records']} finished block{'s' * (taken['records'] > 1)} of this experiment"
        return Evidence(what, _device_of_blocks(experiment.layout.result(stage, str(facts.get("key", "")))), rates)
    copied = sum(volume["bytes_expected"] for volume in volumes_of(facts))
    if not copied or not is_finished(experiment, stage):
        return Evidence()
    seconds = sum(outcome["seconds"] for outcome in outcomes)
    return Evidence(f"this experiment, {copied / 1e6:.0f} MB", rates={"seconds": {"bytes_expected": seconds / copied}})


def _device(on_gpu: bool) -> str:
    return "gpu" if on_gpu else "cpu"


def _device_of_blocks(result: Path) -> str:
    """Return where blocks were computed: "gpu" only if predict recorded that with its result."""
    try:
        return _device(read_json(result / "device.json").get("device", "cpu") != "cpu")
    except StageError:
        return "cpu"


def _on_disk(experiment: Experiment, stage: str, facts: Facts) -> Evidence:
    """Return the files of the finished blocks, for each block; for a finished stage without blocks, in all."""
    finished = is_finished(experiment, stage)
    done = sum(one.get("blocks" if finished else "blocks_done", 0) for one in passes_of(facts).values())
    used = disk_use(result_folders(experiment.layout, stage)) if done or finished else DiskUse(complete=False)
    if not used.complete:
        return Evidence()
    unit, each = ("blocks", done) if done else ("one", 1)
    counted = {"bytes_written": used.size_bytes, "files": used.files}
    return Evidence("counted on the disk", rates={name: {unit: n / each} for name, n in counted.items()})


def _measured(name: str, facts: Facts, found: Facts) -> Evidence:
    """Return what was measured of a pass, or why nothing was."""
    if not found or "not known" in found:
        return Evidence(found.get("not known", ""))
    on = ", ".join(str(word) for word in (found.get("host"), found.get("device_name", found.get("device"))) if word)
    device = _device(str(found.get("device", "cpu")) != "cpu")
    peaks = {RSS: found.get("peak_rss_mib"), VRAM: found.get("device_peak_mib")}
    rates = {number: {"one": mib * MIB} for number, mib in peaks.items() if mib is not None}
    if "it_per_s" in found:
        rates["seconds"] = {"iterations": 1 / found["it_per_s"]}
        several = ", one process of several, which wait for the slowest" if facts.get("processes", 1) > 1 else ""
        return Evidence(f"{found['iteration']} iterations measured on {on}", device, rates, several)
    if found.get("pass", name) != name:
        return Evidence(f"the pass {name} needs those before it")
    rates |= {n: {"voxels": found[n] / found["voxels"]} for n in AMOUNTS if found.get(n) is not None}
    return Evidence(f"one block measured on {on}", device, rates)


@cache
def machines() -> Sequence[Facts]:
    """Return the shipped table of machines."""
    text = files("lsdflow_launch.planning").joinpath("machines.toml").read_text(encoding="utf-8")
    found: Sequence[Facts] = parse_toml(text)["machines"]
    return found


def gpu_lines(experiment: Experiment) -> Iterator[str]:
    """Yield what the GPUs of this machine will do, and what a measured one did; nothing without one, or on the CPU."""
    out, problem = ask_program(("nvidia-smi", "--query-gpu=name", "--format=csv,noheader"))
    names = out.splitlines() if not problem and experiment.compute.device != "cpu" else []
    if names:
        precision = experiment.tables.get("predict", {}).get("precision", "auto")
        chosen = (
            f"predict in {'fp16' if precision == 'auto' else precision}, trainings in bf16 (before Ampere: float32)"
        )
        yield f"GPU here: {len(names)} x {names[0]}: {chosen}"
        yield from (f"  measured on {one['name']}: {one['reached']}" for one in machines() if "reached" in one)


def _table(stage: str, name: str, facts: Facts, job: Job) -> Iterator[Evidence]:
    """Yield the rows of the shipped table for a pass; of GPUs only the one whose type the jobs ask for, if they do."""
    key = f"{stage}.{name}" if name and stage != "predict" else stage
    if stage in TRAININGS:
        key = "training.acrlsd" if facts.get("kind") == "acrlsd" else "training"
    for machine in machines():
        rates = dict(machine["stages"].get(key, {}))
        at_least, other = rates.pop("at_least", ""), job.gpu_type.lower() not in machine["name"].lower()
        if rates and machine["device"] == "gpu" and other:
            yield Evidence(f"the table of machines has no {job.gpu_type}")
        elif rates:
            yield Evidence(f"table of machines: {machine['name']}", machine["device"], rates, at_least)


def volumes_of(facts: Facts) -> list[Facts]:
    """Return the volumes in the plan of prepare."""
    return [volume for volume in facts.values() if isinstance(volume, dict) and "bytes_expected" in volume]


def measure(experiment: Experiment, stages: Sequence[str], ask: Ask) -> dict[str, Facts]:
    """Measure a block or some steps of each stage, one stage after another, in a temporary folder beside the results.

    For a stage that cannot run yet, the result is {"not known": why}.
    """
    with storage_errors(experiment.layout.root):
        folder = Path(tempfile.mkdtemp(prefix=".measure-", dir=experiment.layout.root))
    try:
        return {stage: _ask_to_measure(experiment, stage, folder / stage, ask) for stage in stages}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _ask_to_measure(experiment: Experiment, stage: str, folder: Path, ask: Ask) -> Facts:
    LOG.info("%s: a block or some steps are measured", stage)
    try:
        answer = ask(stage, [*stage_arguments("measure", experiment), "--into", str(folder)])
    except StageError as error:
        answer = error.as_dict()
    shutil.rmtree(folder, ignore_errors=True)
    if "exit_code" not in answer:
        return dict(answer)
    if answer["exit_code"] == MissingInput.exit_code:  # it will be made by the chain
        return {"not known": f"nothing can be measured yet: {answer['what']}"}
    fix = answer.get("fix")
    return {"not known": f"not measured: {answer['what']}" + (f" ({fix})" if fix else "")}
