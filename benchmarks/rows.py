"""The rows of the table: what is compared with what, how much faster lsdflow has to be, how the results must agree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

import lsdflow
from lsdflow_contract.testing import same_partition


class ResultsDifferError(Exception):
    """Both sides of a row did not make the same."""


@dataclass(frozen=True)
class Row:
    """A comparison. `per`: what the rate counts. `agree` reports how the results agree, or raises ResultsDifferError.

    peer_script: another than peers.py runs in lsdflow's own environment. crop: of data.py; "" is the noisy one.
    """

    key: str
    name: str
    against: str
    own: str
    peer: str
    goal: float
    per: str
    agree: Callable[[Any, Any], str]
    peer_script: str = "peers.py"
    crop: str = ""


def partition(own: Any, peer: Any) -> str:
    """The same partition of the voxels, whatever the numbers."""
    return _require(same_partition(own, peer), "same partition")


def clusters(own: Any, peer: Any) -> str:
    """The same partition of the voxels that are in fragments of lsdflow; the peer may call a fragment 0, too."""
    return partition(own, np.where(own > 0, peer.astype(np.uint64) + 1, 0))


def equal(own: Any, peer: Any) -> str:
    """Equal values."""
    return _require(bool(np.array_equal(own, peer)), "equal")


def edges(own: Any, peer: Any) -> str:
    """The same edges; and around the best threshold segments that differ by .005 bits per fragment at most.

    waterz sorts edges into 256 bins, first come first served within a bin; lsdflow decides ties by ids. At thresholds
    where single merges decide much, the order of ties is seen: that is reported, not required.
    """
    same_pairs = np.array_equal(own[:2], peer[:2])
    thresholds = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
    voi = {t: _voi_of_fragments(own, peer, t) if same_pairs else np.inf for t in thresholds}
    agreement = ", ".join(f"{t:g}: {v:.3f}" for t, v in voi.items())
    return _require(max(voi[t] for t in (0.2, 0.3, 0.4)) <= 0.005, f"same edges, VOI per fragment at {agreement}")


def _voi_of_fragments(own: Any, peer: Any, threshold: float) -> float:
    nodes, ends = np.unique(own[:2], return_inverse=True)
    u, v = ends.reshape(2, -1)
    parts = []
    for scores in (own[2], peer[2]):
        kept = scores <= threshold
        graph = coo_matrix((np.ones(int(kept.sum())), (u[kept], v[kept])), shape=(len(nodes),) * 2)
        parts.append(connected_components(graph, directed=False)[1].astype(np.uint64) + 1)
    return lsdflow.compare(*parts).voi


def grey_levels(own: Any, peer: Any) -> str:
    """The same u8 values but for rounding: 1 level in less than 1 of 1,000."""
    apart = np.abs(own.astype(np.int16) - peer)
    share = float((apart > 0).mean())
    return _require(apart.max() <= 1 and share < 1e-3, f"levels: {apart.max()} apart at most, {share:.1e} of them")


def other_precision(own: Any, peer: Any) -> str:
    """Another number format: less than one level apart on average."""
    apart = np.abs(own.astype(np.int16) - peer)
    return _require(float(apart.mean()) < 1, f"levels: {apart.max()} apart at most, {apart.mean():.2f} on average")


def pairs(own: Any, peer: Any) -> str:
    """The same pairs of touching fragments; the peer scores a pair by what one block sees of it."""
    same = np.array_equal(own[:2], peer[:2])
    return _require(
        same,
        f"same pairs, mean difference of scores {np.nanmean(np.abs(own[2] - peer[2])):.3f}"
        if same
        else f"{own.shape[1]:,} and {peer.shape[1]:,} pairs",
    )


def another_method(own: Any, peer: Any) -> str:
    """Reported, not required: the peer makes another partition by design, or decides ties in another way."""
    voi = lsdflow.compare(own.astype(np.uint64) + 1, peer.astype(np.uint64) + 1).voi
    return f"other ties or method: VOI {voi:.2f}, {np.unique(own).size:,} and {np.unique(peer).size:,} fragments"


def _require(true: bool, agreement: str) -> str:
    if not true:
        raise ResultsDifferError(f"the results do not agree: {agreement}")
    return agreement


def _on_crops(row: Row) -> tuple[Row, ...]:
    """The row on the noisy crop, on the clean one, and on that of a network."""
    crops = {"": "noisy", "clean": "clean", "network": "of a network"}
    return tuple(
        replace(row, key="-".join(filter(None, (row.key, crop))), name=f"{row.name}, {name}", crop=crop)
        for crop, name in crops.items()
    )


ROWS = (
    *_on_crops(Row("fragments", "fragments", "LSD chain: scipy, mahotas",
        "seamless_fragments", "lsd_chain", 6, "voxel", another_method)),
    Row("fragments-published", "fragments by the published rule", "LSD chain: scipy, mahotas",
        "fragments", "lsd_chain", 6, "voxel", partition),
    Row("fragments-skimage", "fragments", "scikit-image",
        "seamless_fragments", "skimage_watershed", 5, "voxel", another_method),
    Row("fragments-waterz", "fragments", "waterz' own",
        "seamless_fragments", "waterz_fragments", 1, "voxel", another_method),
    Row("fragments-mutex", "fragments", "mwatershed",
        "seamless_fragments", "mutex_watershed", 5, "voxel", another_method),
    Row("mutex", "mutex watershed, 9 channels", "mwatershed",
        "mutex_fragments", "mutex_watershed_of_far", 1, "voxel", clusters),
    Row("fragments-io", "fragments, zarr to zarr", "LSD chain, zarr-python",
        "fragments_on_disk", "lsd_chain_on_disk", 6, "voxel", partition),
    *_on_crops(Row("edges", "scored edges", "waterz [0, t]",
        "scored_faces", "waterz_edges", 3, "voxel", edges)),
    Row("edges-blocks", "scored edges, by waterz", "waterz [0, t]",
        "scored_edges", "waterz_edges", 1, "voxel", edges),
    Row("edges-stored", "scored edges, stored, blocks of 64", "waterz per block, SQLite",
        "faces_and_edges_stored", "waterz_edges_of_blocks_stored", 10, "voxel", pairs),
    Row("components", "segments, 1 threshold", "scipy",
        "components", "scipy_components", 1.5, "edge", partition),
    Row("components-nx", "segments, 1 threshold", "networkx",
        "components", "networkx_components", 100, "edge", partition),
    Row("sweep", "segments, 20 thresholds", "scipy, 20 times",
        "components_of_20", "scipy_components_20_times", 10, "edge", partition),
    Row("relabel", "relabelling", "fastremap, a dict of the block made before",
        "relabelled", "fastremap_remap", 2, "block voxel", equal),
    Row("relabel-map", "relabelling", "a map per block",
        "relabelled", "map_per_block", 50, "block voxel", equal),
    Row("write", "writing u8 affinities", "zarr-python, chunks",
        "written", "zarr_written", 1, "voxel", equal),
    Row("write-shard", "writing u8 affinities", "zarr-python, shard",
        "written", "zarr_shards_written", 3, "voxel", equal),
    Row("read", "reading u8 affinities", "zarr-python, chunks",
        "read", "zarr_read", 1, "voxel", equal),
    Row("read-shard", "reading u8 affinities", "zarr-python, shard",
        "read", "zarr_shards_read", 3, "voxel", equal),
    Row("graph", "graph stored and read", "SQLite with keys",
        "graph_stored", "sqlite_graph", 10, "row", equal),
    Row("blocks", "tiny blocks, 2 workers", "daisy, a durable mark in the block's function",
        "blocks_done", "daisy_marked", 0.77, "block", equal),
    Row("blocks-memory", "tiny blocks in memory", "daisy, its own marks (not durable)",
        "blocks_done_in_memory", "daisy_tracked_in_memory", 0.77, "block", equal),
    Row("resume", "knowing what is done", "daisy, its own marks",
        "resumed", "daisy_resumed", 1, "finished block", equal),
    Row("predict", "one tile, LSD network, float32", "the same in eager torch",
        "network", "eager_network", 1.5, "predicted voxel", grey_levels, "eager_network.py"),
    Row("predict-bf16", "one tile, LSD network, bf16", "eager torch, float32",
        "network_bf16", "eager_network", 3, "predicted voxel", other_precision, "eager_network.py"),
)  # fmt: skip


def measurable(row: Row) -> bool:
    """False for bf16 where this CPU cannot compute in it."""
    from lsdflow_network.devices import cpu_computes_bf16  # loads torch

    return row.key != "predict-bf16" or cpu_computes_bf16()
