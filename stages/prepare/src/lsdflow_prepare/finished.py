"""The records of finished volumes: a small report next to the arrays of each, and the manifest of all volumes.

The report holds the facts that require reading the whole volume (neurons, coverage, warnings), so that a finished
volume is never read again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from lsdflow_contract.errors import BadData, MissingInput
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.hashing import hash_of
from lsdflow_contract.manifest import Manifest, Writer, work_key
from lsdflow_contract.model import StrictModel
from lsdflow_contract.sealing import read_sealed, write_sealed
from lsdflow_prepare.config import PrepareConfig
from lsdflow_prepare.inputs import VolumeInputs
from lsdflow_prepare.writing import VolumeSummary, WritePlan

STAGE = "prepare"


def probabilities(given: Sequence[float | None], labelled_voxels: Sequence[int]) -> list[float]:
    """The given probabilities, or probabilities proportional to the labelled voxels of the volumes; they sum to 1.

    Raises:
        BadData: all voxels of all volumes are ignored.
    """
    numbers = [value for value in given if value is not None]
    if given and len(numbers) == len(given):
        return numbers
    total = sum(labelled_voxels)
    if given and total == 0:
        raise BadData("no training volume has a voxel to train on", found="masks are 0 everywhere")
    return [voxels / total for voxels in labelled_voxels]


class VolumeReport(StrictModel):
    """The report of one finished volume."""

    key: str = Field(description="names the work: parameters and inputs")
    identity: dict[str, str] = Field(description="names the content of each group of arrays")
    labelled_voxels: int = Field(description="voxels that are not ignored")
    facts: dict[str, Any] = Field(description="shape, voxel size, counts")
    warnings: list[str] = Field(description="what is odd")


def make_report(inputs: VolumeInputs, plans: list[WritePlan], summary: VolumeSummary) -> VolumeReport:
    """Write the report of a volume that was just read completely, next to its arrays; returns it."""
    labels = summary.labels
    report = VolumeReport(
        key=plans[0].arrays.key,
        identity=summary.identity,
        labelled_voxels=labels.labelled_voxels if labels else 0,
        facts=_facts(inputs, summary),
        warnings=summary.warnings(inputs),
    )
    write_sealed(_path(plans), report.model_dump())
    return report


def finished_report(plans: list[WritePlan]) -> VolumeReport | None:
    """The report of a volume that is finished with the same key; None if it is not finished."""
    if not all(plan.arrays.is_done() for plan in plans):
        return None
    try:
        report = VolumeReport.model_validate(read_sealed(_path(plans), "prepare run"))
    except (MissingInput, BadData, ValidationError):
        return None
    return report if report.key == plans[0].arrays.key else None


def make_manifest(
    experiment: Experiment,
    table: PrepareConfig,
    reports: dict[str, VolumeReport],
    outputs: dict[str, Path],
    *,
    warnings: list[str],
    seconds: float,
) -> Manifest:
    """The manifest of all volumes; reports and outputs by label, training volumes in the order of the table."""
    config = table.model_dump(mode="json")
    inputs = {label: report.key for label, report in reports.items()}
    facts = {label: dict(report.facts) for label, report in reports.items()}
    labels = [f"training/{volume.name}" for volume in table.training]
    given = [volume.probability for volume in table.training]
    drawn = probabilities(given, [reports[label].labelled_voxels for label in labels])
    for label, probability in zip(labels, drawn, strict=True):
        facts[label]["probability"] = probability
    key = key_of_all(table, inputs)
    made = {label: report.identity for label, report in reports.items()}
    return Manifest(
        writer=Writer.of(STAGE),
        key=key,
        config=config,
        inputs=inputs,
        outputs={label: path.relative_to(experiment.layout.root).as_posix() for label, path in outputs.items()},
        facts={"volumes": facts, "warnings": warnings, "seconds": seconds},
        identity=hash_of({"key": key, "made": made}),
    )


def key_of_all(table: PrepareConfig, keys: Mapping[str, str]) -> str:
    """The key of the manifest; keys: those of the volumes, by label."""
    return work_key(STAGE, table.model_dump(mode="json"), dict(keys))


def _path(plans: list[WritePlan]) -> Path:
    return plans[0].arrays.container / ".lsdflow" / "report.json"


def _facts(inputs: VolumeInputs, summary: VolumeSummary) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "shape_vox": list(inputs.region.shape_vox),
        "voxel_size_nm": list(inputs.geometry.voxel_size_nm),
        "offset_nm": list(inputs.output_geometry.offset_nm),
        "format": inputs.raw.form,
        "raw_clipped_voxels": summary.raw.clipped,
        "identity": summary.identity,
    }
    if summary.labels is not None:
        facts |= {
            "neurons": summary.labels.neurons,
            "labelled_voxels": summary.labels.labelled_voxels,
            "trained_fraction": summary.labels.trained_fraction,
            "largest_id": summary.labels.largest_id,
        }
    if summary.components is not None:
        facts["components"] = sum(summary.components.values())
    return facts
