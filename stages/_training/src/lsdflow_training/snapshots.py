"""What users see of a batch: snapshots (HDF5 files), and pictures for TensorBoard.

Input, targets and predictions at an iteration are written to snapshots/batch_<iteration>.hdf, with usual names. In
addition, volumes/lsds_weight and volumes/affs_weight hold the weight of each voxel in the loss (0: not trained). A last
iteration that only time or the validation loss made the last one has no gradients.
"""

from __future__ import annotations

import uuid
from pathlib import Path

import h5py
import numpy as np
import numpy.typing as npt
from torch import Tensor

from lsdflow_contract.checkpoint import Kind
from lsdflow_contract.files import TEMPORARY_SUFFIX, storage_errors
from lsdflow_contract.geometry import Nm3
from lsdflow_training.data.patch import Patch
from lsdflow_training.step import StepResult
from lsdflow_training.targets.boundaries import compact_ids

_NAMES: dict[str, dict[str, str]] = {
    "lsd": {
        "gt_lsds": "volumes/gt_embedding",
        "pred_lsds": "volumes/pred_embedding",
        "weight_lsds": "volumes/lsds_weight",
        "grad_lsds": "volumes/embedding_gradient",
    },
    "mtlsd": {
        "gt_lsds": "volumes/gt_lsds",
        "pred_lsds": "volumes/pred_lsds",
        "weight_lsds": "volumes/lsds_weight",
        "gt_affs": "volumes/gt_affinities",
        "pred_affs": "volumes/pred_affinities",
        "weight_affs": "volumes/affs_weight",
        "grad_affs": "volumes/affs_gradient",
    },
    "acrlsd": {
        "lsds_u8": "volumes/labels/pretrained_lsd",
        "gt_affs": "volumes/labels/gt_affinities",
        "pred_affs": "volumes/labels/pred_affinities",
        "weight_affs": "volumes/affs_weight",
        "grad_affs": "volumes/affs_gradient",
    },
}
_NAMES["affinities"] = {key: name for key, name in _NAMES["acrlsd"].items() if key != "lsds_u8"}
_INPUTS = {"raw": "volumes/raw", "labels": "volumes/labels/neuron_ids", "mask": "volumes/labels/mask"}


def snapshot_path(folder: Path, iteration: int) -> Path:
    """The file of an iteration, not zero-padded, as gunpowder names it."""
    return folder / f"batch_{iteration}.hdf"


def dataset_names(kind: Kind) -> dict[str, str]:
    """Datasets of a snapshot of this kind of training: our name -> dataset."""
    return {**_INPUTS, **_NAMES[kind]}


def write_snapshot(path: Path, kind: Kind, patch: Patch, *, result: StepResult, voxel_size_nm: Nm3) -> None:
    """Write one snapshot, complete or not at all; `offset` and `resolution` in nm, relative to the raw patch."""
    arrays = _arrays(patch, result)
    raw_shape = arrays["raw"].shape
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}{TEMPORARY_SUFFIX}")
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with h5py.File(partial, "w") as file:
                for key, name in dataset_names(kind).items():
                    if key not in arrays:
                        continue
                    dataset = file.create_dataset(name, data=arrays[key], compression="gzip", compression_opts=1)
                    border = [(r - s) // 2 for r, s in zip(raw_shape, arrays[key].shape[-3:], strict=True)]
                    dataset.attrs["offset"] = [b * v for b, v in zip(border, voxel_size_nm, strict=True)]
                    dataset.attrs["resolution"] = voxel_size_nm
                file.attrs["loss"] = float(result.loss.detach())
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


def _arrays(patch: Patch, result: StepResult) -> dict[str, npt.NDArray[np.generic]]:
    arrays: dict[str, npt.NDArray[np.generic]] = {"raw": patch.raw[0, 0].cpu().numpy()}
    if patch.labels is not None and patch.mask is not None:
        labels = compact_ids(patch.labels.cpu().numpy().astype(np.uint64))
        arrays |= {"labels": labels, "mask": patch.mask.cpu().numpy()}
    for name, target in patch.targets.items():
        prediction = result.predictions[name]
        arrays[f"gt_{name}"] = target[0].cpu().numpy()
        arrays[f"weight_{name}"] = patch.weights[name][0].cpu().numpy()
        arrays[f"pred_{name}"] = prediction.detach()[0].cpu().numpy()
        if (prediction.is_leaf or prediction.retains_grad) and prediction.grad is not None:
            arrays[f"grad_{name}"] = prediction.grad[0].cpu().numpy()
    if "lsds_u8" in result.predictions:
        arrays["lsds_u8"] = result.predictions["lsds_u8"][0].cpu().numpy()
    return arrays


def pictures(patch: Patch, result: StepResult) -> dict[str, np.ndarray]:
    """Pictures by name, (y, x, 3) uint8: raw, and for each output its target, prediction and weight.

    LSDs show the offset to the centre of mass (channels 0 to 2) as colours, affinities the three nearest neighbours.
    """
    drawn = {"raw": _grey((patch.raw[0, 0] + 1) / 2)}
    for name, target in patch.targets.items():
        weight = patch.weights[name][0].amax(0)
        drawn[f"{name}/target"] = _colours(target[0])
        drawn[f"{name}/prediction"] = _colours(result.predictions[name].detach()[0])
        drawn[f"{name}/weight"] = _grey(weight / weight.max().clamp(min=1e-6))
    return drawn


def _colours(channels: Tensor) -> np.ndarray:
    """(c, z, y, x) in [0, 1], c >= 3 -> the first three channels of the middle section."""
    return _bytes(channels[:3, channels.shape[1] // 2].permute(1, 2, 0))


def _grey(volume: Tensor) -> np.ndarray:
    """(z, y, x) in [0, 1] -> the middle section."""
    return _bytes(volume[volume.shape[0] // 2][..., None].expand(-1, -1, 3))


def _bytes(picture: Tensor) -> np.ndarray:
    values: np.ndarray = picture.float().clamp(0, 1).mul(255).round().byte().cpu().numpy()
    return values
