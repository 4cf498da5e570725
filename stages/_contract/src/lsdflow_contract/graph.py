"""The region adjacency graph (RAG): fragments are nodes, adjacencies are edges with a merge score.

score = 1 - affinity quantile: 0 = surely the same neuron, 1 = surely different; an edge merges if score <= threshold,
so a HIGHER threshold merges MORE. NaN (null in MongoDB) = never merged by any threshold.

Also the overlaps of fragments with the truth: a row for each pair of labels that share voxels of a block.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lsdflow_contract.errors import BadData

SCORE_CONVENTION = "one_minus_affinity, low=merge"
NODES_COLLECTION = "nodes"
# Faces between fragments that are not scored yet are stored like edges, in the collection edges_faces.
FACES = "faces"
MAX_ID = 2**63 - 1
DEFAULT_MERGE_FUNCTIONS = ("hist_quant_75",)
# Truth 0 is "not labelled": all such voxels are one row of fragment 0 and truth 0.
NOT_LABELLED = 0


def edges_collection(merge_function: str) -> str:
    """Name of the edge collection of a merge function, as is usual in the field."""
    return f"edges_{merge_function}"


@dataclass(frozen=True)
class RagNodes:
    """Fragments: id u64 (N,), centre of mass in nm f64 (N, 3) z,y,x, size in voxels u64 (N,).

    A seamless fragment has a row for each block that holds some of its voxels, with the centre and size of these
    voxels. Its size is the sum of the sizes, and its centre the mean of the centres, weighted by size.
    """

    id: npt.NDArray[np.uint64]
    center_nm: npt.NDArray[np.float64]
    size_vox: npt.NDArray[np.uint64]

    def __post_init__(self) -> None:
        if self.center_nm.shape != (len(self.id), 3) or len(self.size_vox) != len(self.id):
            raise BadData(
                "node columns differ in length", found=(len(self.id), self.center_nm.shape, len(self.size_vox))
            )

    def __len__(self) -> int:
        return len(self.id)

    @classmethod
    def empty(cls) -> RagNodes:
        """No nodes."""
        return cls(np.zeros(0, np.uint64), np.zeros((0, 3)), np.zeros(0, np.uint64))

    @classmethod
    def concatenate(cls, parts: list[RagNodes]) -> RagNodes:
        """All nodes of `parts`, in order."""
        if not parts:
            return cls.empty()
        return cls(*(np.concatenate([getattr(p, f) for p in parts]) for f in ("id", "center_nm", "size_vox")))


@dataclass(frozen=True)
class RagEdges:
    """Adjacencies: u < v u64 (N,), merge_score f32 (N,) in [0, 1] or NaN (never merged)."""

    u: npt.NDArray[np.uint64]
    v: npt.NDArray[np.uint64]
    merge_score: npt.NDArray[np.float32]

    def __post_init__(self) -> None:
        if not len(self.u) == len(self.v) == len(self.merge_score):
            raise BadData("edge columns differ in length", found=(len(self.u), len(self.v), len(self.merge_score)))
        if len(self.u) and not bool(np.all(self.u < self.v)):
            raise BadData("an edge must have u < v", where="RAG edges")

    def __len__(self) -> int:
        return len(self.u)

    @classmethod
    def empty(cls) -> RagEdges:
        """No edges."""
        return cls(np.zeros(0, np.uint64), np.zeros(0, np.uint64), np.zeros(0, np.float32))

    @classmethod
    def concatenate(cls, parts: list[RagEdges]) -> RagEdges:
        """All edges of `parts`, in order."""
        if not parts:
            return cls.empty()
        return cls(*(np.concatenate([getattr(p, f) for p in parts]) for f in ("u", "v", "merge_score")))


@dataclass(frozen=True)
class RagFaces(RagEdges):
    """Voxel faces between fragments u < v, counted by affinity (u8, 255 = surely the same neuron), before scoring.

    One row for each affinity that occurs: affinity u8 (N,), count u64 (N,). Counts of blocks are summed. merge_score is
    NaN.
    """

    affinity: npt.NDArray[np.uint8]
    count: npt.NDArray[np.uint64]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not len(self.u) == len(self.affinity) == len(self.count):
            raise BadData("face columns differ in length", found=(len(self.u), len(self.affinity), len(self.count)))

    @classmethod
    def of(
        cls,
        u: npt.NDArray[np.uint64],
        v: npt.NDArray[np.uint64],
        affinity: npt.NDArray[np.uint8],
        count: npt.NDArray[np.unsignedinteger | np.signedinteger],
    ) -> RagFaces:
        """Faces from their columns."""
        unscored = np.broadcast_to(np.float32(np.nan), len(u))
        return cls(u, v, unscored, affinity, count.astype(np.uint64, copy=False))

    @classmethod
    def empty(cls) -> RagFaces:
        """No faces."""
        return cls.of(np.zeros(0, np.uint64), np.zeros(0, np.uint64), np.zeros(0, np.uint8), np.zeros(0, np.uint64))


@dataclass(frozen=True)
class RegionFaces(RagFaces):
    """Faces between regions u < v that remain of a part of the graph; the id of a region is its smallest fragment.

    origin_u, origin_v u64 (N,): the last of the fragment pairs that the face consists of. It decides between equal
    scores, and is the same in all rows of a pair.
    """

    origin_u: npt.NDArray[np.uint64]
    origin_v: npt.NDArray[np.uint64]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not len(self.u) == len(self.origin_u) == len(self.origin_v):
            raise BadData("face columns differ in length", found=(len(self.u), len(self.origin_u), len(self.origin_v)))


def overlaps_collection(region: str) -> str:
    """Name of the collection of a region's overlaps."""
    return f"overlaps_{region}"


@dataclass(frozen=True)
class Overlaps:
    """Pairs of labels: fragment u64 (N,), truth u64 (N,), shared voxels u64 (N,)."""

    fragment: npt.NDArray[np.uint64]
    truth: npt.NDArray[np.uint64]
    size_vox: npt.NDArray[np.uint64]

    def __post_init__(self) -> None:
        if not len(self.fragment) == len(self.truth) == len(self.size_vox):
            found = (len(self.fragment), len(self.truth), len(self.size_vox))
            raise BadData("overlap columns differ in length", found=found)

    def __len__(self) -> int:
        return len(self.fragment)

    @classmethod
    def empty(cls) -> Overlaps:
        """No pairs."""
        return cls(np.zeros(0, np.uint64), np.zeros(0, np.uint64), np.zeros(0, np.uint64))
