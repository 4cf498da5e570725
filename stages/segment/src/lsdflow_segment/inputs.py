"""What segment works on: the finished graph and its fragments on the target's grid, and the truth for the advice.

Everything that can be refused is refused here, before a run writes anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lsdflow_contract.checkpoint import Calibration, read_best
from lsdflow_contract.errors import ConfigError, MissingInput
from lsdflow_contract.failed_blocks import failed_blocks_of_results
from lsdflow_contract.geometry import Box, Geometry, Vox3, region_box
from lsdflow_contract.graph import DEFAULT_MERGE_FUNCTIONS
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import Manifest, read_manifest, work_key
from lsdflow_metrics.contingency import Contingency
from lsdflow_runtime.blocks import BlockPlan, block_plan
from lsdflow_runtime.io.target import Truth, open_truth, target_grid
from lsdflow_runtime.io.volumes import Volume, open_volume
from lsdflow_segment.config import SegmentConfig
from lsdflow_segment.graph import GraphSource
from lsdflow_segment.tables import TableFolders
from lsdflow_segment.threshold_selection import count_against_truth, thresholds_of

STAGE = "segment"
# Settings that choose among the tables, and those that decide which ones are computed.
CHOOSING = ("threshold", "advice", "truth_dataset", "truth_roi")
COMPUTING = ("thresholds_minmax", "thresholds_step", "extra_thresholds", "min_segment_vox")


@dataclass(frozen=True)
class SegmentInputs:
    """What segment works on: the settings, the graph, and the fragments on the target's grid."""

    config: SegmentConfig
    source: GraphSource
    merge_function: str
    thresholds: tuple[float, ...]
    folders: TableFolders
    grid: Geometry
    fragments: Volume
    plan: BlockPlan
    calibration: Calibration | None = None

    def is_choice_of(self, manifest: Manifest) -> bool:
        """True if a finished result chose its threshold by the settings of now, among the same tables."""
        now = self.config.model_dump(mode="json")
        same = all(manifest.config.get(name) == now[name] for name in (*CHOOSING, *COMPUTING))
        of_graph = manifest.inputs == self.source.inputs
        same_network = manifest.facts.get("calibrated") == self.calibrated(self.merge_function)
        return same and of_graph and same_network and manifest.facts["merge_function"] == self.merge_function

    def calibrated(self, merge_function: str) -> float | None:
        """The threshold that was calibrated with the network; None if there is none, or the advice ignores it."""
        if self.calibration is None or self.config.advice not in ("auto", "network"):
            return None
        return self.calibration.thresholds.get(merge_function)

    def tables_key(self, merge_function: str) -> str:
        """Key of the tables of a merge function: everything that decides them and the choice among them."""
        chosen_by = self.config.model_dump(mode="json", include=set(CHOOSING))
        parameters = {"merge_function": merge_function, "thresholds": list(self.thresholds), **chosen_by}
        if self.config.min_segment_vox:
            parameters["min_segment_vox"] = self.config.min_segment_vox
        if (calibrated := self.calibrated(merge_function)) is not None:
            parameters["calibrated"] = calibrated
        return work_key("segment-tables", parameters, self.source.inputs)


def open_inputs(layout: ExperimentLayout, config: SegmentConfig) -> SegmentInputs:
    """Raises MissingInput (66) if an earlier stage has not finished, ConfigError (78) for impossible settings."""
    source, (calibration, best_function) = GraphSource.of(layout), _chosen_with_network(layout)
    best_function = best_function if best_function in source.merge_functions else None
    merge_function, grid = source.select(config.merge_function or best_function), target_grid(layout)
    _require_calibration(config, calibration, merge_function)
    fragments = _open_fragments(layout, grid)
    return SegmentInputs(
        config=config,
        source=source,
        merge_function=merge_function,
        thresholds=thresholds_of(config),
        folders=TableFolders(layout.luts / config.run_type, source.agglomerate.identity, config.min_segment_vox),
        grid=grid,
        fragments=fragments,
        plan=_plan_blocks(config, grid, fragments.box, fragments.chunk_shape_vox),
        calibration=calibration,
    )


def _chosen_with_network(layout: ExperimentLayout) -> tuple[Calibration | None, str | None]:
    """The thresholds that suit the network of the affinities: those of select-checkpoint, else those it came with.

    And the merge function that select-checkpoint chose.
    """
    found, merge_function = None, None
    if layout.manifest("predict").exists():
        predict, best = read_manifest(layout, "predict"), layout.best_checkpoint("train-acrlsd")
        resolved = predict.config.get("resolved", {})
        kept = resolved.get("calibration") if isinstance(resolved, dict) else None
        found = None if kept is None else Calibration.model_validate(kept)
        # It may have been chosen after predict had finished.
        if best.exists() and (chosen := read_best(best)).weights_sha256 == predict.inputs.get("network"):
            found, merge_function = chosen.calibration or found, chosen.merge_function
    return found, merge_function


