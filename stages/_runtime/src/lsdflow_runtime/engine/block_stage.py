"""BlockStage: a stage that processes blocks. A subclass defines its passes; all commands are implemented here.

    passes        the passes over blocks, as BlockTasks; the last one writes the manifest
    run           process all blocks that are not done, pass by pass
    worker        process blocks of the pass with the coordinator's key
    verify        read all blocks of all passes again, and check them
    repair        recompute blocks that are missing or damaged
    plan, status, measure

A stage that needs other steps before, between or after its passes overrides `process`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lsdflow_command.stage import Stage
from lsdflow_contract.errors import ContractMismatch, StageError
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.manifest import Manifest, current_key
from lsdflow_runtime.engine.block_task import BlockTask
from lsdflow_runtime.engine.blockwise import run_blocks, run_task, status_task, worker_task
from lsdflow_runtime.engine.cluster import join_coordinator, sole_coordinator
from lsdflow_runtime.engine.daisy_runner import Session
from lsdflow_runtime.engine.planning import describe_manifest, describe_outputs, measure_block, plan_task
from lsdflow_runtime.engine.verify import invalidate_damaged, require_made, verify_blocks, verify_task
from lsdflow_runtime.store.stores import open_store, problems_of_store


class BlockStage(Stage):
    """A stage of one or more passes over blocks."""

    @abstractmethod
    def passes(self, experiment: Experiment) -> list[BlockTask]:
        """The passes in their order. Raises all errors that can be found before anything is written."""

    def problems(self, experiment: Experiment) -> list[StageError]:
        """All problems of settings and inputs, except those of the store."""
        try:
            self.passes(experiment)
        except StageError as error:
            return [error]
        return []

    def process(self, experiment: Experiment) -> Manifest:
        """Process the blocks of all passes that are not done, and write the manifest; returns it."""
        tasks = self.passes(experiment)
        keys = {task.key for task in tasks}
        for number in range(len(tasks) - 1):
            run_blocks(tasks[number], keys)
            # The key of later passes depends on the failed blocks of this pass.
            tasks = self.passes(experiment)
            keys |= {task.key for task in tasks}
        return run_task(tasks[-1], keys, tasks[:-1])

    def last_pass(self, experiment: Experiment) -> BlockTask:
        """The pass that writes the manifest."""
        return self.passes(experiment)[-1]

    def run(self, experiment: Experiment) -> None:
        """Process all blocks that are not done, and write the manifest.

        Results of other settings are not changed. Raises OutputConflict (73) if another coordinator runs the stage.
        """
        with sole_coordinator(self.name, experiment):
            self.process(experiment)

    def join(self, experiment: Experiment) -> None:
        """Process blocks for a coordinator that runs in another job."""
        join_coordinator(self.name, experiment)

    def worker(self, experiment: Experiment) -> None:
        """Process blocks for the coordinator named in the environment. ContractMismatch (76) if the keys differ."""
        worker_task(self.pass_of(experiment, Session.current().pass_key))

    def pass_of(self, experiment: Experiment, key: str) -> BlockTask:
        """The pass with this key. ContractMismatch (76) if there is none."""
        for task in self.passes(experiment):
            if task.key == key:
                return task
        raise ContractMismatch(
            "the coordinator processes a pass that this worker does not have",
            where=experiment.path,
            found=f"key {key[:12]}",
            fix="let both run the same image and settings",
        )

    def verify(self, experiment: Experiment) -> dict[str, Any]:
        """Read the blocks of all passes again. Raises BadData (65) naming those that are missing or damaged."""
        *before, last = self.passes(experiment)
        facts = verify_task(last)
        return facts | {f"{task.label}_blocks_read_back": verify_blocks(task) for task in before}

    def repair(self, experiment: Experiment) -> dict[str, Any]:
        """Recompute the blocks that are missing or damaged; returns facts of what was found."""
        with sole_coordinator(self.name, experiment):
            facts = self.invalidate_damaged(experiment)
            return {**facts, "identity": self.process(experiment).identity}

    def invalidate_damaged(self, experiment: Experiment) -> dict[str, Any]:
        """Remove the done marks of blocks that are missing or damaged; returns facts of each pass."""
        *before, last = self.passes(experiment)
        require_made(last, current_key(experiment.layout, self.name))
        facts: dict[str, Any] = {}
        for task in before:
            facts |= {f"{task.label}_{name}": fact for name, fact in invalidate_damaged(task).items()}
        return facts | invalidate_damaged(last)

    def plan(self, experiment: Experiment) -> dict[str, Any]:
        """The plan of a run: that of the first pass, and of each pass if there are several."""
        plans = {task.label: plan_task(task) for task in self.passes(experiment)}
        first = next(iter(plans.values()))
        return {**first, "passes": plans} if len(plans) > 1 else first

    def describe(self, experiment: Experiment) -> None:
        """Write the metadata of all arrays and a manifest to `experiment.descriptions`."""
        for task in (tasks := self.passes(experiment)):
            describe_outputs(task)
        describe_manifest(tasks)

    def drop_rows(self, experiment: Experiment, keys: Sequence[str]) -> dict[str, Any]:
        """Remove done marks and rows of the passes whose keys begin with one of `keys`; returns the full keys."""
        store = open_store(experiment)
        dropped = [key for key in store.keys(self.name) if key.startswith(tuple(keys))]
        for key in dropped:
            store.drop(self.name, key)
        return {"dropped": dropped}

    def measure(self, experiment: Experiment, folder: Path) -> dict[str, Any]:
        """Time and memory of one block of the first pass, written to `folder`."""
        first, *others = self.passes(experiment)
        return {**measure_block(first, folder), **({"pass": first.label} if others else {})}

    def status(self, experiment: Experiment) -> dict[str, Any]:
        """Finished blocks of the current pass, and of each pass."""
        of_passes = {task.label: status_task(task) for task in self.passes(experiment)}
        *before, last = of_passes.values()
        name, now = next((item for item in of_passes.items() if _is_open(item[1])), ("", last))
        facts = {**now, "finished": last["finished"], **({"pass": name} if before and name else {})}
        for name, found in list(of_passes.items())[:-1]:
            facts |= {f"{name}_{fact}": found[fact] for fact in ("blocks", "done", "failed")}
        return facts

    def validate(self, experiment: Experiment) -> list[StageError]:
        """All problems that can be found before a run; writes nothing."""
        return self.problems(experiment) + problems_of_store(experiment)


def _is_open(status: dict[str, Any]) -> bool:
    """True if blocks of a pass are not done yet."""
    return bool(status["done"] + len(status.get("accepted", ())) < status["blocks"])
