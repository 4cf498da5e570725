"""What prepare will make of the volumes of an experiment, from the metadata of their sources."""

from __future__ import annotations

from typing import Any

from lsdflow_contract.described import TARGET, TRAINING, DescribedVolume
from lsdflow_contract.experiment import Experiment
from lsdflow_prepare.config import PrepareConfig, TargetVolume, TrainingVolume
from lsdflow_prepare.findings import Findings
from lsdflow_prepare.finished import STAGE
from lsdflow_prepare.inputs import open_inputs
from lsdflow_prepare.writing import bytes_needed


def describe(experiment: Experiment) -> dict[str, Any]:
    """A DescribedVolume of each volume that can be opened, as plain values; `validate` reports the others."""
    table = experiment.table(STAGE, PrepareConfig)
    tables: dict[str, TrainingVolume | TargetVolume] = {f"{TRAINING}{v.name}": v for v in table.training}
    if table.target is not None:
        tables[TARGET] = table.target
    found = {label: _described(experiment, label, volume) for label, volume in tables.items()}
    return {label: volume.model_dump(mode="json") for label, volume in found.items() if volume is not None}


def _described(experiment: Experiment, label: str, volume: TrainingVolume | TargetVolume) -> DescribedVolume | None:
    inputs = open_inputs(label.removeprefix(TRAINING), volume, experiment.resolve, Findings())
    if inputs is None:
        return None
    with inputs:
        made, labelled = inputs.output_geometry, inputs.labels is not None
        return DescribedVolume(
            where=inputs.raw.where,
            shape_vox=made.shape_vox,
            voxel_size_nm=made.voxel_size_nm,
            offset_nm=made.offset_nm,
            labelled=labelled,
            probability=volume.probability if isinstance(volume, TrainingVolume) else None,
            bytes_expected=bytes_needed(made.shape_vox, labelled),
        )