def _require_calibration(config: SegmentConfig, found: Calibration | None, merge_function: str) -> None:
    """Raise MissingInput (66) if advice = "network" and there is no threshold for this merge function."""
    if config.advice == "network" and (found is None or merge_function not in found.thresholds):
        raise MissingInput(
            "the network of the affinities came without a threshold",
            where="segment.advice",
            wanted=f"one for {merge_function}",
            found=", ".join(found.thresholds) if found else "none",
            fix='segment.advice = "stability", or segment.threshold = a number',
        )


def _open_fragments(layout: ExperimentLayout, grid: Geometry) -> Volume:
    """The fragments that watershed finished, addressed on the target's grid."""
    watershed = read_manifest(layout, "watershed")
    return open_volume(*watershed.output_array(layout, "fragments"), grid)


def _plan_blocks(config: SegmentConfig, grid: Geometry, fragments: Box, usual_block_vox: Vox3) -> BlockPlan:
    """The blocks that are written: those of the region, or of all fragments."""
    box = region_box(config.roi, grid.voxel_size_nm, fragments, "segment.roi")
    if config.block_shape is None:
        return BlockPlan(box, usual_block_vox)
    return block_plan(box, config.block_shape.to_vox(grid.voxel_size_nm, "segment.block_shape"), (0, 0, 0), STAGE)


def _open_truth(layout: ExperimentLayout, config: SegmentConfig, grid: Geometry) -> Truth | None:
    """The truth for the advice, without the holes of earlier stages; None if there is none or the advice ignores it.

    Raises MissingInput (66) if advice = "truth" and there is none.
    """
    if config.advice in ("stability", "network"):
        return None
    failed = failed_blocks_of_results(layout, ("watershed", "agglomerate"))
    truth = open_truth(layout, config.truth_dataset, grid, failed)
    if truth is None and config.advice == "truth":
        target = layout.target_volume
        raise MissingInput(
            "advice by truth needs truth",
            where=target / config.truth_dataset if target.exists() else "segment.advice",
            fix='give truth to prepare, or set segment.advice = "stability"',
        )
    return truth


def _truth_box(config: SegmentConfig, grid: Geometry, fragments: Box, truth: Truth) -> Box:
    """The part of the truth that the advice uses: inside both volumes."""
    return region_box(config.truth_roi, grid.voxel_size_nm, truth.labels.box.intersect(fragments), "segment.truth_roi")


def count_truth(layout: ExperimentLayout, inputs: SegmentInputs) -> Contingency | None:
    """Fragments x truth; None if the advice does not come from truth."""
    truth = _open_truth(layout, inputs.config, inputs.grid)
    if truth is None:
        return None
    box = _truth_box(inputs.config, inputs.grid, inputs.fragments.box, truth)
    return count_against_truth(inputs.fragments, truth, box)


def require_merge_function(
    layout: ExperimentLayout, agglomerate: Mapping[str, Any], wanted: str | None, *, real: bool
) -> None:
    """MissingInput (66) for edges that agglomerate did not make; ConfigError (78) for edges that it will not make.

    agglomerate: its table of the experiment file. real: the layout has results, not descriptions.
    """
    if real and layout.manifest("agglomerate").exists():
        GraphSource.of(layout).select(wanted)
        return
    made = agglomerate.get("merge_functions", list(DEFAULT_MERGE_FUNCTIONS))
    if wanted is None or not isinstance(made, list) or wanted in made:
        return
    raise ConfigError(
        "agglomerate does not compute this merge function",
        where="segment.merge_function",
        wanted=f"one of agglomerate.merge_functions: {', '.join(map(str, made))}",
        found=wanted,
        fix=f"add {wanted} to agglomerate.merge_functions, or choose one of these",
    )


def require_regions(layout: ExperimentLayout, config: SegmentConfig) -> None:
    """ConfigError (78) for regions and block shapes that cannot be, MissingInput (66) for missing truth."""
    grid = target_grid(layout)
    box, usual_block_vox = grid.box, grid.shape_vox
    if layout.manifest("watershed").exists():
        fragments = _open_fragments(layout, grid)
        box, usual_block_vox = fragments.box, fragments.chunk_shape_vox
    _plan_blocks(config, grid, box, usual_block_vox)
    truth = _open_truth(layout, config, grid)
    if truth is not None:
        _truth_box(config, grid, box, truth)
