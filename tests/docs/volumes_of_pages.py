"""Small volumes under the names that docs/your_own_data.md gives them: each in its format, each with cells in it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import tensorstore
import tifffile
import zarr
from numpy.typing import NDArray

SIDE = 24
Array = NDArray[Any]


def cells(shape: tuple[int, int, int], seed: int = 0) -> NDArray[np.uint64]:
    """Labels (z, y, x): boxes of 16 voxels, each a neuron of its own."""
    z, y, x = (np.arange(n) // 16 for n in shape)
    return (1 + seed + z[:, None, None] * 10_000 + y[:, None] * 100 + x).astype(np.uint64)


def grey(labels: Array, dtype: str = "uint8", largest: int = 250) -> Array:
    """Raw of such labels: a grey value for each of them, and noise."""
    values = largest * (0.2 + 0.06 * (labels % 11)) + np.random.default_rng(0).normal(0, largest / 50, labels.shape)
    return np.clip(values, 0, largest).astype(dtype)


def cremi_zarr(
    path: Path, shape: tuple[int, int, int], size_nm: float = 8, *, labels: bool = True, overwrite: bool = False
) -> None:
    """A zarr container in CREMI's layout; `overwrite` replaces an existing one."""
    if overwrite:
        shutil.rmtree(path)
    ids = cells(shape)
    wanted: dict[str, Array] = {"volumes/raw": grey(ids), **({"volumes/labels/neuron_ids": ids} if labels else {})}
    zarr_arrays(path, wanted, resolution=[size_nm] * 3, offset=[0, 0, 0])


def zarr_arrays(path: Path, arrays: Mapping[str, Array], **attributes: Any) -> None:
    """Arrays of a zarr container, all with these attributes."""
    group = zarr.open_group(path, mode="a", zarr_format=2)
    for name, values in arrays.items():
        chunks = tuple(min(n, 64) for n in values.shape)
        group.create_array(name, data=values, chunks=chunks).attrs.update(attributes)


def tiffs(folder: Path) -> None:
    """`slices/` (10 comes after 9), `labels.tif`, and `em.tif` of 16 bits."""
    ids = cells((12, SIDE, SIDE))
    (folder / "slices").mkdir()
    for number, section in enumerate(grey(ids)):
        tifffile.imwrite(folder / "slices" / f"section_{number}.tif", section)
    tifffile.imwrite(folder / "labels.tif", ids.astype(np.uint16))
    tifffile.imwrite(folder / "em.tif", grey(ids, "uint16", 50_000))


def hdf5(folder: Path) -> None:
    """`sample_A.hdf`, whose labels cover only the middle of raw; nothing says a voxel size."""
    ids = cells((SIDE, SIDE, SIDE))
    with h5py.File(folder / "sample_A.hdf", "w") as file:
        file["em/grey"] = grey(ids)
        file["em/neurons"] = ids[4:-4, 4:-4, 4:-4]
        file["em/neurons"].attrs["offset"] = [160.0, 16.0, 16.0]


def n5_and_others(folder: Path) -> None:
    """`volume.n5` (x, y, z), `image.ome.zarr` with labels, `precomputed/em` with a chunk that was never written."""
    ids = cells((12, 16, SIDE))
    for name, values in (("setup0/timepoint0/s1", grey(ids)), ("volumes/labels/neuron_ids", ids)):
        metadata = {
            "dimensions": values.shape[::-1],
            "blockSize": [16, 16, 12],
            "dataType": values.dtype.name,
            "compression": {"type": "gzip"},
            "resolution": [4.0, 6.0, 8.0],
        }
        _store({"driver": "n5", "kvstore": _at(folder / "volume.n5" / name), "metadata": metadata}, values.T)
    _ome(folder / "image.ome.zarr", ids)
    size = {
        "size": [SIDE, 16, 12],
        "chunk_size": [8, 8, 12],
        "resolution": [8, 8, 8],
        "encoding": "raw",
        "key": "8_8_8",
    }
    spec = {"driver": "neuroglancer_precomputed", "kvstore": _at(folder / "precomputed" / "em")}
    spec |= {"multiscale_metadata": {"data_type": "uint8", "num_channels": 1, "type": "image"}}
    values = grey(ids).T[..., None].copy()
    values[:8, :8] = 0
    _store({**spec, "scale_metadata": {k: v for k, v in size.items() if k != "key"} | {"key": "8_8_8"}}, values)


def expanded(folder: Path) -> None:
    """`exm.tif`: two stains, 16 bits."""
    ids = cells((12, SIDE, SIDE))
    stains = np.stack([grey(ids, "uint16", 4000), grey(ids + 3, "uint16", 4000)])
    tifffile.imwrite(folder / "exm.tif", stains, metadata={"axes": "CZYX"}, ome=False, imagej=False)


def _ome(path: Path, ids: Array) -> None:
    scale = [{"type": "scale", "scale": [30.0, 8.0, 8.0]}]
    axes = [{"name": name, "type": "space", "unit": "nanometer"} for name in "zyx"]
    multiscale = {"version": "0.4", "axes": axes, "datasets": [{"path": "0", "coordinateTransformations": scale}]}
    zarr_arrays(path, {"0": grey(ids), "labels/neurons/0": ids})
    zarr.open_group(path, mode="a").attrs["multiscales"] = [multiscale]
    zarr.open_group(path / "labels" / "neurons", mode="a").attrs["multiscales"] = [multiscale]


def _at(path: Path) -> dict[str, str]:
    return {"driver": "file", "path": f"{path}/"}


def _store(spec: dict[str, Any], values: Array) -> None:
    tensorstore.open({**spec, "create": True, "delete_existing": False}).result().write(values).result()
