"""Helpers for tests of every stage: tiny volumes, and equality of segmentations up to their ids."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lsdflow_contract.arrays import quantise_u8
from lsdflow_contract.geometry import Vox3
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.lut import luts_of
from lsdflow_contract.manifest import read_manifest


def made(layout: ExperimentLayout, stage: str) -> Path:
    """The container with the arrays of a stage: of the current result, else of the only result."""
    if layout.manifest(stage).exists():
        manifest = read_manifest(layout, stage)
        return manifest.output_array(layout, min(manifest.outputs))[0]
    (container,) = (layout.results / stage).glob("*/*.zarr")
    return container


def tables_of(layout: ExperimentLayout) -> Path:
    """The folder of the tables of the current result of segment, else of the only graph with tables."""
    if layout.manifest("segment").exists():
        return luts_of(layout, read_manifest(layout, "segment"))
    (folder,) = {summary.parent for summary in layout.luts.rglob("thresholds_*.json")}
    return folder


def same_partition(a: npt.NDArray[np.integer], b: npt.NDArray[np.integer]) -> bool:
    """True if two label arrays divide space into the same parts, whatever the ids; 0 (background) must match 0."""
    if a.shape != b.shape or not np.array_equal(a == 0, b == 0):
        return False
    pairs = np.unique(np.stack([a.ravel().astype(np.uint64), b.ravel().astype(np.uint64)]), axis=1)
    return bool(len(np.unique(pairs[0])) == len(np.unique(pairs[1])) == pairs.shape[1])


def voronoi_labels(shape_vox: Vox3, count: int, seed: int = 0) -> npt.NDArray[np.uint64]:
    """Dense labels 1..count: each voxel belongs to its nearest random point."""
    generator = np.random.default_rng(seed)
    points = generator.uniform(0, 1, (count, 3)) * np.array(shape_vox)
    grid = np.stack(np.meshgrid(*(np.arange(n) for n in shape_vox), indexing="ij"), axis=-1)
    nearest = np.zeros(shape_vox, np.uint64)
    best = np.full(shape_vox, np.inf)
    for label, point in enumerate(points, start=1):
        distance = ((grid - point) ** 2).sum(axis=-1)
        nearest[distance < best] = label
        best = np.minimum(best, distance)
    return nearest


def affinities_of(labels: npt.NDArray[np.integer]) -> npt.NDArray[np.uint8]:
    """True affinities (3, z, y, x) u8: 255 where a voxel and its lower neighbour along the axis share a label > 0."""
    affs = np.zeros((3, *labels.shape), np.uint8)
    for axis in range(3):
        along = np.moveaxis(labels, axis, 0)
        channel = np.moveaxis(affs[axis], axis, 0)
        channel[1:] = 255 * ((along[1:] == along[:-1]) & (along[1:] > 0))
        channel[0] = 255 * (along[0] > 0)
    return affs


def noisy_affinities_to(
    labels: npt.NDArray[np.integer], neighborhood: Sequence[Vox3], seed: int = 0
) -> npt.NDArray[np.uint8]:
    """Affinities (offsets, z, y, x) u8: mostly high where a voxel and the one at the offset share a label > 0."""
    generator = np.random.default_rng(seed)
    values = np.empty((len(neighborhood), *labels.shape))
    for channel, offset in zip(values, neighborhood, strict=True):
        padded = np.pad(labels, [(max(0, -step), max(0, step)) for step in offset])
        ends = padded[
            tuple(slice(max(0, step), max(0, step) + n) for step, n in zip(offset, labels.shape, strict=True))
        ]
        channel[:] = np.where((labels == ends) & (labels > 0), 0.9, 0.1) + generator.normal(0, 0.15, labels.shape)
    return quantise_u8(values)


def membrane_raw(labels: npt.NDArray[np.integer], seed: int = 0) -> npt.NDArray[np.uint8]:
    """Grey raw for labels: bright inside, dark where neighbours differ, some noise."""
    inside = affinities_of(labels).min(axis=0) > 0
    noise = np.random.default_rng(seed).normal(0, 12, labels.shape)
    return np.clip(np.where(inside, 170, 60) + noise, 0, 255).astype(np.uint8)


def micro_network(iterations: int, *, checkpoints: int = 2) -> dict[str, Any]:
    """A table for train-lsd and train-acrlsd: a network that trains in seconds and predicts poorly."""
    return {
        "num_fmaps": 4,
        "fmap_inc_factor": 2,
        "input_shape_vox": [52, 52, 52],
        "predict_input_shape_vox": [68, 68, 68],
        "max_iteration": iterations,
        "checkpoint_every": iterations // checkpoints,
        "snapshot_every": iterations,
        "num_workers": 0,
        "validation_fraction": 0.0,
    }
