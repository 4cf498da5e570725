"""Evidence for the numbers of a plan: amounts for each unit of a stage's plan, and where they come from.

1. here: finished blocks of this experiment, the speed of its training; else what `<stage> measure` computed
2. the stage itself: bytes and memory, no time
3. machines.toml: what the stages took on machines that were measured

Evidence of one kind of device gives no time or memory for the other: work on GPUs is never planned from CPUs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any

from lsdflow_command.scratch import scratch_folder
from lsdflow_contract.errors import MissingInput, StageError
from lsdflow_contract.experiment import TRAININGS, Experiment
from lsdflow_contract.files import parse_toml, read_json, storage_errors
from lsdflow_contract.manifest import read_manifest
from lsdflow_launch.chain import stage_arguments
from lsdflow_launch.commands import Ask, ask_program
from lsdflow_launch.planning.jobs import Job
from lsdflow_launch.status import speed_so_far

Facts = Mapping[str, Any]
RSS, VRAM = "rss_per_worker_bytes", "vram_per_worker_bytes"
PEAKS = {RSS: "peak_rss_mib", VRAM: "device_peak_mib"}
# Reading and writing do not depend on the device.
OF_ANY_DEVICE = ("bytes_read", "bytes_written", "files")
# Programs that already ran when something was measured: from here on the time may be too long.
LOADED = 0.5


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
    sources = "; ".join(dict.fromkeys(part for q in listed for part in q.source.split("; ") if part))
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


# By each stage from its settings; two files of a block: one of an array and one of rows.
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
    not_known = Quantity(None, why_not or "nothing is done, measured (--measure) or in the table of machines")
    return next((quantity for quantity in found if quantity.value is not None), not_known)


def passes_of(facts: Facts) -> Mapping[str, Facts]:
    """Return the passes of a stage's plan by name; the pass of a stage with one pass has the name ""."""
    return facts.get("passes") or {"": facts}


def evidence_of(
    experiment: Experiment, stage: str, name: str, facts: Facts, measured: Facts, job: Job
) -> list[Evidence]:
    """Return the evidence for a pass of a stage, the best first.

    facts: the plan of the stage in this experiment. measured: what `measure` returned for the stage.
    """
    one = passes_of(facts).get(name, {})
    done = _training_here(experiment, stage) if stage in TRAININGS else _blocks_here(experiment, stage, one)
    here = (_evidence(found, name, facts) for found in (done, measured))
    return [*here, COMPUTED, *_machines(stage, name, facts, job, experiment.compute.threads_per_worker)]


def _training_here(experiment: Experiment, stage: str) -> Facts:
    """Return the speed of a training that has begun, in the words of `<stage> measure`; {} if it has not."""
    losses = experiment.layout.train_dir(stage) / "loss.csv"
    speed = (_manifest(experiment, stage) or speed_so_far(losses)).get("it_per_s")
    runs = [read_json(path) for path in experiment.layout.stage_runs(stage).glob("*/outcome.json")]
    on_gpu = bool(runs) and all(run.get("resources", {}).get("gpu") for run in runs)
    what = f"this training, {speed} iterations a second"
    return {"it_per_s": speed, "device": "gpu" if on_gpu else "cpu", "what": what} if speed else {}


def is_finished(experiment: Experiment, stage: str) -> bool:
    """Return True if a stage has a readable manifest."""
    return bool(_manifest(experiment, stage))


def _manifest(experiment: Experiment, stage: str) -> Facts:
    try:
        return {"finished": True, **read_manifest(experiment.layout, stage).facts}
    except StageError:
        return {}


def _blocks_here(experiment: Experiment, stage: str, facts: Facts) -> Facts:
    """Return what the finished blocks of a pass took on average, in the words of `<stage> measure`; {} without any."""
    if not (taken := facts.get("taken")):
        return {}
    device = experiment.layout.result(stage, str(facts.get("key", ""))) / "device.json"  # only predict writes it
    return {
        "seconds": taken["seconds_per_block"],
        "voxels": facts["voxels"] / facts["blocks"],
        "peak_rss_mib": taken["peak_rss_mib"],
        "device": read_json(device).get("device", "cpu") if device.is_file() else "cpu",
        "what": f"{taken['records']} finished block{'s' * (taken['records'] > 1)} of this experiment",
    }


