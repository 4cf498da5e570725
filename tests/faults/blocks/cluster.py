"""A stage whose coordinator and workers are separate commands, as on a cluster; all on this machine."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

from harness import Harm, World, wait_for


class Cluster:
    """A coordinator that waits for workers; `port`: where they connect, if not to its own port (a proxy)."""

    def __init__(self, world: World, stage: str, folder: Path, *settings: str) -> None:
        self.world, self.stage, self.folder = world, stage, folder
        self.settings = settings
        self.environment = {
            "LSDFLOW_SUBMISSION": uuid.uuid4().hex,
            "LSDFLOW_FAULT_SPARED_PORTS": str(world.databases.mongod.port),
        }
        self.coordinator = self._start("run", "compute.runner=cluster", *settings)
        self.workers: list[int] = []

    def join(self, harm: Harm | None = None) -> int:
        """Start a worker; its process number."""
        self.workers.append(self._start("worker", *self.settings, harm=harm))
        return self.workers[-1]

    def coordinator_file(self) -> dict[str, Any]:
        """What the coordinator file says, once the coordinator listens."""
        path = self.folder / "runs" / self.stage / "coordinator.json"
        wait_for("a coordinator", lambda: path.exists() and bool(json.loads(path.read_text())["port"]))
        return dict(json.loads(path.read_text()))

    def tell_workers(self, **changed: Any) -> None:
        """Change the coordinator file that workers read."""
        path = self.folder / "runs" / self.stage / "coordinator.json"
        changed_text = json.dumps({**self.coordinator_file(), **changed})
        path.with_suffix(".changed").write_text(changed_text)
        path.with_suffix(".changed").replace(path)

    def end(self) -> set[int]:
        """Exit codes of all commands."""
        return {self.world.server.wait(pid) for pid in (self.coordinator, *self.workers)}

    def _start(self, verb: str, *settings: str, harm: Harm | None = None) -> int:
        start = self.world.server.start
        return start(self.stage, self.folder, *settings, verb=verb, harm=harm, **self.environment)
