"""`lsdflow select-checkpoint`: segment a small labelled region with each checkpoint; the lowest VOI wins.

1. The region: the held-out part of a training volume (region.py).
2. A sweep whose base segments that region, and whose only axis is the checkpoint. Each run is an experiment, resumes
   after an interruption, and shares the prepared region. The axis grows with the training.
3. The table of the sweep.
4. best.json: the checkpoint with the lowest VOI; if the region was held out, also the threshold of each merge function
   that agglomerate computes, and which of them has the lowest VOI. With --follow, steps 2 to 4 are repeated until the
   training ends.

train/train-acrlsd/selection/<settings>/
  base/      the experiment with the region as its target
  runs/      one experiment per checkpoint: report, manifests and logs; its arrays are removed, unless --keep
  merged/    runs.csv, table.md, index.html
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from lsdflow_command.app import exit_codes
from lsdflow_command.processes import one_at_a_time
from lsdflow_contract.checkpoint import (
    WEIGHTS,
    BestCheckpoint,
    Bundle,
    Calibration,
    bundle_folder,
    bundle_iterations,
    read_best,
    read_bundle,
    write_best,
)
from lsdflow_contract.errors import BadData, BlocksFailed, MissingInput, StageError
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_contract.files import storage_errors, write_if_changed
from lsdflow_contract.hashing import hash_of_file
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import read_manifest
from lsdflow_launch.chain import LAST
from lsdflow_launch.checkpoint_selection.region import (
    STAGE,
    Region,
    base_text,
    find_region,
    networks_of,
    settings_of,
)
from lsdflow_launch.commands import Call, ask_stage, run_stage
from lsdflow_launch.options import Debug, Folder, Json, Set
from lsdflow_launch.output import print_answer, stdout_for_json
from lsdflow_launch.sweep.file import Sweep
from lsdflow_launch.sweep.folder import SweepFolder, open_sweep, write_folders
from lsdflow_launch.sweep.grid import RUNS, Axis
from lsdflow_launch.sweep.merge import Row, has_scores, merged
from lsdflow_launch.sweep.run import Outcome, SweepRunner, exit_code_of
from lsdflow_launch.sweep.table import write_merged

LOG = logging.getLogger("lsdflow.selection")
AXIS = "iteration"
POLL_S = 15.0


def add_selection_verb(app: typer.Typer) -> None:
    """Register `select-checkpoint`."""

    @app.command()
    def select_checkpoint(
        folder: Folder,
        every: Annotated[int, typer.Option(min=1, help="score multiples of this iteration, and the last one")] = 1,
        follow: Annotated[
            bool, typer.Option("--follow", help="wait for new checkpoints until the training has finished")
        ] = False,
        volume: Annotated[str | None, typer.Option(help="training volume to segment (default: the first)")] = None,
        keep: Annotated[bool, typer.Option("--keep", help="keep the small segmentations")] = False,
        override: Set = None,
        as_json: Json = False,
        debug: Debug = False,
    ) -> None:
        """Segment a small labelled region with each checkpoint; `predict` then uses the one with the lowest VOI."""
        with exit_codes(debug, as_json):
            experiment = load_experiment(folder, override or [])
            region = find_region(experiment, volume, ask_stage)
            selection = Selection(experiment, region, every, keep)
            with stdout_for_json(as_json):
                code = selection.follow() if follow else selection.update()
            facts: dict[str, Any] = {"exit_code": code, "table": str(selection.table), "region": region.words}
            text = ""
            if code == 0 and (rows := selection.rows()):
                best = read_best(experiment.layout.best_checkpoint(STAGE))
                facts |= {"checkpoints": len(rows), "best": best.model_dump()}
                text = f"{selection.table}: checkpoints: {len(rows)}; region: {region.words}\n"
                text += f"best: iteration {best.iteration}, VOI {best.voi:.3f} bits"
            print_answer(facts, text, as_json)
        raise typer.Exit(code)


@dataclass(frozen=True)
class Selection:
    """The selection of a checkpoint of one experiment on one region.

    every: use every N-th iteration; keep: keep the arrays of the runs, too; caller: runs the command of a stage.
    """

    experiment: Experiment
    region: Region
    every: int = 1
    keep: bool = False
    caller: Call = run_stage

    @property
    def folder(self) -> Path:
        """The folder of the sweep with the current settings: scores of other settings cannot be compared."""
        prepared = read_manifest(self.experiment.layout, "prepare").identity
        settings = settings_of(self.experiment, self.region, prepared)
        # The folder of a training is a link, but relative paths in experiment files are counted from real folders.
        return self.experiment.layout.train_dir(STAGE).resolve() / "selection" / settings

    @property
    def _checkpoints(self) -> Path:
        return self.experiment.layout.checkpoints(STAGE)

    @property
    def table(self) -> Path:
        """The page with the scores of all checkpoints."""
        return self.folder / "merged" / "index.html"

    def follow(self, sleep: Callable[[float], object] = time.sleep) -> int:
        """Repeat `update` until the training has finished, then once more. Returns and raises as `update`.

        If the training has deleted every scored checkpoint before it has finished, only a warning is logged.
        """
        with self._lock():
            while True:
                # Read this first: the last checkpoint is written before the manifest.
                finished = self._training_finished()
                if finished:
                    return self._update(last=True)
                if self._iterations() and (code := self._update(last=False)):
                    return code
                sleep(POLL_S)

    def update(self) -> int:
        """Run the sweep over the present checkpoints, and choose one. Returns the exit code of the first failure, or 0.

        Raises MissingInput (66) without checkpoints, BadData (65) if the region has no scored labels, OutputConflict
        (73) if another select-checkpoint is running, and Interrupted (75).
        """
        with self._lock():
            return self._update(last=True)

    def rows(self) -> list[Row]:
        """Return the scored runs of the sweep with the current settings, ascending by iteration."""
        rows = merged([open_sweep(self.folder)]).rows
        return sorted((row for row in rows if "voi" in row.scores), key=_iteration)

    def _lock(self) -> contextlib.AbstractContextManager[None]:
        # Not in the folder of the training, which may not exist yet: the training makes it a link.
        return one_at_a_time(self.experiment.layout.stage_runs(STAGE) / "selection.lock", "select-checkpoint")

    def _update(self, last: bool) -> int:
        if not self._iterations():
            raise MissingInput("no checkpoints", where=self._checkpoints, fix="train first")
        bundles = {iteration: bundle for iteration in self._due() if (bundle := self._bundle(iteration))}
        if not bundles:
            return 0
        sweep = self._prepared(bundles)
        missing = [row.run for row in merged([sweep]).rows if row.status != "done" and _iteration(row) in bundles]
        with self._arrays_removed(sweep):
            outcomes = SweepRunner(sweep, self.caller).run_all(missing)
        found = merged([sweep])
        name = self.experiment.common.name
        write_merged(found, self.table.parent, f"Checkpoints of {name} (region {self.region.words})")
        if any(row.status == "done" and "voi" not in row.scores for row in found.rows):
            fix = "segment another training volume: --volume NAME"
            where = self.region.words
            raise BadData("the region has no scores", where=where, found="no labels that count", fix=fix)
        if code := self._exit_code(outcomes, found.rows):
            return code
        try:
            self._choose()
        except MissingInput as error:
            if last:
                raise
            LOG.warning("%s", error.what)
        return 0

    def _prepared(self, bundles: Mapping[int, Bundle]) -> SweepFolder:
        """Write the folders of the sweep; runs of checkpoints that were deleted meanwhile stay in it."""
        base = self.folder / "base"
        if not (base / "experiment.toml").exists():
            text = base_text(self.experiment, self.region, next(iter(bundles.values())), base)
            write_if_changed(base / "experiment.toml", text.encode())
        self._remove_outdated_runs(bundles)
        networks = self._earlier_networks()
        networks |= {iteration: networks_of(self.experiment, bundle) for iteration, bundle in bundles.items()}
        points = {
            str(iteration): {f"predict.{key}": os.path.relpath(path, base) for key, path in networks[iteration].items()}
            for iteration in sorted(networks)
        }
        sweep = Sweep(base / "experiment.toml", load_experiment(base), (Axis(AXIS, points),))
        return write_folders(sweep, self.folder)

    def _earlier_networks(self) -> dict[int, dict[str, Path]]:
        """Return the networks of the runs that have a folder, by iteration, from their experiment files."""
        found = {}
        for file in (self.folder / RUNS).glob("*/experiment.toml"):
            predict = load_experiment(file).tables["predict"]
            names = [name for name in ("checkpoint", "lsd_checkpoint") if name in predict]
            found[int(Path(predict["checkpoint"]).name)] = {name: file.parent / predict[name] for name in names}
        return found

    def _remove_outdated_runs(self, bundles: Mapping[int, Bundle]) -> None:
        """Remove the run of an iteration that was trained again since, or whose scores are lost, like its arrays."""
        for iteration, bundle in bundles.items():
            run = run_folder(self.folder, iteration)
            layout, weights = ExperimentLayout(run), weights_of(run)
            lost = layout.manifest(LAST).exists() and not has_scores(layout)
            if weights and (lost or weights != bundle.weights_sha256):
                with storage_errors(run):
                    shutil.rmtree(run)

    @contextlib.contextmanager
    def _arrays_removed(self, sweep: SweepFolder) -> Iterator[None]:
        """Remove the arrays and the store of each run that is done, which need most space, unless they are kept."""
        try:
            yield
        finally:
            for row in merged([sweep]).rows if not self.keep else ():
                layout = ExperimentLayout(sweep.run_folder(row.run))
                if row.status == "done":
                    for path in (layout.results, layout.luts, layout.store):
                        shutil.rmtree(path, ignore_errors=True)

    def _exit_code(self, outcomes: Mapping[str, Outcome], rows: Sequence[Row]) -> int:
        """Return the exit code of the first run that failed, 73 if another process computes one, else 0.

        The failure of a checkpoint that the training has deleted meanwhile does not count.
        """
        counted = dict(outcomes)
        for row in rows:
            if outcomes.get(row.run.name) != "failed":
                continue
            if bundle_folder(self._checkpoints, _iteration(row)).exists():
                return row.exit_code or BlocksFailed.exit_code
            LOG.warning("iteration %d is left out: the training has deleted it meanwhile", _iteration(row))
            del counted[row.run.name]
        return exit_code_of(counted)

    def _due(self) -> list[int]:
        """Return the checkpoints to use: every N iterations, and the last one of a finished training."""
        there = self._iterations()
        last = {there[-1]} if self._training_finished() else set()
        return [iteration for iteration in there if iteration % self.every == 0 or iteration in last]

    def _training_finished(self) -> bool:
        return self.experiment.layout.manifest(STAGE).exists()

    def _iterations(self) -> list[int]:
        return bundle_iterations(self._checkpoints)

    def _bundle(self, iteration: int) -> Bundle | None:
        """Return a checkpoint with verified weights; None, with a warning, if it is missing or damaged."""
        folder = bundle_folder(self._checkpoints, iteration)
        try:
            bundle = read_bundle(folder)
            if hash_of_file(folder / WEIGHTS) == bundle.weights_sha256:
                return bundle
            problem = "its weights are damaged"
        except (StageError, FileNotFoundError) as error:
            problem = str(error)
        LOG.warning("checkpoint %s is left out: %s", folder, problem)
        return None

    def _choose(self) -> None:
        """Write best.json: the undamaged checkpoint with the lowest VOI among the scored runs, the newest if equal.

        Raises MissingInput (66) if there are scored runs, and none of their checkpoints exists any more.
        """
        rows = self.rows()
        for row in sorted(rows, key=lambda row: (row.scores["voi"], -_iteration(row))):
            run = run_folder(self.folder, _iteration(row))
            bundle = self._bundle(_iteration(row))
            if bundle is not None and bundle.weights_sha256 == weights_of(run):
                best = BestCheckpoint(
                    iteration=bundle.iteration,
                    weights_sha256=bundle.weights_sha256,
                    validation_loss=bundle.validation_loss,
                    chosen_by="voi",
                    voi=row.scores["voi"],
                    **_calibrated(self.region, run),
                )
                write_best(self.experiment.layout.best_checkpoint(STAGE), best)
                return
        if rows:
            raise MissingInput(
                "no scored checkpoint is there", where=self._checkpoints, fix="train longer, or keep more"
            )


def _calibrated(region: Region, run: Path) -> dict[str, Any]:
    """Return the threshold of each merge function of a run, and the merge function with the lowest VOI.

    Not for a region that was trained: affinities are sharper there.
    """
    found = read_manifest(ExperimentLayout(run), "segment").facts.get("lowest_voi")
    if not region.held_out or not found:
        return {}
    thresholds = {name: float(lowest["threshold"]) for name, lowest in found.items()}
    calibration = Calibration(thresholds=thresholds, voxels=region.box.size, on=region.words)
    # Of equal ones the first that agglomerate names.
    return {"calibration": calibration, "merge_function": min(found, key=lambda name: found[name]["voi"])}


def run_folder(folder: Path, iteration: int) -> Path:
    """Return the folder of the run of an iteration, in the folder of a selection."""
    return folder / RUNS / f"{AXIS}-{iteration}"


def weights_of(run: Path) -> str:
    """Return the sha256 of the weights that a run predicted with; "" if it has not predicted yet."""
    layout = ExperimentLayout(run)
    return read_manifest(layout, "predict").inputs["network"] if layout.manifest("predict").exists() else ""


def _iteration(row: Row) -> int:
    return int(row.run.at[AXIS])
