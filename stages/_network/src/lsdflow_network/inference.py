"""Inference with a bundle on one patch: from raw to outputs in numpy, on a device and at a precision.

    predictor = load_predictor(folder, device="cpu", lsd_folder=None)
    outputs = predictor.predict(raw_u8)      # {"affs": (3, z, y, x) float32, ...}

`predictor.output_shape_vox(input_shape)`, `.tile_step_vox`, `.context_vox` define how to tile a volume: if inputs begin
at multiples of `tile_step_vox`, the values do not depend on the tiling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lsdflow_contract.checkpoint import Bundle
from lsdflow_contract.errors import BadData, ContractMismatch
from lsdflow_contract.geometry import Vox3
from lsdflow_network import shapes
from lsdflow_network.bundle import load_bundle
from lsdflow_network.chain import chain_shapes, chain_tile_step_vox
from lsdflow_network.composition import AcrLsd
from lsdflow_network.inference_unet import InferenceUNet
from lsdflow_network.precision import Precision, inference_precision
from lsdflow_network.quantise import dequantise_u8, quantise_u8
from lsdflow_network.unet import UNet

# The same scale as in raw_to_network, in float32.
_U8_STEP = float(np.float32(1.0 / 255))


def raw_to_network(raw: NDArray[Any]) -> NDArray[np.float32]:
    """Raw of any supported dtype -> float32 in [-1, 1] for the networks; same shape.

    uint8 and uint16 are scaled by their dtype's maximum; floats must be in [0, 1].  BadData for other values.
    """
    if np.issubdtype(raw.dtype, np.floating):
        _check_range(raw, 0, "divide by the largest grey value, or pass uint8 or uint16")
    if raw.dtype in (np.uint8, np.uint16):
        unit = raw.astype(np.float32) * np.float32(1.0 / np.iinfo(raw.dtype).max)
    elif np.issubdtype(raw.dtype, np.floating):
        unit = raw.astype(np.float32)
    else:
        raise BadData(
            "raw data of a type the networks cannot read", wanted="uint8, uint16 or float", found=str(raw.dtype)
        )
    return unit * np.float32(2.0) - np.float32(1.0)


def _check_range(values: NDArray[Any], lowest: int, fix: str) -> None:
    """Raise BadData unless all values are between `lowest` and 1."""
    low, high = float(values.min(initial=1)), float(values.max(initial=lowest))
    if not (lowest <= low and high <= 1):
        raise BadData("raw out of range", wanted=f"{lowest} to 1", found=f"{low:g} to {high:g}", fix=fix)


@dataclass(frozen=True)
class Predictor:
    """A network (or the LSD network followed by the affinity network) that runs on one patch."""

    bundle: Bundle
    network: nn.Module
    device: torch.device
    precision: Precision

    @property
    def tile_step_vox(self) -> Vox3:
        """Grid (z,y,x) for the begins of inputs on which tiles agree."""
        if isinstance(self.network, AcrLsd):
            return chain_tile_step_vox(self.network.lsd_spec, self.network.affinity_spec)
        return shapes.tile_step_vox(self.bundle.unet)

    def output_shape_vox(self, input_shape_vox: Vox3) -> Vox3:
        """Output shape z,y,x for an input shape; ConfigError names the nearest valid shapes."""
        if isinstance(self.network, AcrLsd):
            return chain_shapes(self.network.lsd_spec, self.network.affinity_spec, input_shape_vox).output_vox
        return shapes.output_shape_vox(self.bundle.unet, input_shape_vox)

    def predict(self, raw: NDArray[Any]) -> dict[str, NDArray[np.float32] | NDArray[np.uint8]]:
        """Raw (z,y,x) or (c,z,y,x) -> {"affs"|"lsds": (channels,z',y',x') float32 in [0,1]}.

        raw: uint8 or uint16, or float in [-1,1] (raw_to_network); with more channels, only float. BadData for others.
        An AcrLSD predictor also returns "lsds_u8": the uint8 LSDs of its first network (larger than the affinities).
        """
        if np.issubdtype(raw.dtype, np.floating):
            _check_range(raw, -1, "raw_to_network(raw) scales grey values")
        elif raw.ndim == 4 and raw.shape[0] > 1:
            fix = "np.concatenate([raw_to_network(raw)[None], dequantise_u8(lsds)])"
            raise BadData("raw and LSDs are scaled differently", wanted="float", found=str(raw.dtype), fix=fix)
        else:
            raw = raw_to_network(raw)
        patch = torch.from_numpy(np.ascontiguousarray(raw, dtype=np.float32)).to(self.device)
        patch = patch[None] if patch.ndim == 4 else patch[None, None]
        outputs: Mapping[str, torch.Tensor] = self.network(patch)
        return {name: value[0].contiguous().cpu().numpy() for name, value in outputs.items()}

    def grey_levels(self, raw: Tensor, lsds: Tensor | None, names: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Raw u8 (z,y,x), LSDs u8 (10,z,y,x) or none -> outputs `names` as u8 (sum of channels,z',y',x'), all finite?

        The result is that of `raw_to_network`, `predict` and `quantise_u8`, but all steps run on the device, and
        nothing waits for it: the second value is a bool there. It is also False if 16 bits overflowed in the network.
        """
        with torch.inference_mode():
            patch = raw.to(self.device, non_blocking=True)[None].float().mul_(_U8_STEP).mul_(2.0).sub_(1.0)
            if lsds is not None:
                patch = torch.cat([patch, dequantise_u8(lsds.to(self.device, non_blocking=True))])
            logits = cast(InferenceUNet, self.network).logits(patch[None], names)
            return quantise_u8(torch.sigmoid(logits)), torch.isfinite(logits.sum())


def load_predictor(
    folder: Path,
    *,
    device: str = "cpu",
    precision: str = "auto",
    lsd_folder: Path | None = None,
) -> Predictor:
    """Bundle folder(s) -> Predictor.  For kind "acrlsd", lsd_folder is the LSD bundle it was trained with.

    With lsd_folder = None an acrlsd bundle gives only the affinity network, whose input is (11,z,y,x): raw and LSDs.
    Raises BadData (damaged), ContractMismatch (another contract, kind or LSD bundle).
    """
    where = torch.device(device)
    chosen = inference_precision(where.type, precision)
    bundle, loaded = load_network(folder)
    network: nn.Module = InferenceUNet(loaded, chosen, where)
    if bundle.kind == "acrlsd" and lsd_folder is not None:
        lsd_bundle, lsd_network = load_network(lsd_folder, expect_kind="lsd")
        check_lsd_bundle(bundle, lsd_bundle, lsd_folder)
        network = AcrLsd(InferenceUNet(lsd_network, chosen, where), lsd_bundle.unet, network, bundle.unet)
    return Predictor(bundle=bundle, network=network.eval(), device=where, precision=chosen)


def load_network(folder: Path, expect_kind: str | None = None) -> tuple[Bundle, UNet]:
    """Bundle folder -> (its description, the network with its weights, on the CPU, in evaluation mode)."""
    bundle, weights = load_bundle(folder, expect_kind)
    with torch.device("meta"):  # no memory and no random values for weights that are replaced
        network = UNet(bundle.unet, bundle.outputs)
    try:
        network.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        raise BadData(
            "the weights do not belong to the network that the bundle describes",
            where=str(folder),
            wanted=f"weights of {bundle.unet}",
            found=str(error).splitlines()[-1].strip(),
        ) from error
    return bundle, network.eval()


def check_lsd_bundle(bundle: Bundle, lsd_bundle: Bundle, where: Path) -> None:
    """Raise ContractMismatch unless the affinity bundle was trained with this LSD bundle."""
    if bundle.lsd_bundle_sha256 != lsd_bundle.weights_sha256:
        raise ContractMismatch(
            "this LSD bundle is not the one the affinity network was trained with",
            where=where,
            wanted=f"weights sha256 {bundle.lsd_bundle_sha256}",
            found=f"weights sha256 {lsd_bundle.weights_sha256}",
            fix="predict with the LSD bundle the affinity bundle names, or train the affinity network again",
        )
