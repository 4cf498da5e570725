"""Helpers for tests and benchmarks of networks: the description of an untrained network."""

from __future__ import annotations

from collections.abc import Mapping

from lsdflow_contract.checkpoint import Bundle, Kind, UNetSpec
from lsdflow_contract.geometry import Vox3
from lsdflow_contract.manifest import Writer
from lsdflow_network.shapes import output_shape_vox


def untrained_bundle(kind: Kind, unet: UNetSpec, outputs: Mapping[str, int], shape_vox: Vox3) -> Bundle:
    """A bundle of iteration 1 with the same input shape for training and prediction, and voxels of 8 nm."""
    output = output_shape_vox(unet, shape_vox)
    return Bundle(
        writer=Writer(stage="train-acrlsd" if kind == "acrlsd" else "train-lsd", version="0"),
        kind=kind,
        iteration=1,
        unet=unet,
        outputs=dict(outputs),
        train_input_shape_vox=shape_vox,
        train_output_shape_vox=output,
        predict_input_shape_vox=shape_vox,
        predict_output_shape_vox=output,
        voxel_size_nm=(8, 8, 8),
    )
