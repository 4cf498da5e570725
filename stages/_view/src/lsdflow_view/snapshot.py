"""A training snapshot (snapshots/batch_<iteration>.hdf) as layers: what the network saw, should give and gave.

Viewers read zarr, so the arrays are copied into a folder that exists while the viewer runs. Raw (-1 to 1) and
targets and predictions (0 to 1) become 0 to 255, as in the volumes that predict writes. Weights and gradients are not
shown.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from lsdflow_command.scratch import scratch_folder
from lsdflow_contract.arrays import ArraySpec
from lsdflow_contract.errors import BadData
from lsdflow_contract.geometry import Geometry, Nm3
from lsdflow_runtime.formats.source import reading
from lsdflow_runtime.io.volumes import OutputArray, Volume, open_volume
from lsdflow_view.layers import ViewerLayers

CHUNK_VOX = (64, 64, 64)
# The bottom layer first. The datasets have other names in the published LSD trainings than in the affinity trainings.
LAYERS = {
    "raw": ("volumes/raw",),
    "lsds_input": ("volumes/labels/pretrained_lsd",),
    "lsds_target": ("volumes/gt_embedding", "volumes/gt_lsds"),
    "lsds_prediction": ("volumes/pred_embedding", "volumes/pred_lsds"),
    "affinities_target": ("volumes/gt_affinities", "volumes/labels/gt_affinities"),
    "affinities_prediction": ("volumes/pred_affinities", "volumes/labels/pred_affinities"),
    "mask": ("volumes/labels/mask",),
    "labels": ("volumes/labels/neuron_ids",),
}


@contextmanager
def snapshot_layers(path: Path) -> Iterator[ViewerLayers]:
    """The layers of a snapshot, while the context lasts. Raises BadData (65) for a file that is no snapshot."""
    with scratch_folder(Path(tempfile.gettempdir()), "lsdflow-view") as folder:
        with reading(str(path)), h5py.File(path, "r") as file:
            volumes = {
                name: _copied(file[dataset], name, folder / f"{name}.zarr")
                for name, datasets in LAYERS.items()
                for dataset in datasets
                if dataset in file
            }
            found = ", ".join(file) or "nothing"
        if "raw" not in volumes:
            wanted = "train/<stage>/snapshots/batch_<iteration>.hdf"
            raise BadData("this is no training snapshot", where=path, wanted=wanted, found=found)
        yield ViewerLayers(volumes, {}, None)


def _copied(dataset: Any, name: str, container: Path) -> Volume:
    """Copy an array (z, y, x) or (c, z, y, x) with its voxel size and its offset in the patch."""
    values, channels = _values(dataset[()], name), dataset.shape[0] if dataset.ndim == 4 else 0
    z, y, x = (int(length) for length in dataset.shape[-3:])
    place = Geometry(_nm3(dataset.attrs["resolution"]), _nm3(dataset.attrs["offset"]), (z, y, x))
    spec = ArraySpec(name, values.dtype.name, channels, "labels" if values.dtype == np.uint64 else "image")
    output = OutputArray(container, spec, place, place.box, CHUNK_VOX)
    output.create({"key": name})
    output.open().write(place.box, values)
    return open_volume(container, name)


def _nm3(lengths: NDArray[Any]) -> Nm3:
    z, y, x = map(float, lengths)
    return z, y, x


def _values(values: NDArray[Any], name: str) -> NDArray[Any]:
    if name in ("labels", "mask"):
        return values.astype(np.uint64)
    if values.dtype == np.uint8:
        return values
    shares = (values + 1) / 2 if name == "raw" else values
    return np.rint(np.clip(shares, 0, 1) * 255).astype(np.uint8)
