"""What a report shows: numpy arrays and plain values, nothing that has to be opened.

`task.py` gathers a `ReportData`; `report.render_report` turns it into one page of HTML. Every part may be empty: a
report is also made after a failure, and what is missing is named in `problems`, which the page shows first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.checkpoint import Bundle
from lsdflow_contract.manifest import Manifest
from lsdflow_evaluate.report.records import StageRecord

Axis = Literal["z", "y", "x"]
LayerKind = Literal["grey", "colour", "labels"]
FragmentsBy = Literal["seamless", "blocks", "mutex"]


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
    """One layer seen in one plane.

    `image` is (rows, columns) uint8 for "grey", (rows, columns, 3) uint8 for "colour", (rows, columns) uint64 for
    "labels" (0 = background). Rows and columns are the two axes that remain, in the order z, y, x. `index_vox` counts
    on the grid of the target raw volume; `pixel_size_nm` is (row, column).
    """

    layer: str
    kind: LayerKind
    axis: Axis
    index_vox: int
    image: NDArray[Any]
    pixel_size_nm: tuple[float, float]


@dataclass(frozen=True)
class Score:
    """Quality of one merge function at one threshold against the truth (VOI in bits, others in [0, 1]).

    `adapted_rand_error` counts segmentation 0 as one label, as `voi_*` and `rand_*` do, unless the config says
    otherwise; the choice is recorded in `ReportData.settings`. ERL values are nm, None without skeletons.
    """

    merge_function: str
    threshold: float
    chosen: bool
    voi_split: float
    voi_merge: float
    voi: float
    rand_split: float
    rand_merge: float
    rand: float
    adapted_rand_error: float
    nvi_split: float
    nvi_merge: float
    number_of_segments: int
    expected_run_length_nm: float | None = None
    max_erl_nm: float | None = None
    normalized_erl: float | None = None
    split_edges: int | None = None
    merged_edges: int | None = None


@dataclass(frozen=True)
class SegmentCount:
    """Number of segments that one threshold leaves (known without truth), and how steady the partition is there."""

    merge_function: str
    threshold: float
    segments: int
    largest_segment_vox: int | None = None
    change_to_next: float | None = None
    chosen: bool = False


@dataclass(frozen=True)
class Verdict:
    """One success criterion: `value` `comparison` `limit`, e.g. 1.84 < 2.0; `passed` None: could not be measured."""

    name: str
    value: float | None
    comparison: str
    limit: float
    passed: bool | None
    note: str = ""


@dataclass(frozen=True, eq=False)
class LossCurve:
    """The loss of one training stage: iterations int64 (n,), one float64 (n,) series per name; NaN = not measured."""

    stage: str
    iterations: NDArray[np.int64]
    series: dict[str, NDArray[np.float64]]


@dataclass(frozen=True, eq=False)
class BlockTimes:
    """How long the blocks of a stage took: seconds float64 (blocks done,), and counts of the others."""

    stage: str
    seconds: NDArray[np.float64]
    done: int
    failed: int
    total: int


@dataclass(frozen=True)
class StageVersion:
    """Who wrote an artefact; empty strings where unknown. `wall_s`: run time of the whole stage, None where unknown."""

    stage: str
    version: str = ""
    image_digest: str = ""
    revision: str = ""
    contract: str = ""
    identity: str = ""
    wall_s: float | None = None


@dataclass(frozen=True, eq=False)
class SizeHistogram:
    """Sizes of segments: `counts[i]` segments of edges_vox[i] <= size < edges_vox[i + 1] voxels."""

    edges_vox: NDArray[np.int64]
    counts: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The largest neurites in 3-D: RGBA pixels, ids (largest first) and their volumes, the 8 corners of the box shown
    as (row, column), numbered by the bits z, y, x, and the farthest; `whole`: the box is all of the segmentation."""

    pixels: NDArray[np.uint8]
    ids: tuple[int, ...]
    volumes_nm3: tuple[float, ...]
    corners: NDArray[np.float64]
    farthest: int
    pixel_nm: float
    box: str
    whole: bool


@dataclass(frozen=True)
class SnapshotRow:
    """One dataset of a training's snapshot; of a prediction the mean squared error where the weight is > 0, and the
    share of values that have one (None of other datasets)."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    low: float
    high: float
    error: float | None = None
    share: float | None = None


@dataclass(frozen=True, eq=False)
class TrainingSnapshot:
    """The newest snapshot of a training that can be read: titled pictures of its middle plane, Raw first, and its
    datasets. `iteration` None: none can be; `left_out`: a sentence for each newer one that cannot."""

    stage: str
    iteration: int | None
    pictures: tuple[tuple[str, Picture], ...] = ()
    rows: tuple[SnapshotRow, ...] = ()
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class WorstPlace:
    """A split or a merge, what it costs, the voxel (z, y, x of the target's grid) where it is seen, and that in nm."""

    kind: str
    what: str
    bits: float | None
    voxel: tuple[int, int, int] | None
    at: str = ""


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


@dataclass(frozen=True, eq=False)
class ReportData:
    """Everything the page shows. Only `experiment` and `created` are always there.

    `folder`: the name of the experiment's folder; `refresh_s`: the page is loaded again after so long (a run goes on);
    `no_scores`: why there are none; `crumbs`: what to do where fragments are far too small;
    `larger_error`: whether neurons are rather cut or merged, and what would help; `manifests`: of the stages that have
    finished; `networks`: those of the prediction, in the order in which they are applied; `compared`: the finished
    results of evaluate, the current one first.
    """

    experiment: str
    created: str
    problems: tuple[Problem, ...] = ()
    has_truth: bool = False
    verdicts: tuple[Verdict, ...] = ()
    scores: tuple[Score, ...] = ()
    segment_counts: tuple[SegmentCount, ...] = ()
    advice: str = ""
    crumbs: str = ""
    larger_error: str = ""
    seams: str = ""
    pictures: tuple[Picture, ...] = ()
    losses: tuple[LossCurve, ...] = ()
    block_times: tuple[BlockTimes, ...] = ()
    segment_sizes: SizeHistogram | None = None
    versions: tuple[StageVersion, ...] = ()
    voxel_size_nm: tuple[float, float, float] | None = None
    shape_vox: tuple[int, int, int] | None = None
    roi: str = ""
    neuroglancer_state: dict[str, Any] | None = None
    neuroglancer_help: str = ""
    fragments_by: FragmentsBy = "seamless"
    settings: dict[str, str] = field(default_factory=dict)
    snapshot: Snapshot | None = None
    trained: tuple[TrainingSnapshot, ...] = ()
    stages: tuple[StageRecord, ...] = ()
    manifests: Mapping[str, Manifest] = field(default_factory=dict)
    networks: tuple[Bundle, ...] = ()
    worst: tuple[WorstPlace, ...] = ()
    compared: tuple[ComparedResult, ...] = ()
    folder: str = "DIR"
    refresh_s: int | None = None
    no_scores: str = ""
    lsd_error: str = ""
