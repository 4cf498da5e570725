"""What the report shows: arrays, manifests and plain values; nothing that has to be opened.

`collect.collect` reads a `ReportData` from the experiment; `page.render_page` turns it into HTML. Every part
may be empty: a report is also made after a failure, and what is missing is named in `problems`, which come first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.checkpoint import Bundle
from lsdflow_contract.geometry import Box, Nm3
from lsdflow_contract.manifest import Manifest
from lsdflow_evaluate.errors.doubtful_place import DoubtfulPlace

Axis = Literal["z", "y", "x"]
AXES: tuple[Axis, ...] = ("z", "y", "x")
LayerKind = Literal["grey", "colour", "labels"]
FINISHED, SHORT, FAILED = "finished", "finished short", "failed"
STOPPED, UNENDED, NOT_STARTED = "stopped", "unended", "not started"


@dataclass(frozen=True)
class Problem:
    """Something that failed or is missing; the fields of a `StageError`."""

    stage: str
    what: str
    where: str = ""
    wanted: str = ""
    found: str = ""
    fix: str = ""


@dataclass(frozen=True, eq=False)
class Picture:
    """One layer in one plane.

    `image` is (rows, columns) uint8 for "grey", (rows, columns, 3 or 4) uint8 for "colour", (rows, columns) uint64 for
    "labels" (0 = background). Rows and columns are the two axes that remain, in the order z, y, x. `index_vox` counts
    on the grid of the target raw volume; `pixel_size_nm` is (row, column).
    """

    layer: str
    kind: LayerKind
    axis: Axis
    index_vox: int
    image: NDArray[Any]
    pixel_size_nm: tuple[float, float]


@dataclass(frozen=True, eq=False)
class Neurites:
    """The largest segments, the largest first, and their picture. `part`: the box in it, if it is not the whole."""

    picture: Picture
    ids: tuple[int, ...]
    volumes_nm3: tuple[float, ...]
    part: str = ""


@dataclass(frozen=True, eq=False)
class LossCurve:
    """The loss of one training stage: iterations int64 (n,), one float64 (n,) series per name; NaN = not measured."""

    stage: str
    iterations: NDArray[np.int64]
    series: dict[str, NDArray[np.float64]]


@dataclass(frozen=True, eq=False)
class TrainingSnapshot:
    """The newest snapshot of a training that can be read: titled pictures of its middle plane, Raw first; of each
    dataset name, shape, type, range, and mean squared error. `iteration` None: none can be read; `left_out`: a
    sentence for each newer one that cannot."""

    stage: str
    iteration: int | None
    pictures: tuple[tuple[str, Picture], ...] = ()
    datasets: tuple[tuple[str, ...], ...] = ()
    left_out: tuple[str, ...] = ()


class BlockState(IntEnum):
    """The state of a block; of several blocks the highest counts."""

    DONE = 0
    RETRIED = 1
    MISSING = 2
    FAILED = 3


@dataclass(frozen=True, eq=False)
class StageBlocks:
    """Blocks of a stage: how many are done, failed and planned; seconds float64 (n,) of those done, of very many an
    even sample; their states (z, y, x) of BlockState with the shape of a block, if the grid is known."""

    done: int
    failed: int
    total: int
    seconds: NDArray[np.float64]
    states: NDArray[np.uint8] | None = None
    block_shape_vox: tuple[int, int, int] = (1, 1, 1)


@dataclass(frozen=True)
class Resources:
    """What a run used, its processes together; memory is that of the largest process. None: not recorded."""

    cpu_s: float | None = None
    peak_resident_bytes: int | None = None
    read_bytes: int | None = None
    written_bytes: int | None = None
    gpu: str = ""
    gpu_bytes: int | None = None

    @classmethod
    def sum(cls, used: Sequence[Resources]) -> Resources:
        """Sums, and the largest peaks; None where nothing was recorded."""

        def known(name: str) -> list[Any]:
            """Return the recorded values of a field."""
            return [value for one in used if (value := getattr(one, name)) is not None]

        return cls(
            cpu_s=sum(known("cpu_s")) if known("cpu_s") else None,
            peak_resident_bytes=max(known("peak_resident_bytes"), default=None),
            read_bytes=sum(known("read_bytes")) if known("read_bytes") else None,
            written_bytes=sum(known("written_bytes")) if known("written_bytes") else None,
            gpu=next((one.gpu for one in reversed(used) if one.gpu), ""),
            gpu_bytes=max(known("gpu_bytes"), default=None) or None,
        )


@dataclass(frozen=True)
class StageRun:
    """One run of a stage; `seconds` and `exit_code` None: it left no outcome, so it still runs or was killed."""

    stage: str
    name: str
    started: float
    seconds: float | None
    exit_code: int | None
    what: str = ""
    host: str = ""
    job: str = ""
    command: str = ""
    resources: Resources = Resources()

    @property
    def state(self) -> str:
        """done, failed, stopped (by a signal or on request), or going: there is no outcome."""
        if self.exit_code is None:
            return "going"
        if self.exit_code == 0:
            return "done"
        return "stopped" if self.exit_code == 75 or self.exit_code >= 128 else "failed"


@dataclass(frozen=True)
class StageRecord:
    """One stage: its state, its runs, the newest last, the manifest if it has finished, its settings as (key, value).

    `in_blocks`: what its blocks used, wherever they were processed; `jobs`: (job, script) of the newest submission.
    """

    stage: str
    state: str
    runs: tuple[StageRun, ...] = ()
    manifest: Manifest | None = None
    settings: tuple[tuple[str, str], ...] = ()
    in_blocks: Resources = Resources()
    jobs: tuple[tuple[str, str], ...] = ()
    log: str = ""
    log_path: str = ""

    @property
    def last(self) -> StageRun | None:
        """The newest run."""
        return self.runs[-1] if self.runs else None

    @property
    def resources(self) -> Resources:
        """What its blocks used, else its runs; of runs before resources were recorded, the memory in the manifest."""
        used = self.in_blocks if self.in_blocks != Resources() else Resources.sum([run.resources for run in self.runs])
        if used.peak_resident_bytes is None and self.manifest and "peak_rss_mib" in self.manifest.facts:
            return Resources(peak_resident_bytes=int(self.manifest.facts["peak_rss_mib"] * (1 << 20)))
        return used


@dataclass(frozen=True, eq=False)
class ComparedResult:
    """A finished result of evaluate, to be compared with the others.

    `settings`: how each stage before it differs from the current chain, with the keys to make that current;
    `scores`: those of scores.json by name; `age_s`: since it was finished; `picture`: its segmentation in one section.
    """

    key: str
    current: bool
    settings: tuple[str, ...]
    scores: Mapping[str, Any]
    segments: int | None
    age_s: float
    picture: Picture | None = None


@dataclass(frozen=True)
class ToLabel:
    """A small box (on the grid of the target) that is worth labelling, its first voxel and its middle in nm.

    `place`: what is doubtful in its middle; None where nothing is, as far as it was looked for.
    """

    box: Box
    begin_nm: Nm3
    at_nm: Nm3
    place: DoubtfulPlace | None


@dataclass(frozen=True, eq=False)
class ReportData:
    """Everything the page shows. Only `experiment` and `created` are always there.

    `folder`: the name of the experiment's folder; `refresh_s`: during a run, the page is loaded again after it;
    `scores`: what scores.json holds; `voi_limit`: success is a VOI below it; `luts`: the facts of each lookup table of
    a segmentation that fits its fragments, else none; `fragment_voxels`: voxels of the volume of these fragments;
    `manifests`: of the stages that have finished; `networks`: those of the prediction, in the order in which they are
    applied; `compared`: the finished results of evaluate, the current one first; `to_label`: where, of a
    segmentation without truth.
    """

    experiment: str
    created: str
    folder: str = "DIR"
    refresh_s: int | None = None
    problems: tuple[Problem, ...] = ()
    scores: Mapping[str, Any] = field(default_factory=dict)
    voi_limit: float = 2.0
    luts: tuple[Mapping[str, Any], ...] = ()
    fragment_voxels: int = 0
    manifests: Mapping[str, Manifest] = field(default_factory=dict)
    networks: tuple[Bundle, ...] = ()
    stages: tuple[StageRecord, ...] = ()
    blocks: Mapping[str, StageBlocks] = field(default_factory=dict)
    losses: tuple[LossCurve, ...] = ()
    trained: tuple[TrainingSnapshot, ...] = ()
    voxel_size_nm: tuple[float, float, float] | None = None
    shape_vox: tuple[int, int, int] | None = None
    pictures: tuple[Picture, ...] = ()
    neurites: Neurites | None = None
    compared: tuple[ComparedResult, ...] = ()
    to_label: ToLabel | None = None
    viewer_state: Mapping[str, Any] | None = None
    viewer_url: str = ""

    @property
    def chosen(self) -> tuple[str, float] | None:
        """Merge function and threshold that the report is about; None without a segmentation."""
        segment = self.manifests.get("segment")
        facts = self.scores if "threshold" in self.scores else segment.facts if segment and self.luts else None
        return (str(facts["merge_function"]), float(facts["threshold"])) if facts else None

    @property
    def chosen_score(self) -> Mapping[str, Any] | None:
        """The scores of the chosen threshold, as in scores.json; None without scores."""
        return self._of_chosen(self.scores.get("thresholds", ()))

    @property
    def chosen_lut(self) -> Mapping[str, Any] | None:
        """The facts of the lookup table of the chosen threshold; None if there is none."""
        return self._of_chosen(self.luts)

    def _of_chosen(self, rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
        return next((row for row in rows if (row["merge_function"], row["threshold"]) == self.chosen), None)

    @property
    def segment_sizes(self) -> Mapping[str, Any] | None:
        """The facts of segment with its histogram of sizes; None if it counted none."""
        segment = self.manifests.get("segment")
        return segment.facts if segment and self.luts and "size_edges_vox" in segment.facts else None
