"""The networks that come with predict: trained on public volumes, they segment volumes like these without any labels.

Each is a folder in `networks/`: a bundle, with its weights in half precision, and network.json, which says what it was
trained on and how, its scores, and the grey values that it has seen.
"""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.checkpoint import BUNDLE_JSON, read_bundle
from lsdflow_contract.errors import BadData, MissingInput, OutputConflict
from lsdflow_contract.files import TEMPORARY_SUFFIX, read_json, storage_errors
from lsdflow_contract.geometry import Vox3

NETWORKS = Path(__file__).with_name("networks")
CARD = "network.json"


def shipped_networks() -> dict[str, dict[str, Any]]:
    """The card of each network by its name, with what its bundle says: kind, voxel size, shapes, hash."""
    return {card.parent.name: _described(card.parent) for card in sorted(NETWORKS.glob(f"*/{CARD}"))}


def network_folder(name: str) -> Path:
    """The folder of a network by its name, or the path of another one.

    Raises MissingInput (66) if there is neither.
    """
    if (NETWORKS / name / CARD).is_file():
        return NETWORKS / name
    if not (Path(name) / BUNDLE_JSON).is_file():
        wanted = f"a folder with {BUNDLE_JSON}, or a network that comes with predict: {', '.join(shipped_networks())}"
        raise MissingInput("no such network", where=name, wanted=wanted)
    return Path(name)


def copy_network(name: str, folder: Path) -> None:
    """Copy a network into a new folder, whole or not at all.

    Raises as `network_folder`; OutputConflict (73) if the folder exists, StorageFailure (74).
    """
    source = network_folder(name)
    if folder.exists():
        raise OutputConflict("the folder of the network exists", where=folder, fix="name a new folder")
    partial = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}{TEMPORARY_SUFFIX}")
    with storage_errors(folder):
        try:
            shutil.copytree(source, partial)
            partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def predict_patch(network: Path, raw: Path, out: Path) -> Vox3:
    """Affinities of a patch of raw, in .npy files: u8 (z, y, x) -> u8 (3 or more, z', y', x'); returns z', y', x'.

    The patch gets the input shape of the network: the middle of a larger one is used, a smaller one is mirrored at its
    faces. Raises MissingInput (66), BadData (65) for another array.
    """
    from lsdflow_network.inference import load_predictor  # torch takes seconds to load

    patch, predictor = _read_patch(raw), load_predictor(network)
    affinities = predictor.predict(_filled(patch, predictor.bundle.predict_input_shape_vox))["affs"]
    with storage_errors(out):
        np.save(out, np.floor(affinities * 255).astype(np.uint8))
    return predictor.bundle.predict_output_shape_vox


def _read_patch(path: Path) -> NDArray[np.uint8]:
    if not path.is_file():
        raise MissingInput("no such file", where=path)
    try:
        patch = np.load(path, allow_pickle=False)
    except (ValueError, OSError) as error:
        raise BadData("not an array", where=path, wanted=".npy", found=error) from error
    if patch.dtype != np.uint8 or patch.ndim != 3 or not patch.size:
        found = f"{patch.dtype} {patch.shape}"
        raise BadData("not a patch of raw", where=path, wanted="uint8 (z, y, x)", found=found)
    return cast("NDArray[np.uint8]", patch)


def _described(folder: Path) -> dict[str, Any]:
    bundle = read_bundle(folder)
    facts = bundle.model_dump(mode="json", include={"kind", "voxel_size_nm", "iteration", "weights_sha256", "unet"})
    shape, size = list(bundle.predict_input_shape_vox), sum(path.stat().st_size for path in folder.iterdir())
    return {**read_json(folder / CARD), **facts, "input_shape_vox": shape, "bytes": size}


def _filled(raw: NDArray[np.uint8], shape_vox: Vox3) -> NDArray[np.uint8]:
    """The middle of raw in this shape; a shorter axis is mirrored."""
    for axis, wanted in enumerate(shape_vox):
        begin = max(0, raw.shape[axis] - wanted) // 2
        raw = raw.take(range(begin, min(begin + wanted, raw.shape[axis])), axis)
        missing = wanted - raw.shape[axis]
        widths = [(0, 0)] * 3
        widths[axis] = (missing // 2, missing - missing // 2)
        raw = np.pad(raw, widths, mode="symmetric")
    return raw
