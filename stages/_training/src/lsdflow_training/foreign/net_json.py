"""Read the JSON files beside a published checkpoint: config.json or test_net.json (prediction), train_net.json.

    {"input_shape": [268, 268, 268], "output_shape": [164, 164, 164], "lsds_iteration": 300000, ...}

The published files do not contain voxel size and sigma; `voxel_size` and `sigma` (nm) are read if a lab has added them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lsdflow_contract.checkpoint import UNetSpec
from lsdflow_contract.errors import BadData, MissingInput
from lsdflow_contract.files import read_json
from lsdflow_contract.geometry import Nm3, Vox3
from lsdflow_network import shapes

_PREDICTION, _TRAINING = ("config.json", "test_net.json"), "train_net.json"


@dataclass(frozen=True)
class NetJson:
    """Facts from the files; None if absent. Shapes in voxels z,y,x."""

    predict_input_vox: Vox3 | None = None
    train_input_vox: Vox3 | None = None
    voxel_size_nm: Nm3 | None = None
    sigma_nm: Nm3 | None = None
    lsd_iteration: int | None = None


def read_net_json(folder: Path, chosen: Path | None, unet: UNetSpec) -> NetJson:
    """Read `chosen`, or the first of config.json and test_net.json in `folder`; and train_net.json in `folder`.

    Raises MissingInput if `chosen` is absent, BadData if a file is invalid or describes another network than `unet`.
    """
    if chosen is not None and not chosen.is_file():
        raise MissingInput("there is no such file", where=chosen, fix="correct --config")
    path = chosen or next((folder / name for name in _PREDICTION if (folder / name).is_file()), None)
    prediction = {} if path is None else _table(path)
    training = _table(folder / _TRAINING) if (folder / _TRAINING).is_file() else {}
    return NetJson(
        predict_input_vox=_input_shape(prediction, unet, path),
        train_input_vox=_input_shape(training, unet, folder / _TRAINING),
        voxel_size_nm=_lengths(prediction, "voxel_size", path),
        sigma_nm=_lengths(prediction, "sigma", path),
        lsd_iteration=_whole(prediction, "lsds_iteration", path),
    )


def _table(path: Path) -> dict[str, Any]:
    content = read_json(path)
    if not isinstance(content, dict):
        raise BadData(
            "not a description of a network", where=path, wanted="a JSON object", found=type(content).__name__
        )
    return content


def _input_shape(table: dict[str, Any], unet: UNetSpec, path: Path | None) -> Vox3 | None:
    """The input shape in the file. Raises BadData if the network does not give the output shape in the file.

    Later versions of the lineage crop more: an output that is smaller by an even number of voxels is also accepted.
    """
    shape, output = (_numbers(table, key, path) for key in ("input_shape", "output_shape"))
    if shape is None:
        return None
    wanted = (int(shape[0]), int(shape[1]), int(shape[2]))
    ours = shapes.output_shape_vox(unet, wanted) if shapes.is_valid_input(unet, wanted) else None
    if ours is None or not _is_part(output, ours):
        raise BadData(
            "the file describes another network than the checkpoint holds",
            where=path,
            wanted=f"input {list(wanted)} -> output {list(ours)}" if ours else "an input shape that the network takes",
            found=f"input {list(wanted)} -> output {None if output is None else [int(n) for n in output]}",
            fix="give the file of this network: --config FILE",
        )
    return wanted


def _is_part(output: list[float] | None, ours: Vox3) -> bool:
    """True if the output is our shape, our shape cropped evenly, or not given."""
    return output is None or all(o >= t and (o - t) % 2 == 0 for o, t in zip(ours, output, strict=True))


def _lengths(table: dict[str, Any], key: str, path: Path | None) -> Nm3 | None:
    """Three lengths in nm; a single number counts for all axes."""
    value = table.get(key)
    found = _numbers({key: [value] * 3} if isinstance(value, int | float) else table, key, path)
    return None if found is None else (found[0], found[1], found[2])


def _numbers(table: dict[str, Any], key: str, path: Path | None) -> list[float] | None:
    value = table.get(key)
    if value is None:
        return None
    right = isinstance(value, list) and len(value) == 3
    if not right or not all(isinstance(v, int | float) and not isinstance(v, bool) and v > 0 for v in value):
        raise BadData(f"{key} must be three numbers, z,y,x", where=path, found=value)
    return [float(v) for v in value]


def _whole(table: dict[str, Any], key: str, path: Path | None) -> int | None:
    value = table.get(key)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise BadData(f"{key} must be a whole number", where=path, found=value)
    return value
