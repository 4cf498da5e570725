"""The stage: volumes of any format in, raw (and labels) on one grid out; brick by brick, with a report each."""

from __future__ import annotations

import logging
import math
import shutil
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from lsdflow_command.processes import one_at_a_time
from lsdflow_command.progress import Progress
from lsdflow_command.stage import RunOptions, Stage
from lsdflow_contract import CONTRACT_VERSION
from lsdflow_contract.errors import BadData, MadeOtherwise, NotOurs, StageError, StorageFailure
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.hashing import hash_of
from lsdflow_contract.manifest import Manifest, Writer, read_manifest, work_key
from lsdflow_prepare.config import PrepareConfig, TargetVolume, TrainingVolume
from lsdflow_prepare.findings import Findings
from lsdflow_prepare.finished import STAGE, VolumeReport, finished_report, make_manifest, make_report
from lsdflow_prepare.inputs import VolumeInputs, open_inputs
from lsdflow_prepare.look import describe_volumes, look_at
from lsdflow_prepare.repair import mend, require_same_work
from lsdflow_prepare.same_input import recognised, remember
from lsdflow_prepare.survey import survey
from lsdflow_prepare.verify import LISTED, require_whole
from lsdflow_prepare.writing import WritePlan, bytes_needed, write_plans, write_volume

SURVEY_SECONDS = 6.0
LOG = logging.getLogger("lsdflow.prepare")


class Prepare(Stage):
    """The stage."""

    name = STAGE
    repairable = True

    def run(self, experiment: Experiment, options: RunOptions) -> None:
        """Make every volume that is not made yet, and the manifest.

        Raises:
            BadData, MissingInput, ConfigError: a problem of the inputs (the first; the others are logged).
            NotOurs: outputs of other parameters, or of sources that changed since; another prepare at work here.
        """
        started = time.time()
        findings = Findings()
        with _opened(experiment, findings) as volumes:
            plans = [_plans(experiment, inputs, replace=options.replace) for inputs in volumes]
            for group in plans:
                _refuse_others(group, options.replace)
            _survey_all(
                [v for v, group in zip(volumes, plans, strict=True) if finished_report(group) is None], findings
            )
            _raise_first(findings)
            _refuse_full_disk(experiment, volumes, plans)
            with _alone(experiment.layout.root):
                for inputs, group in zip(volumes, plans, strict=True):
                    remember(inputs, group)
                _finish(experiment, volumes, plans, findings, started)

    def validate(self, experiment: Experiment) -> list[StageError]:
        """All problems of all volumes; warnings go to the log. Reads a sample of large volumes, writes nothing."""
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
                plans = _plans(experiment, inputs, 0)
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
        """Leave the metadata of all volumes and a manifest in `experiment.descriptions`."""
        describe_volumes(experiment)

    def status(self, experiment: Experiment) -> dict[str, Any]:
        """Whether each volume is made."""
        table, layout = experiment.table(STAGE, PrepareConfig), experiment.layout
        containers = {f"training {v.name}": layout.training_volume(v.name) for v in table.training}
        if table.target is not None:
            containers["target"] = layout.target_volume
        state: dict[str, Any] = {name: _state(path) for name, path in containers.items()}
        return {"finished": layout.manifest(STAGE).exists(), **state}

    def verify(self, experiment: Experiment) -> dict[str, Any]:
        """Read back what a finished run made. Raises as `require_whole`, MissingInput if prepare has not finished."""
        manifest = read_manifest(experiment.layout, STAGE)
        findings = Findings()
        with _opened(experiment, findings) as volumes:
            _raise_first(findings)
            bricks = {v.label: require_whole(v.label, _plans(experiment, v)) for v in volumes}
        return {"bricks": bricks, "identity": manifest.identity, "verified": True}

    def repair(self, experiment: Experiment) -> dict[str, Any]:
        """Make again the bricks that are lost or damaged, and no others; facts of what was found.

        Raises MissingInput (66) if prepare has not finished or a source is gone, BadData (65) if a source has changed.
        """
        started = time.time()
        try:
            manifest = read_manifest(experiment.layout, STAGE)
        except BadData:
            # The reports beside the volumes say the same: a run writes the manifest again and reads no volume.
            self.run(experiment, RunOptions())
            manifest = read_manifest(experiment.layout, STAGE)
        table = experiment.table(STAGE, PrepareConfig)
        findings = Findings()
        with _opened(experiment, findings) as volumes:
            _raise_first(findings)
            plans = [_plans(experiment, inputs, 0) for inputs in volumes]
            for inputs, group in zip(volumes, plans, strict=True):
                require_same_work(table, manifest, inputs.label, group)
            with _alone(experiment.layout.root):
                mended = []
                for inputs, group in zip(volumes, plans, strict=True):
                    made = manifest.facts["volumes"][inputs.label]["identity"]
                    mended += mend(inputs.label, inputs, group, made)
                _finish(experiment, volumes, plans, findings, started)
        bricks = sum(len(plan.bricks) for group in plans for plan in group)
        return {"bricks": bricks, "broken": len(mended), "parts": mended[:LISTED]}


