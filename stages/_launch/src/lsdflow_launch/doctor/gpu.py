"""GPUs: what the driver reports, and whether the torch of the stages can use them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from lsdflow_launch.doctor.finding import Finding, fail, ok, warn
from lsdflow_launch.doctor.outside import ask_program, ask_stage_in_time

QUERY = ("nvidia-smi", "--query-gpu=name,memory.total,memory.free,driver_version", "--format=csv,noheader,nounits")
# One stage of each environment: prediction, and the trainings.
ASKED = ("predict", "train-acrlsd")


def gpu_findings() -> Iterator[Finding]:
    """Yield findings about the driver and its GPUs, then about torch in each environment."""
    with ThreadPoolExecutor() as pool:
        told = pool.map(lambda stage: ask_stage_in_time(stage, ["doctor", "--json"]), ASKED)
        answer = ask_program(QUERY)
        gpus = [line for line in answer.out.splitlines() if line.strip()] if answer.fine else []
        if not answer.here:
            yield ok("GPU", "no driver: networks run on the CPU (profile tiny, compute.device auto)")
        elif not gpus:
            yield fail(
                "GPU", f"nvidia-smi: {answer.problem or 'no GPU'}", "load the driver (nvidia-smi must list GPUs)"
            )
        for line in gpus:
            name, total, free, driver = (part.strip() for part in line.split(","))
            yield ok("GPU", f"{name}, {free} of {total} MiB free, driver {driver}")
        for stage, facts in zip(ASKED, told, strict=True):
            yield torch_finding(stage, facts, len(gpus))


def torch_finding(stage: str, facts: Mapping[str, Any], gpus: int) -> Finding:
    """Return whether torch of a stage sees the GPUs that the driver reports."""
    subject = f"torch of {stage}"
    if "problem" in facts or "torch" not in facts:
        return fail(subject, str(facts.get("problem", "no answer")), f"{stage} doctor --debug tells more; make setup")
    built = f"CUDA {facts['cuda']}" if facts.get("cuda") else "the CPU alone"
    found = f"{facts['torch']} built for {built}, sees {facts['devices']} GPUs"
    if not gpus or facts["devices"] >= gpus:
        return ok(subject, found)
    if not facts.get("cuda"):
        return fail(subject, f"{found}, there are {gpus}", "make setup TORCH=cuda, or the images of TORCH=cuda")
    if facts["devices"]:
        return warn(subject, f"{found}, there are {gpus}", "CUDA_VISIBLE_DEVICES hides the others?")
    why = facts.get("cuda_problem") or "CUDA cannot be used"
    return fail(subject, f"{found}: {why}", f"a driver for CUDA {facts['cuda']}, or the torch of an older CUDA")
