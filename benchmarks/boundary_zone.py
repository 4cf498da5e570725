"""Who gets the voxels of the boundary zone: VOI by the published rule (distance), by affinity, and by variants of it.

    .venv/blocks/bin/python benchmarks/boundary_zone.py PREDICTIONS.zarr VOLUME.zarr [--scored 160 250] [--chosen 0 150]
        [--in-xy] [--rules distance affinity ...]

PREDICTIONS.zarr: volumes/affs u8 of predict; VOLUME.zarr: volumes/labels/neuron_ids. All rules have the same seeds; one
block; hist_quant_75, thresholds 0, 0.02 to 1. VOI = split + merge in bits, and the adapted Rand error (ARE), in the
sections `--scored` (z from, to): at the best threshold there, and at the best one of the sections `--chosen`.

    distance      the published rule
    affinity      the default: the sum of the affinities to the neighbours on both sides, six in 3-D, four in a section
    levels        the same, rounded to 127 levels
    six           in xy: with the affinities along z too
    everywhere    the sums inside cells as well, which are flooded by distance otherwise
"""

# ruff: noqa: E402  (threads are limited before numpy is imported)
from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[_name] = "1"

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import zarr

import lsdflow
from lsdflow_metrics.contingency import contingency
from lsdflow_metrics.scores import PartitionScores, score
from lsdflow_segment.components import ThresholdSweep
from lsdflow_watershed.distance import inside_mask, raise_boundary_zone, squared_distance
from lsdflow_watershed.ids import number_seeds
from lsdflow_watershed.seamless_flood import flood_by_seed
from lsdflow_watershed.seeds import label_seeds

THRESHOLDS = [round(0.02 * i, 2) for i in range(51)]
SEED_WINDOW_VOX = 10

Bytes = npt.NDArray[np.uint8]
Ids = npt.NDArray[np.uint64]
Depth = npt.NDArray[np.int32]


def by_levels(distance: Depth, affs: Bytes, in_xy: bool) -> Depth:
    raised, largest = raise_boundary_zone(distance, affs, in_xy), (4 if in_xy else 6) * 255
    return np.where(distance > 0, raised, raised * 127 // largest).astype(np.int32)


def by_affinity_everywhere(distance: Depth, affs: Bytes, in_xy: bool) -> Depth:
    return raise_boundary_zone(np.zeros_like(distance), affs, in_xy)


RULES: dict[str, Callable[[Depth, Bytes, bool], Depth]] = {
    "distance": lambda distance, _affs, _in_xy: distance,
    "affinity": raise_boundary_zone,
    "levels": by_levels,
    "six": lambda distance, affs, _in_xy: raise_boundary_zone(distance, affs, in_xy=False),
    "everywhere": by_affinity_everywhere,
}


def scores_of(affs: Bytes, truth: Ids, fragments: Ids, sections: list[slice]) -> list[list[PartitionScores]]:
    """The scores of every threshold, in each of the ranges of sections."""
    edges = lsdflow.score_edges(affs, fragments)
    ids = np.unique(fragments[fragments > 0])
    sweep = ThresholdSweep(ids, THRESHOLDS)
    sweep.add(edges.u, edges.v, edges.merge_score)
    roots = list(sweep.roots())
    tables = [contingency(fragments[part], truth[part]) for part in sections]
    return [[score(table.relabel(ids, ids[root])) for root in roots] for table in tables]


def best_of(scores: list[PartitionScores]) -> int:
    return int(np.argmin([at.voi for at in scores]))


def cell(scores: list[PartitionScores], place: int) -> str:
    at = scores[place]
    parts = f"({at.voi_split:.3f} + {at.voi_merge:.3f}), {at.adapted_rand_error:.3f}"
    return f"**{at.voi:.3f}** {parts} @ {THRESHOLDS[place]:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("predictions", type=Path)
    parser.add_argument("volume", type=Path)
    parser.add_argument("--scored", type=int, nargs=2, default=[0, None], metavar=("FROM", "TO"))
    parser.add_argument("--chosen", type=int, nargs=2, metavar=("FROM", "TO"))
    parser.add_argument("--in-xy", action="store_true", help="section by section")
    parser.add_argument("--rules", nargs="+", default=["distance", "affinity"], choices=list(RULES))
    options = parser.parse_args()
    affs = np.ascontiguousarray(np.asarray(zarr.open_array(options.predictions / "volumes/affs", mode="r")[:3]))
    truth = np.asarray(zarr.open_array(options.volume / "volumes/labels/neuron_ids", mode="r")[:]).astype(np.uint64)
    distance = squared_distance(inside_mask(affs, options.in_xy), options.in_xy)
    seeds, first = number_seeds(label_seeds(distance, SEED_WINDOW_VOX, options.in_xy))
    print(
        f"{len(first):,} fragments\n| rule | VOI (split + merge), ARE @ best threshold | @ threshold chosen elsewhere |"
    )
    print("|---|---|---|", flush=True)
    sections = [slice(*part) for part in (options.scored, options.chosen) if part]
    for name in options.rules:
        depth = RULES[name](distance, affs, options.in_xy)
        fragments = flood_by_seed(depth, seeds, options.in_xy).astype(np.uint64)
        here, *elsewhere = scores_of(affs, truth, fragments, sections)
        other = cell(here, best_of(elsewhere[0])) if elsewhere else "-"
        print(f"| {name} | {cell(here, best_of(here))} | {other} |", flush=True)


if __name__ == "__main__":
    main()
