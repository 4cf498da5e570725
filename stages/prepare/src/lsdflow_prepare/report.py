"""The records of finished volumes: a small report next to the arrays of each, and the manifest of all volumes.

The report contains the merged statistics of all blocks (neurons, coverage, warnings). It is written when all blocks are
done. A volume is finished if it has a report and all its blocks are still done: repair removes marks of damaged ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from lsdflow_contract.arrays import LABELS
from lsdflow_contract.errors import BadData, MissingInput
from lsdflow_contract.hashing import hash_of
from lsdflow_contract.manifest import Manifest, Writer, work_key
from lsdflow_contract.model import StrictModel
from lsdflow_contract.sealing import read_sealed, write_sealed
from lsdflow_prepare import findings as rules
from lsdflow_prepare.config import PrepareConfig, without_paths
from lsdflow_prepare.inputs import VolumeInputs
from lsdflow_prepare.statistics import LabelStatistics, RawStatistics, SlabComponents
from lsdflow_prepare.volume_passes import STAGE, VolumePass
from lsdflow_runtime.io.volumes import open_volume


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


@dataclass
class VolumeSummary:
    """The statistics of a whole volume; `components` are counted only if blocks cover whole planes."""

    raw: RawStatistics = field(default_factory=RawStatistics)
    labels: LabelStatistics | None = None
    components: dict[int, int] | None = None

    def warnings(self, inputs: VolumeInputs) -> list[str]:
        """All warnings about the volume."""
        found = rules.shape_warnings(inputs.output_geometry.shape_vox, inputs.role) + rules.raw_warnings(self.raw)
        if self.labels is not None:
            found += rules.label_warnings(self.labels)
        return found + rules.component_warnings(self.components or {})


def summary_of(passes: Sequence[VolumePass]) -> VolumeSummary:
    """The statistics of a volume whose blocks are all done."""
    summary = VolumeSummary()
    for task in passes:
        statistics: RawStatistics | LabelStatistics = summary.raw
        if task.content == "labels":
            statistics = summary.labels = LabelStatistics()
            summary.components = _components(task) if task.has_whole_planes else None
        for record in task.marks.records().values():
            statistics.merge(record["facts"])
    return summary


def _components(task: VolumePass) -> dict[int, int]:
    """Number of components of each id."""
    slabs, labels = SlabComponents(), open_volume(task.container, LABELS.dataset)
    for block in task.plan.blocks():
        slabs.add(labels.read(block.write))
    return slabs.per_label()


class VolumeReport(StrictModel):
    """The report of one finished volume."""

    key: str = Field(description="names the work: parameters and inputs")
    identity: dict[str, str] = Field(description="names the content of each group of arrays")
    labelled_voxels: int = Field(description="voxels that are not ignored")
    facts: dict[str, Any] = Field(description="shape, voxel size, counts")
    warnings: list[str] = Field(description="what is odd")


def make_report(inputs: VolumeInputs, passes: Sequence[VolumePass]) -> VolumeReport:
    """Write the report of a volume whose blocks are all done, next to its arrays; returns it. BadData for no labels."""
    summary = summary_of(passes)
    if inputs.labels is not None and summary.labels is not None:  # a large volume was only sampled before
        usable = summary.labels.neurons > 0 and summary.labels.trained_fraction > 0
        rules.refuse_unlabelled(summary.labels, usable, inputs.labels.source.where, inputs.role)
    identity = {task.content: task.identity(task.marks.records()) for task in passes}
    report = VolumeReport(
        key=passes[0].volume_key,
        identity=dict(identity),
        labelled_voxels=summary.labels.labelled_voxels if summary.labels else 0,
        facts={**_facts(inputs, summary), "identity": identity},
        warnings=summary.warnings(inputs),
    )
    write_sealed(report_path(passes[0].container), report.model_dump())
    return report


def finished_report(passes: Sequence[VolumePass]) -> VolumeReport | None:
    """The report of a volume that is finished with the same key; None if it is not finished."""
    return read_report(passes) if all(task.is_whole for task in passes) else None


def read_report(passes: Sequence[VolumePass]) -> VolumeReport | None:
    """The report of a volume with the same key, whether its blocks still are done or not; None if there is none."""
    try:
        report = VolumeReport.model_validate(read_sealed(report_path(passes[0].container), "prepare run"))
    except (MissingInput, BadData, ValidationError):
        return None
    return report if report.key == passes[0].volume_key else None


def make_manifest(
    root: Path,
    table: PrepareConfig,
    reports: dict[str, VolumeReport],
    outputs: dict[str, Path],
    *,
    warnings: list[str],
    seconds: float,
) -> Manifest:
    """The manifest of all volumes; reports and outputs by label, training volumes in the order of the table.

    root: the folder of the experiment, to which the outputs are relative.
    """
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
        outputs={label: path.relative_to(root).as_posix() for label, path in outputs.items()},
        facts={"volumes": facts, "warnings": warnings, "seconds": seconds},
        identity=hash_of({"key": key, "made": made}),
    )


def is_same_result(found: Manifest, made: Manifest) -> bool:
    """True for the same volumes from the same sources, which may have other paths in the experiment file."""
    volumes = [
        {v: facts.get("identity") for v, facts in manifest.facts["volumes"].items()} for manifest in (found, made)
    ]
    return (
        volumes[0] == volumes[1]
        and (found.inputs, found.outputs) == (made.inputs, made.outputs)
        and without_paths(found.config) == without_paths(made.config)
    )


def key_of_all(table: PrepareConfig, keys: Mapping[str, str]) -> str:
    """The key of the manifest; keys: those of the volumes, by label."""
    return work_key(STAGE, table.model_dump(mode="json"), dict(keys))


def report_path(container: Path) -> Path:
    """The report of the volume in a container."""
    return container / ".lsdflow" / "report.json"


def _facts(inputs: VolumeInputs, summary: VolumeSummary) -> dict[str, Any]:
    made = inputs.output_geometry
    facts: dict[str, Any] = {
        "shape_vox": list(made.shape_vox),
        "voxel_size_nm": list(made.voxel_size_nm),
        "offset_nm": list(made.offset_nm),
        "format": inputs.raw.form,
        "raw_clipped_voxels": summary.raw.clipped,
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