def _evidence(found: Facts, name: str, facts: Facts) -> Evidence:
    """Return what a block of a pass or some iterations took, or why nothing was measured."""
    if not found or "not known" in found:
        return Evidence(found.get("not known", ""))
    if found.get("pass", name) != name:
        return Evidence("its later passes need the earlier ones")
    device = "gpu" if found.get("device", "cpu") != "cpu" else "cpu"
    on = ", ".join(str(word) for word in (found.get("host"), found.get("device_name", found.get("device"))) if word)
    if "load" in found:
        on += f", when its load was already {found['load']:.1f}"
    rates = {number: {"one": found[peak] * 2**20} for number, peak in PEAKS.items() if found.get(peak) is not None}
    if "it_per_s" in found:
        rates["seconds"] = {"iterations": 1 / found["it_per_s"]}
        several = "what" not in found and facts.get("processes", 1) > 1
        alone = ", one process of several, which wait for the slowest" if several else ""
        return Evidence(found.get("what") or f"{found['iteration']} iterations measured on {on}", device, rates, alone)
    amounts = [number for number in ("seconds", *OF_ANY_DEVICE) if found.get(number) is not None]
    rates |= {number: {"voxels": found[number] / found["voxels"]} for number in amounts}
    return Evidence(found.get("what") or f"one block measured on {on}", device, rates)


@cache
def machines() -> Sequence[Facts]:
    """Return the shipped table of machines."""
    text = files("lsdflow_launch.planning").joinpath("machines.toml").read_text(encoding="utf-8")
    found: Sequence[Facts] = parse_toml(text)["machines"]
    return found


def _machines(stage: str, name: str, facts: Facts, job: Job, threads: int) -> Iterator[Evidence]:
    """Yield the rows of the shipped table for a pass; of GPUs only the one whose type the jobs ask for, if they do."""
    key = f"{stage}.{name}" if name and stage != "predict" else stage
    if stage in TRAININGS:
        key = "training.acrlsd" if facts.get("kind") == "acrlsd" else "training"
    for machine in machines():
        rates = dict(machine["stages"].get(key, {}))
        if stage == "predict" and machine["device"] == "cpu":  # each thread computes a tile
            rates["seconds"] = {unit: rate / threads for unit, rate in rates["seconds"].items()}
        at_least, other = rates.pop("at_least", ""), job.gpu_type.lower() not in machine["name"].lower()
        if rates and machine["device"] == "gpu" and other:
            yield Evidence(f"the table of machines has no {job.gpu_type}")
        elif rates:
            yield Evidence(f"table of machines: {machine['name']}", machine["device"], rates, at_least)


def gpu_lines(experiment: Experiment) -> Iterator[str]:
    """Yield what the GPUs of this machine will do, and what a measured one did; nothing without one, or on the CPU."""
    out, problem = ask_program(("nvidia-smi", "--query-gpu=name", "--format=csv,noheader"))
    names = out.splitlines() if not problem and experiment.compute.device != "cpu" else []
    if names:
        precision = experiment.tables.get("predict", {}).get("precision", "auto")
        chosen = "fp16" if precision == "auto" else precision
        yield f"GPU here: {len(names)} x {names[0]}: predict in {chosen}, trainings in bf16 (before Ampere: fp16)"
        yield from (f"  measured on {one['name']}: {one['reached']}" for one in machines() if "reached" in one)


def measure(experiment: Experiment, stage: str, ask: Ask) -> Facts:
    """Measure a block or some steps of a stage in a temporary folder; {"not known": why} if it cannot run yet."""
    root, (load, *_) = experiment.layout.root, os.getloadavg()
    with storage_errors(root), scratch_folder(root, "measure") as folder:
        try:
            answer = ask(stage, [*stage_arguments("measure", experiment), "--into", str(folder / stage)])
        except StageError as error:
            answer = error.as_dict()
    if "exit_code" not in answer:
        return {**answer, **({"load": load} if load >= LOADED else {})}
    if answer["exit_code"] == MissingInput.exit_code:  # it will be made by the chain
        return {"not known": f"nothing can be measured yet: {answer['what']}"}
    fix = f" ({answer['fix']})" if answer.get("fix") else ""
    return {"not known": f"not measured: {answer['what']}{fix}"}
