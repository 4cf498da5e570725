"""What evaluate reads of an experiment: volumes on the target's grid, regions, lookup tables; and its first pass.

Settings become volumes, plans and keys here and in passes.py; what is below gets no experiment.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from lsdflow_contract.errors import ContractMismatch, MissingInput
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.failed_blocks import failed_blocks_of_results
from lsdflow_contract.geometry import Geometry
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.lut import KnownLut, find_luts, luts_of
from lsdflow_contract.manifest import Manifest, read_manifest, work_key
from lsdflow_evaluate.config import STAGE, EvaluateConfig
from lsdflow_evaluate.scores.counting import (
    CountedVolumes,
    counting_blocks,
    counting_parameters,
    counting_plan,
    scored_regions,
)
from lsdflow_runtime.engine.block_task import BlockTask, task_of_stage
from lsdflow_runtime.io.target import open_truth, target_grid
from lsdflow_runtime.io.volumes import Volume, open_volume

# Stages whose failed blocks, with those of their inputs, are left out of the scores.
SCORED_STAGES = ("watershed", "agglomerate", "segment")
NO_TRUTH = "no truth was given for this volume: there is nothing to compare with"


@dataclass(frozen=True)
class Segmented:
    """A finished segmentation: manifest of segment, fragments, and every lookup table made of these fragments."""

    manifest: Manifest
    fragments: Volume
    luts: tuple[KnownLut, ...]

    @property
    def chosen(self) -> tuple[str, float]:
        """Merge function and threshold of the segmentation."""
        return str(self.manifest.facts["merge_function"]), float(self.manifest.facts["threshold"])


@dataclass(frozen=True)
class Counting:
    """The first pass, and the volumes that it counts."""

    task: BlockTask
    volumes: CountedVolumes


def open_segmented(layout: ExperimentLayout, grid: Geometry) -> Segmented:
    """What segment left. MissingInput if it has not finished, ContractMismatch if the fragments changed since."""
    manifest = read_manifest(layout, "segment")
    watershed = read_manifest(layout, "watershed")
    if manifest.inputs.get("watershed") != watershed.identity:
        raise ContractMismatch(
            "segmentation and fragments come from different runs",
            where=layout.manifest("segment"),
            wanted=f"fragments {watershed.identity[:12]}",
            found=f"segmentation of fragments {manifest.inputs.get('watershed', 'unknown')[:12]}",
            fix="run agglomerate and segment again",
        )
    fragments = open_volume(*watershed.output_array(layout, "fragments"), grid)
    folder = luts_of(layout, manifest)
    luts = find_luts(folder, watershed.identity, manifest.inputs.get("agglomerate", ""))
    if not luts:
        raise MissingInput("no lookup table of these fragments", where=folder, fix="run segment again")
    return Segmented(manifest, fragments, luts)


def open_counted(experiment: Experiment) -> CountedVolumes | None:
    """Open what is counted; None without truth.

    Raises MissingInput if prepare or watershed have not finished, ConfigError for a region outside the data.
    """
    config, layout, grid = experiment.table(STAGE, EvaluateConfig), experiment.layout, target_grid(experiment.layout)
    failed = failed_blocks_of_results(layout, SCORED_STAGES)
    truth = open_truth(experiment.layout, config.truth_dataset, grid, failed)
    if truth is None:
        return None
    fragments = open_volume(*read_manifest(layout, "watershed").output_array(layout, "fragments"), grid)
    both = truth.labels.box.intersect(fragments.box)
    return CountedVolumes(grid, fragments, truth, scored_regions(config, layout.target_volume, grid, both))


def find_counting(experiment: Experiment) -> Counting | None:
    """The counting of what the experiment holds now; None without truth. Raises as `open_counted`."""
    volumes = open_counted(experiment)
    if volumes is None:
        return None
    config = experiment.table(STAGE, EvaluateConfig)
    plan = counting_plan(volumes, config.block_shape)
    inputs = {stage: read_manifest(experiment.layout, stage).identity for stage in ("prepare", "watershed")}
    parameters = counting_parameters(volumes, config.truth_dataset, plan)
    task = BlockTask(
        **task_of_stage(STAGE, experiment),
        key=work_key(STAGE, parameters, inputs),
        config=parameters,
        inputs=inputs,
        plan=plan,
        outputs={},
        open=partial(counting_blocks, volumes),
    )
    return Counting(task, volumes)


def require_counting(experiment: Experiment) -> Counting:
    """The counting. MissingInput (66) if there is no truth."""
    found = find_counting(experiment)
    if found is None:
        raise MissingInput(NO_TRUTH, where=experiment.layout.target_volume)
    return found
