"""Helpers for tests of training: a tiny prepared experiment, written without any zarr library."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lsdflow_contract.arrays import LABELS, MASK, RAW
from lsdflow_contract.geometry import Nm3, Vox3
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import Manifest, Writer
from lsdflow_contract.testing import membrane_raw, voronoi_labels

MICRO_OPTIONS: dict[str, Any] = {
    "num_fmaps": 2,
    "fmap_inc_factor": 2,
    "downsample_factors": [[2, 2, 2]],
    "input_shape_vox": [28, 28, 28],
    "predict_input_shape_vox": [32, 32, 32],
    "max_iteration": 3,
    "checkpoint_every": 2,
    "snapshot_every": 2,
    "validation_every": 2,
    "validation_patches": 2,
    "num_workers": 0,
    "threads": 1,
    "precision": "float32",
    "sigma": "24 nm",
    "grow_boundary_vox": 1,
    "balance_labels": True,
}


def write_zarr2(container: Path, dataset: str, array: npt.NDArray[Any], voxel_size_nm: Nm3, offset_nm: Nm3) -> None:
    """Write an uncompressed zarr format 2 array with one chunk, and the groups above it."""
    folder = container / dataset
    folder.mkdir(parents=True, exist_ok=True)
    for group in [folder.parent, *folder.parent.parents]:
        if group.is_relative_to(container):
            (group / ".zgroup").write_text('{"zarr_format": 2}', encoding="ascii")
    meta = {
        "zarr_format": 2,
        "shape": array.shape,
        "chunks": array.shape,
        "dtype": array.dtype.str,
        "compressor": None,
        "fill_value": 0,
        "order": "C",
        "filters": None,
    }
    (folder / ".zarray").write_text(json.dumps(meta), encoding="ascii")
    attributes = {"resolution": voxel_size_nm, "offset": offset_nm}
    (folder / ".zattrs").write_text(json.dumps(attributes), encoding="ascii")
    (folder / ".".join(["0"] * array.ndim)).write_bytes(np.ascontiguousarray(array).tobytes())


def micro_volume(
    container: Path,
    shape_vox: tuple[int, int, int] = (40, 40, 40),
    *,
    seed: int = 0,
    voxel_size_nm: Nm3 = (8.0, 8.0, 8.0),
    mask: npt.NDArray[np.uint8] | None = None,
) -> None:
    """Write a synthetic training volume: raw, labels with ids beyond 2^53, and a mask (default: all trained)."""
    labels = voronoi_labels(shape_vox, 8, seed)
    ids = np.where(labels > 0, labels + np.uint64(2**60), 0).astype(np.uint64)
    states = np.ones(shape_vox, np.uint8) if mask is None else mask
    for spec, array in ((RAW, membrane_raw(labels, seed)), (LABELS, ids), (MASK, states)):
        write_zarr2(container, spec.dataset, array, voxel_size_nm, (0.0, 0.0, 0.0))


def micro_experiment(
    root: Path, mode: str = "acrlsd", options: Mapping[str, Any] | None = None, voxel_size_nm: Nm3 = (8.0, 8.0, 8.0)
) -> Path:
    """Write an experiment with one micro volume; returns its experiment.toml. options: override MICRO_OPTIONS."""
    layout = ExperimentLayout(root)
    micro_volume(layout.training_volume("micro"), voxel_size_nm=voxel_size_nm)
    Manifest(
        writer=Writer(stage="prepare", version="0"),
        key="k",
        config={},
        inputs={},
        outputs={},
        facts={"volumes": {"training/micro": {"probability": 1.0}}},
        identity="prepared",
    ).write(layout)
    lines = ["[experiment]", f'mode = "{mode}"', 'profile = "tiny"', "[compute]", 'device = "cpu"']
    for stage in ("train-lsd", "train-acrlsd"):
        lines.append(f"[{stage}]")
        lines += [f"{key} = {json.dumps(value)}" for key, value in {**MICRO_OPTIONS, **(options or {})}.items()]
    layout.experiment_toml.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return layout.experiment_toml


def thin_labels(shape_vox: Vox3) -> npt.NDArray[np.uint64]:
    """Lines, a plane, a diagonal, single voxels in corners, a label in two distant parts; all else is background."""
    depth, height, width = shape_vox
    labels = np.zeros(shape_vox, dtype=np.uint64)
    labels[:, 2, 3] = 1
    labels[4, :, 9] = 2
    labels[7, 5, :] = 3
    labels[9] = 4
    diagonal = np.arange(depth)
    labels[diagonal, diagonal, diagonal + 5] = 5
    labels[0, 0, 0] = 6
    labels[depth - 1, height - 1, width - 1] = 7
    labels[1, 1, width - 2], labels[depth - 3, 9, 12] = 8, 8
    return labels
