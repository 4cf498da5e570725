"""The stage: reads volumes of any format, and writes raw (and labels) on one grid, brick by brick, with a report."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from lsdflow_command.processes import one_at_a_time
from lsdflow_command.progress import Progress
from lsdflow_command.stage import Stage
from lsdflow_contract import CONTRACT_VERSION
from lsdflow_contract.arrays import RAW
from lsdflow_contract.errors import BadData, MissingInput, StageError, StorageFailure
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.hashing import hash_of
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import (
    Manifest,
    Writer,
    current_key,
    read_kept_manifest,
    read_manifest,
    remove_manifest,
    work_key,
)
from lsdflow_prepare.config import PrepareConfig, TargetVolume, TrainingVolume
from lsdflow_prepare.findings import Findings
from lsdflow_prepare.finished import STAGE, VolumeReport, finished_report, key_of_all, make_manifest, make_report
from lsdflow_prepare.inputs import VolumeInputs, open_inputs
from lsdflow_prepare.look import describe_volumes, look_at
from lsdflow_prepare.same_input import containers, recognised, remember
from lsdflow_prepare.survey import survey
from lsdflow_prepare.verify import LISTED, repair_bricks, require_same_work, require_whole
from lsdflow_prepare.writing import WritePlan, bytes_needed, write_plans, write_volume

SURVEY_SECONDS = 6.0
LOG = logging.getLogger("lsdflow.prepare")


class Prepare(Stage):
    """The stage."""

    name = STAGE
    repairable = True

    def run(self, experiment: Experiment) -> None:
        """Write every volume that does not exist yet, and the manifest.

        Raises:
            BadData, MissingInput, ConfigError: a problem of the inputs (the first; the others are logged).
            OutputConflict: arrays of another program at the output path, or another prepare that is running.
        """
        started, findings = time.time(), Findings()
        with _opened(experiment, findings) as volumes:
            plans = [_plans(experiment, inputs) for inputs in volumes]
            for arrays in (plan_.arrays for group in plans for plan_ in group):
                arrays.refuse_others()
            _survey_all(
                [v for v, group in zip(volumes, plans, strict=True) if finished_report(group) is None], findings
            )
            _raise_first(findings)
            _refuse_full_disk(experiment, volumes, plans)
            with _alone(experiment.layout):
                for inputs, group in zip(volumes, plans, strict=True):
                    remember(inputs, group)
                _finish(experiment, volumes, plans, findings, started)

    def validate(self, experiment: Experiment) -> list[StageError]:
        """All problems of all volumes; warnings are logged. Reads a sample of large volumes, writes nothing."""
        found = inspect(experiment)
        for text in found.warnings:
            LOG.warning("warning: %s", text)
        return found.errors

    def plan(self, experiment: Experiment) -> dict[str, Any]:
        """Bricks, voxels and bytes of a run."""
        facts, findings = {}, Findings()
        with _opened(experiment, findings) as volumes:
            _raise_first(findings)
            for inputs in volumes:
                plans = _plans(experiment, inputs, compare=False)
                facts[inputs.label] = {
                    "shape_vox": list(inputs.region.shape_vox),
                    "voxel_size_nm": list(inputs.geometry.voxel_size_nm),
                    "offset_nm": list(inputs.output_geometry.offset_nm),
                    "format": inputs.raw.form,
                    "bricks": sum(len(p.bricks) for p in plans),
                    "labelled": inputs.labels is not None,
                    "bytes_expected": bytes_needed(inputs.region.shape_vox, inputs.labels is not None),
                    "done": finished_report(plans) is not None,
                }
        return facts

    def describe(self, experiment: Experiment) -> None:
        """Write the metadata of all volumes and a manifest to `experiment.descriptions`."""
        describe_volumes(experiment)

    def status(self, experiment: Experiment) -> dict[str, Any]:
        """Whether each volume is finished."""
        table, layout = experiment.table(STAGE, PrepareConfig), experiment.layout
        labels = [f"training/{volume.name}" for volume in table.training] + ["target"] * (table.target is not None)
        state: dict[str, Any] = {label.replace("/", " "): _state(containers(layout, label)) for label in labels}
        return {"finished": layout.manifest(STAGE).exists(), **state}

    def verify(self, experiment: Experiment) -> dict[str, Any]:
        """Read back all volumes. Raises the errors of `require_whole`, MissingInput if prepare has not finished."""
        manifest = read_manifest(experiment.layout, STAGE)
        findings = Findings()
        with _opened(experiment, findings) as volumes:
            _raise_first(findings)
            bricks = {v.label: require_whole(v.label, _plans(experiment, v)) for v in volumes}
        return {"bricks": bricks, "identity": manifest.identity, "verified": True}

    def repair(self, experiment: Experiment) -> dict[str, Any]:
        """Recompute only the bricks that are missing or damaged; returns facts of what was found.

        Raises MissingInput (66) if prepare has not finished or a source is gone, BadData (65) if a source has changed.
        """
        started = time.time()
        try:
            manifest = read_manifest(experiment.layout, STAGE)
        except BadData:
            # The reports next to the volumes hold the same facts: a run writes the manifest again and reads no volume.
            self.run(experiment)
            manifest = read_manifest(experiment.layout, STAGE)
        table = experiment.table(STAGE, PrepareConfig)
        findings = Findings()
        with _opened(experiment, findings) as volumes:
            _raise_first(findings)
            plans = [_plans(experiment, inputs, compare=False) for inputs in volumes]
            for inputs, group in zip(volumes, plans, strict=True):
                require_same_work(table, manifest, inputs.label, group)
            with _alone(experiment.layout):
                repaired = []
                for inputs, group in zip(volumes, plans, strict=True):
                    made = manifest.facts["volumes"][inputs.label]["identity"]
                    repaired += repair_bricks(inputs.label, inputs, group, made)
                _finish(experiment, volumes, plans, findings, started)
        bricks = sum(len(plan.bricks) for group in plans for plan in group)
        return {"bricks": bricks, "broken": len(repaired), "parts": repaired[:LISTED]}


def inspect(experiment: Experiment) -> Findings:
    """Errors and warnings of all volumes."""
    findings = Findings()
    with _opened(experiment, findings) as volumes:
        _survey_all(volumes, findings)
    return findings


def look(experiment: Experiment) -> dict[str, Any]:
    """Facts of the volumes for `lsdflow init`, and their problems; reads a sample of large volumes."""
    findings = Findings()
    seen: dict[str, Any] = {}
    with _opened(experiment, findings) as volumes:
        for number, inputs in enumerate(volumes, start=1):
            deadline = time.monotonic() + SURVEY_SECONDS / (len(volumes) - number + 1)
            with findings.collecting():
                seen[inputs.label] = look_at(inputs, experiment.resolve, deadline)
    return {"volumes": seen, "problems": [error.as_dict() for error in findings.errors]}


def _finish(
    experiment: Experiment,
    volumes: list[VolumeInputs],
    plans: list[list[WritePlan]],
    findings: Findings,
    started: float,
) -> None:
    """Write all volumes, then the manifest; until then an earlier result remains current."""
    table = experiment.table(STAGE, PrepareConfig)
    if any(finished_report(group) is None for group in plans):
        keys = {inputs.label: group[0].arrays.key for inputs, group in zip(volumes, plans, strict=True)}
        remove_manifest(experiment.layout, STAGE, [key_of_all(table, keys)])
    reports = _write_all(volumes, plans)
    for label, report in reports.items():
        for text in report.warnings:
            if f"{label.removeprefix('training/')}: {text}" not in findings.warnings:
                LOG.warning("warning: %s: %s", label, text)
                findings.warn(label.removeprefix("training/"), text)
    outputs = {inputs.label: group[0].arrays.container for inputs, group in zip(volumes, plans, strict=True)}
    seconds = time.time() - started
    manifest = make_manifest(experiment, table, reports, outputs, warnings=findings.warnings, seconds=seconds)
    _leave_manifest(experiment.layout, manifest)


def _leave_manifest(layout: ExperimentLayout, manifest: Manifest) -> None:
    """Make this manifest current; if an earlier run has the same result, its manifest is kept, with its run time."""
    with suppress(MissingInput, BadData):
        found = read_kept_manifest(layout, STAGE, manifest.key)
        if (found.identity, found.outputs) == (manifest.identity, manifest.outputs):
            if current_key(layout, STAGE) != found.key:
                found.write(layout)
            return
    layout.result(STAGE, manifest.key).mkdir(parents=True, exist_ok=True)
    manifest.finish(layout)


def _write_all(volumes: list[VolumeInputs], plans: list[list[WritePlan]]) -> dict[str, VolumeReport]:
    """Reports of all volumes; finished ones are not read again."""
    sizes = [sum(box.size for plan in group for box in plan.bricks) for group in plans]
    known = [finished_report(group) for group in plans]
    already = sum(size for size, report in zip(sizes, known, strict=True) if report is not None)
    reports = {}
    with Progress(STAGE, total=sum(sizes), unit="voxel", already=already) as progress:
        for inputs, group, found in zip(volumes, plans, known, strict=True):
            reports[inputs.label] = found or make_report(inputs, group, write_volume(inputs, group, progress))
    return reports


@contextmanager
def _opened(experiment: Experiment, findings: Findings) -> Iterator[list[VolumeInputs]]:
    """All volumes of the table that can be opened; problems are added to `findings`."""
    table = experiment.table(STAGE, PrepareConfig)
    tables: list[tuple[str, TrainingVolume | TargetVolume]] = [(volume.name, volume) for volume in table.training]
    if table.target is not None:
        tables.append(("target", table.target))
    with ExitStack() as stack:
        volumes = []
        for name, volume in tables:
            inputs = open_inputs(name, volume, experiment.resolve, findings)
            if inputs is not None:
                volumes.append(stack.enter_context(inputs))
        _warn_voxel_sizes(volumes, findings)
        yield volumes


def _warn_voxel_sizes(volumes: list[VolumeInputs], findings: Findings) -> None:
    sizes = {inputs.geometry.voxel_size_nm for inputs in volumes}
    if len(sizes) > 1:
        listed = ", ".join(f"{inputs.label} {inputs.geometry.voxel_size_nm}" for inputs in volumes)
        findings.warn(STAGE, f"voxel sizes differ, a network sees one size only: {listed} nm")


def _survey_all(volumes: list[VolumeInputs], findings: Findings) -> None:
    for inputs in volumes:
        survey(inputs, findings, SURVEY_SECONDS / len(volumes))


def _raise_first(findings: Findings) -> None:
    for text in findings.warnings:
        LOG.warning("warning: %s", text)
    for error in findings.errors[1:]:
        LOG.error("also: %s", error.message())
    if findings.errors:
        raise findings.errors[0]


def _plans(experiment: Experiment, inputs: VolumeInputs, *, compare: bool = True) -> list[WritePlan]:
    """The plans for writing a volume to the folder of its key. compare: see `recognised`."""
    layout = experiment.layout
    parameters = inputs.table.model_dump(mode="json", exclude={"name", "probability"})
    sources = {name: hash_of(state) for name, state in inputs.states.items()}
    key = work_key(STAGE, parameters, sources)
    provenance = {
        "contract": CONTRACT_VERSION,
        "written_by": Writer.of(STAGE).model_dump(),
        "key": key,
        "config_hash": hash_of(parameters),
        "parameters": parameters,
        "inputs": sources,
    }
    plans = write_plans(inputs, layout.result(STAGE, key) / f"{inputs.name}.zarr", provenance)
    return recognised(inputs, plans, layout, compare=compare)


def _refuse_full_disk(experiment: Experiment, volumes: list[VolumeInputs], plans: list[list[WritePlan]]) -> None:
    open_work = [
        inputs for inputs, group in zip(volumes, plans, strict=True) if not all(plan.arrays.is_done() for plan in group)
    ]
    needed = sum(bytes_needed(inputs.region.shape_vox, inputs.labels is not None) for inputs in open_work)
    free = shutil.disk_usage(experiment.layout.root).free
    if free < needed:
        raise StorageFailure(
            "the disk is too small for the prepared volumes",
            where=experiment.layout.root,
            wanted=f"about {needed / 1e9:.1f} GB",
            found=f"{free / 1e9:.1f} GB free",
        )


def _alone(layout: ExperimentLayout) -> AbstractContextManager[None]:
    return one_at_a_time(layout.results_lock(STAGE), STAGE)


def _state(found: list[Path]) -> str:
    if any((container / RAW.dataset).exists() for container in found):
        return "made"
    return "begun" if found else "not begun"
