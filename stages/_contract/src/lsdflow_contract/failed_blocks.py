"""Failed blocks that a run accepted (`compute.failed_blocks = "accept"`): holes in the output of a stage.

A manifest lists them in its sealed facts: those of the stage and those of all its inputs. So the last manifest of a
chain lists the holes of the whole chain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from lsdflow_contract.errors import BadData, StageError
from lsdflow_contract.experiment import STAGES
from lsdflow_contract.geometry import Box, Geometry, Nm3, Vox3
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import Manifest, read_manifest, read_manifest_file
from lsdflow_contract.model import StrictModel

FAILED_BLOCKS = "failed_blocks"


class FailedBlock(StrictModel):
    """A block that is missing in a finished stage."""

    stage: str
    part: str = Field(default="", description="name of the pass, unless it is the stage's last one")
    block: int = Field(description="number of the block in the plan of its pass")
    begin_vox: Vox3 = Field(description="first voxel on the target grid, z, y, x")
    shape_vox: Vox3
    begin_nm: Nm3 = Field(description="world position of the corner of the first voxel, nm")
    why: str

    @property
    def box(self) -> Box:
        """The voxels on the target grid."""
        return Box(self.begin_vox, self.shape_vox)

    def box_in(self, geometry: Geometry, begin_vox: Vox3) -> Box:
        """The voxels on the grid of an array whose first voxel is `begin_vox`."""
        axes = zip(self.begin_nm, geometry.offset_nm, geometry.voxel_size_nm, begin_vox, strict=True)
        z, y, x = (begin + round((nm - offset) / size) for nm, offset, size, begin in axes)
        return Box((z, y, x), self.shape_vox)

    def __str__(self) -> str:
        part = f" ({self.part})" if self.part else ""
        return f"block {self.block} of {self.stage}{part} {self.box}: {self.why}"


def failed_blocks_of(manifest: Manifest) -> tuple[FailedBlock, ...]:
    """All accepted failed blocks that a manifest lists: its stage's own, and those of its inputs."""
    try:
        return tuple(FailedBlock.model_validate(found) for found in manifest.facts.get(FAILED_BLOCKS, ()))
    except ValidationError as error:
        raise BadData("damaged list of failed blocks", where=f"manifest of {manifest.writer.stage}") from error


def own_failed_blocks(manifest: Manifest) -> tuple[FailedBlock, ...]:
    """Accepted failed blocks of the manifest's own stage, in all its passes."""
    return tuple(failed for failed in failed_blocks_of(manifest) if failed.stage == manifest.writer.stage)


def missing_in_result(manifest: Manifest) -> tuple[FailedBlock, ...]:
    """Failed blocks of the stage's last pass, which have no arrays and no rows in its result."""
    return tuple(failed for failed in own_failed_blocks(manifest) if not failed.part)


def failed_blocks_of_inputs(layout: ExperimentLayout, inputs: Mapping[str, str]) -> tuple[FailedBlock, ...]:
    """Failed blocks of all stages in `inputs` (name: identity) whose current result has that identity."""
    found: list[FailedBlock] = []
    for stage in (stage for stage in STAGES if stage in inputs):
        with suppress(StageError):
            manifest = read_manifest(layout, stage)
            found += failed_blocks_of(manifest) if manifest.identity == inputs[stage] else ()
    return _distinct(found)


def failed_blocks_of_results(layout: ExperimentLayout, stages: Iterable[str] = STAGES) -> tuple[FailedBlock, ...]:
    """Failed blocks that the current results of the stages list."""
    found: list[FailedBlock] = []
    for stage in stages:
        with suppress(StageError):
            found += failed_blocks_of(read_manifest(layout, stage))
    return _distinct(found)


def failed_blocks_of_array(container: Path, key: str) -> tuple[FailedBlock, ...]:
    """The blocks that are missing in a container, from the manifest of its result; none without a manifest.

    The container may be a link to a container of another experiment.
    """
    with suppress(StageError):
        manifest = read_manifest_file(container.resolve().parent / "manifest.json")
        return missing_in_result(manifest) if manifest.key == key else ()
    return ()


def fact_of(failed: Iterable[FailedBlock]) -> dict[str, Any]:
    """The entry for a manifest's facts or scores.json; empty if no block failed."""
    listed = [block.model_dump(mode="json") for block in failed]
    return {FAILED_BLOCKS: listed} if listed else {}


def _distinct(found: Iterable[FailedBlock]) -> tuple[FailedBlock, ...]:
    """Each block once, as its own stage describes it: that stage comes before those that inherit it."""
    first: dict[tuple[str, str, int, Vox3], FailedBlock] = {}
    for failed in found:
        first.setdefault((failed.stage, failed.part, failed.block, failed.begin_vox), failed)
    return tuple(first.values())
