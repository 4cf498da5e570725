"""The stage: reads volumes of any format, and writes raw (and labels) on one grid, block by block, with a report."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from lsdflow_contract.errors import BadData, ContractMismatch, MissingInput, OutputConflict, StageError, StorageFailure
from lsdflow_contract.experiment import Experiment, StoreTable
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import Manifest, read_kept_manifest, read_manifest
from lsdflow_prepare.config import PrepareConfig
from lsdflow_prepare.findings import Findings, voxel_size_warnings
from lsdflow_prepare.inputs import VolumeInputs, open_inputs
from lsdflow_prepare.look import describe_volumes, look_at
from lsdflow_prepare.repair import repair_pass, require_same_settings
from lsdflow_prepare.report import (
    VolumeReport,
    finished_report,
    is_same_result,
    key_of_all,
    make_manifest,
    make_report,
    read_report,
    report_path,
)
from lsdflow_prepare.same_source import containers, recognised, refuse_changed, remember
from lsdflow_prepare.survey import survey
from lsdflow_prepare.volume_passes import (
    STAGE,
    VolumePass,
    bytes_needed,
    new_volume,
    pass_with_key,
)
from lsdflow_runtime.engine.block_stage import BlockStage
from lsdflow_runtime.engine.block_task import BlockTask, TaskOfStage, task_of_stage
from lsdflow_runtime.engine.blockwise import run_blocks
from lsdflow_runtime.engine.cluster import sole_coordinator
from lsdflow_runtime.engine.verify import verify_blocks

SURVEY_SECONDS = 6.0
LOG = logging.getLogger("lsdflow.prepare")


class Prepare(BlockStage):
    """The stage; one or two passes a volume (`volume_passes`)."""

    name = STAGE

    def passes(self, experiment: Experiment) -> list[BlockTask]:
        """The passes of all volumes. Raises the first problem of the inputs."""
        with _opened(experiment, Findings()) as volumes:
            return [task for inputs in volumes for task in _passes(experiment, inputs, compare=False)]

    def pass_of(self, experiment: Experiment, key: str) -> BlockTask:
        """The pass with this key. ContractMismatch (76) if there is none."""
        volumes = experiment.table(STAGE, PrepareConfig).volumes()
        task = pass_with_key(_with_marks_in_files(experiment), volumes, experiment.resolve, key)
        if task is None:
            raise ContractMismatch("the coordinator writes a volume that this worker does not have", found=key[:12])
        return task

    def run(self, experiment: Experiment) -> None:
        """Write every volume that does not exist yet, and the manifest.

        Raises:
            BadData, MissingInput, ConfigError: a problem of the inputs (the first; the others are logged).
            OutputConflict: arrays of another program at the output path, or another prepare that is running.
        """
        started, findings = time.time(), Findings()
        with _opened(experiment, findings, strict=False) as volumes:
            passes = [_passes(experiment, inputs) for inputs in volumes]
            for task in (task for tasks in passes for task in tasks):
                for output in task.outputs.values():
                    output.refuse_others(task.provenance())
            unfinished = [v for v, tasks in zip(volumes, passes, strict=True) if finished_report(tasks) is None]
            for inputs in unfinished:
                survey(inputs, findings, SURVEY_SECONDS / len(unfinished))
            _raise_first(findings)
            _refuse_full_disk(experiment, unfinished)
            with sole_coordinator(self.name, experiment):
                for inputs, tasks in zip(volumes, passes, strict=True):
                    remember(inputs, tasks)
                _finish(experiment, volumes, passes, findings, started)

    def validate(self, experiment: Experiment) -> list[StageError]:
        """All problems of all volumes; warnings are logged. Reads a sample of large volumes, writes nothing."""
        found = inspect(experiment)
        for text in found.warnings:
            LOG.warning("warning: %s", text)
        return found.errors

    def plan(self, experiment: Experiment) -> dict[str, Any]:
        """Blocks, voxels and bytes of a run."""
        facts = {}
        with _opened(experiment, Findings()) as volumes:
            for inputs in volumes:
                tasks, made = _passes(experiment, inputs, compare=False), inputs.output_geometry
                facts[inputs.label] = {
                    "shape_vox": list(made.shape_vox),
                    "voxel_size_nm": list(made.voxel_size_nm),
                    "offset_nm": list(made.offset_nm),
                    "format": inputs.raw.form,
                    "blocks": sum(len(task.plan) for task in tasks),
                    "labelled": inputs.labels is not None,
                    "bytes_expected": bytes_needed(made.shape_vox, inputs.labels is not None),
                    "done": finished_report(tasks) is not None,
                }
        return facts

    def describe(self, experiment: Experiment) -> None:
        """Write the metadata of all volumes and a manifest to `experiment.descriptions`."""
        table = experiment.table(STAGE, PrepareConfig)
        describe_volumes(_with_marks_in_files(experiment), table, experiment.resolve)

    def status(self, experiment: Experiment) -> dict[str, Any]:
        """Whether each volume is finished."""
        table, layout = experiment.table(STAGE, PrepareConfig), experiment.layout
        labels = [f"training/{volume.name}" for volume in table.training] + ["target"] * (table.target is not None)
        state: dict[str, Any] = {label.replace("/", " "): _state(containers(layout, label)) for label in labels}
        return {"finished": layout.manifest(STAGE).exists(), **state}

    def verify(self, experiment: Experiment) -> dict[str, Any]:
        """Read back all blocks of all volumes.

        Raises MissingInput (66) if prepare has not finished, OutputConflict (73) for a volume of other settings or
        sources, BadData (65) naming the blocks that are missing or damaged.
        """
        manifest = read_manifest(experiment.layout, STAGE)
        with _opened(experiment, Findings()) as volumes:
            blocks = {v.label: _verified(v.label, _passes(experiment, v)) for v in volumes}
        return {"blocks_read_back": blocks, "identity": manifest.identity, "verified": True}

    def repair(self, experiment: Experiment) -> dict[str, Any]:
        """Recompute only the blocks that are missing or damaged; returns facts of what was found.

        Raises MissingInput (66) if prepare has not finished or a source is gone, BadData (65) if a source has changed.
        """
        started, findings = time.time(), Findings()
        try:
            manifest = read_manifest(experiment.layout, STAGE)
        except BadData:
            # The reports next to the volumes hold the same facts: a run writes the manifest again and reads no volume.
            self.run(experiment)
            manifest = read_manifest(experiment.layout, STAGE)
        with _opened(experiment, findings) as volumes:
            passes = [_passes(experiment, inputs, compare=False) for inputs in volumes]
            table = experiment.table(STAGE, PrepareConfig)
            for inputs, tasks in zip(volumes, passes, strict=True):
                require_same_settings(table, manifest, inputs.label, tasks)
            with sole_coordinator(self.name, experiment):
                repaired = [repair_pass(inputs.label, task, manifest) for inputs, task in _each(volumes, passes)]
                _finish(experiment, volumes, passes, findings, started)
        blocks = sum(len(task.plan) for tasks in passes for task in tasks)
        return {"blocks": blocks, "broken": sum(repaired)}

    def drop_rows(self, experiment: Experiment, keys: Sequence[str]) -> dict[str, Any]:
        """Nothing to drop: the done marks of prepare are files, also with a MongoDB."""
        del experiment, keys
        return {"dropped": []}


def inspect(experiment: Experiment) -> Findings:
    """Errors and warnings of all volumes."""
    findings = Findings()
    with _opened(experiment, findings, strict=False) as volumes:
        for inputs in volumes:
            survey(inputs, findings, SURVEY_SECONDS / len(volumes))
    return findings


def look(experiment: Experiment) -> dict[str, Any]:
    """Facts of the volumes for `lsdflow init`, and their problems; reads a sample of large volumes."""
    findings = Findings()
    seen: dict[str, Any] = {}
    with _opened(experiment, findings, strict=False) as volumes:
        for number, inputs in enumerate(volumes, start=1):
            deadline = time.monotonic() + SURVEY_SECONDS / (len(volumes) - number + 1)
            with findings.collecting():
                seen[inputs.label] = look_at(inputs, deadline)
    return {"volumes": seen, "problems": [error.as_dict() for error in findings.errors]}


def _finish(
    experiment: Experiment,
    volumes: list[VolumeInputs],
    passes: list[list[VolumePass]],
    findings: Findings,
    started: float,
) -> None:
    """Write all volumes, then the manifest; until then an earlier result remains current."""
    table, layout = experiment.table(STAGE, PrepareConfig), experiment.layout
    key = key_of_all(table, {v.label: tasks[0].volume_key for v, tasks in zip(volumes, passes, strict=True)})
    reports: dict[str, VolumeReport] = {}
    for inputs, tasks in zip(volumes, passes, strict=True):
        report = finished_report(tasks)
        if report is None:
            for task in tasks:
                LOG.info("%s: %s voxels", task.label, "x".join(map(str, task.plan.total.shape_vox)))
                run_blocks(task, [key])
            refuse_changed(inputs, tasks)
            report = make_report(inputs, tasks)
        reports[inputs.label] = report
        for text in report.warnings:
            if f"{inputs.name}: {text}" not in findings.warnings:
                LOG.warning("warning: %s: %s", inputs.label, text)
                findings.warn(inputs.name, text)
    outputs = {inputs.label: tasks[0].container for inputs, tasks in zip(volumes, passes, strict=True)}
    seconds = time.time() - started
    manifest = make_manifest(layout.root, table, reports, outputs, warnings=findings.warnings, seconds=seconds)
    _leave_manifest(layout, manifest)


def _leave_manifest(layout: ExperimentLayout, manifest: Manifest) -> None:
    """Make this manifest current; if an earlier run has the same result, its manifest is kept, with its run time."""
    with suppress(MissingInput, BadData):
        if is_same_result(read_manifest(layout, STAGE), manifest):
            return
    with suppress(MissingInput, BadData):
        found = read_kept_manifest(layout, STAGE, manifest.key)
        if is_same_result(found, manifest):
            found.write(layout)
            return
    layout.result(STAGE, manifest.key).mkdir(parents=True, exist_ok=True)
    manifest.finish(layout)


@contextmanager
def _opened(experiment: Experiment, findings: Findings, *, strict: bool = True) -> Iterator[list[VolumeInputs]]:
    """All volumes of the table that can be opened; problems are added to `findings`, and raised if `strict`."""
    with ExitStack() as stack:
        volumes = []
        for name, table in experiment.table(STAGE, PrepareConfig).volumes():
            inputs = open_inputs(name, table, experiment.resolve, findings)
            if inputs is not None:
                volumes.append(stack.enter_context(inputs))
        _warn_voxel_sizes(volumes, findings)
        if strict:
            _raise_first(findings)
        yield volumes


def _warn_voxel_sizes(volumes: list[VolumeInputs], findings: Findings) -> None:
    sizes = {inputs.label: inputs.output_geometry.voxel_size_nm for inputs in volumes}
    for inputs in volumes:
        for text in voxel_size_warnings(sizes[inputs.label]):
            findings.warn(inputs.name, text)
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{label} {size}" for label, size in sizes.items())
        findings.warn(STAGE, f"voxel sizes differ, a network sees one size only: {listed} nm")


def _raise_first(findings: Findings) -> None:
    for text in findings.warnings:
        LOG.warning("warning: %s", text)
    for error in findings.errors[1:]:
        LOG.error("also: %s", error.message())
    if findings.errors:
        raise findings.errors[0]


def _passes(experiment: Experiment, inputs: VolumeInputs, *, compare: bool = True) -> list[VolumePass]:
    """The passes that write a volume. compare: see `recognised`."""
    of_stage = _with_marks_in_files(experiment)
    return recognised(of_stage, inputs, new_volume(of_stage, inputs), compare=compare)


def _with_marks_in_files(experiment: Experiment) -> TaskOfStage:
    return task_of_stage(STAGE, replace(experiment, store=StoreTable(engine="files")))


def _each(volumes: list[VolumeInputs], passes: list[list[VolumePass]]) -> Iterator[tuple[VolumeInputs, VolumePass]]:
    return ((inputs, task) for inputs, tasks in zip(volumes, passes, strict=True) for task in tasks)


def _refuse_full_disk(experiment: Experiment, unfinished: list[VolumeInputs]) -> None:
    needed = sum(bytes_needed(inputs.output_geometry.shape_vox, inputs.labels is not None) for inputs in unfinished)
    free = shutil.disk_usage(experiment.layout.root).free
    if free < needed:
        raise StorageFailure(
            "the disk is too small for the prepared volumes",
            where=experiment.layout.root,
            wanted=f"about {needed / 1e9:.1f} GB",
            found=f"{free / 1e9:.1f} GB free",
        )


def _verified(label: str, passes: list[VolumePass]) -> int:
    """Read back every block of a volume; returns the number of blocks."""
    report = read_report(passes)
    if report is None:
        raise OutputConflict(
            f"the volume {label} is not made, or with other parameters or inputs",
            where=passes[0].container,
            fix="run: prepare run",
        )
    read = 0
    for task in passes:
        read += verify_blocks(task)
        if task.identity(task.marks.records()) != report.identity.get(task.content):
            raise BadData(
                "the report of the volume and the done marks do not belong together",
                where=task.container,
                fix="recompute the volume: lsdflow repair EXPERIMENT",
            )
    return read


def _state(found: list[Path]) -> str:
    if any(report_path(container).exists() for container in found):
        return "made"
    return "begun" if found else "not begun"
