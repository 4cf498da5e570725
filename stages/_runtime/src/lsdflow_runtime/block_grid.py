"""Where the blocks of a piece of work lie, noted once when it begins: a map of blocks may be wanted before its end.

runs/<stage>/grids/<key>.json      the region and the shape of a block, voxels of the target grid
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lsdflow_contract.errors import StageError
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.files import read_json, write_json
from lsdflow_contract.geometry import Vox3
from lsdflow_contract.manifest import Manifest
from lsdflow_runtime.block_task import BlockTask

# The names under which stages keep the same in their resolved config, for work of before such notes.
_BEGINS, _SHAPES = ("begin_vox", "total_begin_vox"), ("shape_vox", "total_shape_vox")


@dataclass(frozen=True)
class BlockGrid:
    """A region cut into blocks, numbered row-major."""

    begin_vox: Vox3
    shape_vox: Vox3
    block_shape_vox: Vox3

    @property
    def shape(self) -> Vox3:
        """Blocks along z, y, x."""
        z, y, x = (math.ceil(n / b) for n, b in zip(self.shape_vox, self.block_shape_vox, strict=True))
        return z, y, x


def note_grid(task: BlockTask) -> None:
    """Write where the blocks of a task lie; once."""
    path = _path(task.experiment, task.stage, task.key)
    if not path.exists():
        total = task.plan.total
        found = {"begin_vox": total.begin_vox, "shape_vox": total.shape_vox}
        write_json(path, {**found, "block_shape_vox": task.plan.write_shape_vox})


def read_grid(experiment: Experiment, stage: str, key: str) -> BlockGrid | None:
    """The grid of a piece of work; None if it is not noted, or damaged."""
    try:
        found = read_json(_path(experiment, stage, key))
    except StageError:
        return None
    return _grid(found) if isinstance(found, Mapping) else None


def grid_of_manifest(manifest: Manifest) -> BlockGrid | None:
    """The grid of a finished stage from its resolved config; None if it does not tell."""
    resolved = manifest.config.get("resolved")
    return _grid(resolved) if isinstance(resolved, Mapping) else None


def _path(experiment: Experiment, stage: str, key: str) -> Path:
    return experiment.layout.stage_runs(stage) / "grids" / f"{key}.json"


def _grid(found: Mapping[str, Any]) -> BlockGrid | None:
    begin = next((found[name] for name in _BEGINS if name in found), None)
    shape = next((found[name] for name in _SHAPES if name in found), None)
    block = found.get("block_shape_vox")
    try:
        grid = BlockGrid(_vox3(begin), _vox3(shape), _vox3(block))
    except (TypeError, ValueError):
        return None
    return grid if min(grid.shape_vox) > 0 and min(grid.block_shape_vox) > 0 else None


def _vox3(values: Any) -> Vox3:
    z, y, x = (int(value) for value in values)
    return z, y, x