def inspect(experiment: Experiment) -> Findings:
    """Errors and warnings of all volumes."""
    findings = Findings()
    with _opened(experiment, findings) as volumes:
        _survey_all(volumes, findings)
        for inputs in () if findings.errors else volumes:
            with findings.collecting():
                _require_same_settings(_plans(experiment, inputs, SURVEY_SECONDS / len(volumes)))
    return findings


def look(experiment: Experiment) -> dict[str, Any]:
    """What `lsdflow init` must know of the volumes, and their problems; reads a sample of large ones."""
    findings = Findings()
    seen: dict[str, Any] = {}
    with _opened(experiment, findings) as volumes:
        for number, inputs in enumerate(volumes, start=1):
            deadline = time.monotonic() + SURVEY_SECONDS / (len(volumes) - number + 1)
            with findings.collecting():
                seen[inputs.label] = look_at(inputs, experiment.resolve, deadline)
    return {"volumes": seen, "problems": [error.as_dict() for error in findings.errors]}


def _require_same_settings(plans: list[WritePlan]) -> None:
    """MadeOtherwise (73) for volumes of other settings; one that was put there by hand is for a run to refuse."""
    try:
        _refuse_others(plans, replace=False)
    except MadeOtherwise:
        raise
    except NotOurs:
        return


def _refuse_others(plans: list[WritePlan], replace: bool) -> None:
    """NotOurs (73) for arrays of other work where these would be written."""
    for plan_ in plans:
        plan_.arrays.refuse_others(replace)


def _finish(
    experiment: Experiment,
    volumes: list[VolumeInputs],
    plans: list[list[WritePlan]],
    findings: Findings,
    started: float,
) -> None:
    """Write all volumes, then the manifest; the manifest of an earlier run goes first."""
    if any(finished_report(group) is None for group in plans):
        experiment.layout.manifest(STAGE).unlink(missing_ok=True)
    reports = _write_all(volumes, plans)
    for label, report in reports.items():
        for text in report.warnings:
            if f"{label.removeprefix('training/')}: {text}" not in findings.warnings:
                LOG.warning("warning: %s: %s", label, text)
                findings.warn(label.removeprefix("training/"), text)
    outputs = {inputs.label: group[0].arrays.container for inputs, group in zip(volumes, plans, strict=True)}
    table = experiment.table(STAGE, PrepareConfig)
    seconds = time.time() - started
    manifest = make_manifest(experiment, table, reports, outputs, warnings=findings.warnings, seconds=seconds)
    if not _stands(experiment, manifest):
        manifest.finish(experiment.layout)


def _stands(experiment: Experiment, manifest: Manifest) -> bool:
    """True if an earlier run left the same result: its manifest, with its run time, stays untouched."""
    if not experiment.layout.manifest(STAGE).exists():
        return False
    with suppress(BadData):
        found = read_manifest(experiment.layout, STAGE)
        return (found.key, found.identity) == (manifest.key, manifest.identity)
    return False


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
    """All volumes of the table that can be opened; problems go to `findings`."""
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


def _plans(
    experiment: Experiment, inputs: VolumeInputs, seconds: float = math.inf, *, replace: bool = False
) -> list[WritePlan]:
    """What has to be written for a volume. seconds: for comparing sources that may have changed, see `recognised`.

    Raises MadeOtherwise (73) if a source has changed since the volume was prepared, unless it is to be replaced.
    """
    plans = _plans_of_now(experiment, inputs)
    try:
        return recognised(inputs, plans, seconds)
    except MadeOtherwise:
        if replace:
            return plans
        raise


def _plans_of_now(experiment: Experiment, inputs: VolumeInputs) -> list[WritePlan]:
    layout = experiment.layout
    container = layout.training_volume(inputs.name) if inputs.role == "training" else layout.target_volume
    parameters = inputs.table.model_dump(mode="json", exclude={"name", "probability"})
    sources = {name: hash_of(state) for name, state in inputs.states.items()}
    provenance = {
        "contract": CONTRACT_VERSION,
        "written_by": Writer.of(STAGE).model_dump(),
        "key": work_key(STAGE, parameters, sources),
        "config_hash": hash_of(parameters),
        "parameters": parameters,
        "inputs": sources,
    }
    return write_plans(inputs, container, provenance)


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


def _alone(root: Path) -> AbstractContextManager[None]:
    return one_at_a_time(root / "data" / ".prepare.lock", "prepare")


def _state(container: Path) -> str:
    if (container / "volumes" / "raw").exists():
        return "made"
    return "begun" if container.exists() else "not begun"
