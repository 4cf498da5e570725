"""The stage: passes that count, look up and search, as far as there is truth; every run writes the report.

What scores and draws takes long to load, so it is imported where it is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lsdflow_contract.errors import BadData, ConfigError, MissingInput, StageError, problems_of
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.geometry import region_box
from lsdflow_contract.hashing import hash_of
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import Manifest, read_manifest
from lsdflow_contract.sealing import read_sealed
from lsdflow_evaluate.config import OUTPUTS, STAGE, EvaluateConfig
from lsdflow_evaluate.inputs import find_counting, require_counting
from lsdflow_evaluate.pass_files import drop_pass_files, find_pass_files
from lsdflow_evaluate.scores.counting import scored_regions
from lsdflow_runtime.engine.block_stage import BlockStage
from lsdflow_runtime.engine.block_task import BlockTask
from lsdflow_runtime.engine.blockwise import status_task
from lsdflow_runtime.engine.planning import measure_block, plan_task
from lsdflow_runtime.engine.verify import invalidate_damaged, verify_blocks
from lsdflow_runtime.io.target import knows_target, open_truth, target_grid


class Evaluate(BlockStage):
    """The stage: passes that count, look up and search, as far as there is ground truth; then the report."""

    name = STAGE

    def passes(self, experiment: Experiment) -> list[BlockTask]:
        """The counting, if there is ground truth, and the passes after it that were begun."""
        from lsdflow_evaluate.passes import passes_begun

        return passes_begun(experiment)

    def pass_of(self, experiment: Experiment, key: str) -> BlockTask:
        """The pass of a key. ContractMismatch (76) if no coordinator has begun it."""
        from lsdflow_evaluate.passes import pass_of_key

        return pass_of_key(experiment, key)

    def problems(self, experiment: Experiment) -> list[StageError]:
        """All problems that can be found now; what earlier stages have not made yet is no problem."""
        config = experiment.table(STAGE, EvaluateConfig)
        checks: list[Callable[[], object]] = []
        if config.skeletons not in ("auto", "truth", "none"):
            checks.append(lambda: _require_skeletons(experiment, config))
        if knows_target(experiment.layout):
            checks.append(lambda: _require_regions(experiment, config))
        return problems_of(checks)

    def process(self, experiment: Experiment) -> Manifest:
        """Write scores.json, index.html and neuroglancer.json; raise the first error after that, if there was one."""
        from lsdflow_evaluate.evaluation import evaluate

        return evaluate(experiment)

    def invalidate_damaged(self, experiment: Experiment) -> dict[str, Any]:
        """Remove the done marks of damaged blocks; the files of later passes are written again by the run."""
        facts: dict[str, Any] = {}
        for task in self.passes(experiment):
            name = f"{task.config['part']}_" if "part" in task.config else ""
            facts |= {f"{name}{fact}".replace(" ", "_"): value for fact, value in invalidate_damaged(task).items()}
        drop_pass_files(experiment.layout.store / STAGE)
        return facts

    def plan(self, experiment: Experiment) -> dict[str, Any]:
        """What a run would compare and show."""
        config = experiment.table(STAGE, EvaluateConfig)
        grid = target_grid(experiment.layout)
        truth = open_truth(experiment.layout, config.truth_dataset, grid)
        voxels = region_box(config.roi, grid.voxel_size_nm, truth.labels.box, "evaluate.roi").size if truth else 0
        facts = {"truth": truth is not None, "voxels_compared": voxels, "bytes_read": 16 * voxels, "outputs": OUTPUTS}
        try:
            counting = find_counting(experiment)
        except StageError:
            return facts  # the fragments are not there yet
        return {**(plan_task(counting.task) if counting else {}), **facts}

    def describe(self, experiment: Experiment) -> None:
        """Leave nothing: no stage reads a report."""

    def measure(self, experiment: Experiment, folder: Path) -> dict[str, Any]:
        """Time and memory of one block of the counting. MissingInput (66) without ground truth."""
        return measure_block(require_counting(experiment).task, folder)

    def status(self, experiment: Experiment) -> dict[str, Any]:
        """Whether the report is there, and whether everything in it was complete."""
        written = {"report": (experiment.layout.root / OUTPUTS["report"]).exists()}
        finished = {"finished": experiment.layout.manifest(STAGE).exists()}
        try:
            counting = find_counting(experiment)
        except StageError as error:
            return {**written, **finished, "waiting_for": error.what}
        return {**(status_task(counting.task) if counting else {}), **written, **finished}

    def verify(self, experiment: Experiment) -> dict[str, Any]:
        """The report's files are there, the scores are those of the manifest, and what was counted is undamaged."""
        manifest = read_manifest(experiment.layout, STAGE)
        _require_report(experiment.layout, manifest)
        return {
            "identity": manifest.identity,
            "blocks_read_back": _verify_counted(experiment, manifest),
            "verified": True,
        }


def _require_skeletons(experiment: Experiment, config: EvaluateConfig) -> None:
    path = experiment.resolve(config.skeletons)
    if named := config.skeletons_of_mongo:
        if not all(named):
            wanted = '"mongo:NAME@FILE": the name of the skeletons, and a file with a MongoDB URI or a folder of a dump'
            raise ConfigError("no name or no source of skeletons", where="evaluate.skeletons", wanted=wanted)
        path = experiment.resolve(named[1])
    if not path.exists():
        raise MissingInput("no skeletons there", where=path, fix='"truth", "auto", "none", or a file or folder')
    if not named and knows_target(experiment.layout):
        from lsdflow_evaluate.passes import read_traced

        read_traced(experiment, config, target_grid(experiment.layout))


def _require_regions(experiment: Experiment, config: EvaluateConfig) -> None:
    grid = target_grid(experiment.layout)
    truth = open_truth(experiment.layout, config.truth_dataset, grid)
    if truth is None:
        if config.roi is not None or config.threshold_roi is not None or config.regions:
            raise MissingInput(
                "a region to score, but no truth",
                where="evaluate.roi, threshold_roi or regions",
                fix="give prepare.target.truth, or take the region out of [evaluate]",
            )
        return
    scored_regions(config, experiment.layout.target_volume, grid, truth.labels.box)


def _require_report(layout: ExperimentLayout, manifest: Manifest) -> None:
    """MissingInput (66) for files that are missing, BadData (65) for scores that are not those of the manifest."""
    missing = [path for path in OUTPUTS.values() if not (layout.root / path).is_file()]
    if missing:
        raise MissingInput("parts of the report are missing", where=", ".join(missing), fix="run: evaluate run")
    kept = layout.result(STAGE, manifest.key) / "scores.json"
    for path in (layout.root / OUTPUTS["scores"], kept):
        identity = hash_of([manifest.key, read_sealed(path, "run: evaluate run")])
        if identity != manifest.identity:
            raise BadData(
                "the scores are not those of the manifest",
                where=path,
                wanted=manifest.identity[:12],
                found=identity[:12],
                fix="run: evaluate run",
            )


def _verify_counted(experiment: Experiment, manifest: Manifest) -> int:
    """Read back what was counted; the number of blocks of the counting."""
    from lsdflow_evaluate.passes import pass_of_key

    blocks = verify_blocks(require_counting(experiment).task) if "blocks" in manifest.facts else 0
    for key in manifest.facts.get("works", ()):
        verify_blocks(pass_of_key(experiment, key))
        find_pass_files(experiment.layout.store / STAGE, key).require_whole()
    return blocks
