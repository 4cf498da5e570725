"""The networks of a prediction as one TorchScript file, for programs without Python (libtorch): bytes in, bytes out.

    raw u8 (z, y, x) --[-1, 1]--> (LSD network --> u8 --> crop) --> network --> u8 (channels, z', y', x') of each output

The file takes one input shape, that of the tiles of predict: crops are written into it as numbers. What a program must
know (shapes, order of the outputs, voxel size, weights) is in it too, as extra file `lsdflow.json`.
"""

from __future__ import annotations

import io
import json
import warnings
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from lsdflow_contract.errors import InternalError, OutputConflict
from lsdflow_contract.files import write_atomically
from lsdflow_contract.geometry import Vox3
from lsdflow_network import shapes
from lsdflow_network.chain import chain_input_for, chain_shapes
from lsdflow_network.composition import AcrLsd
from lsdflow_network.inference import load_network
from lsdflow_network.quantise import quantise_u8
from lsdflow_predict.checkpoints import Networks, check_weights

DESCRIPTION = "lsdflow.json"


class BytesToBytes(nn.Module):
    """Raw u8 (z, y, x) -> the outputs `names` as u8 (channels, z', y', x'), as predict stores them."""

    def __init__(self, network: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.network = network
        self.names = names

    def forward(self, raw: Tensor) -> tuple[Tensor, ...]:
        """All outputs, in the order of their names."""
        scaled = raw[None, None].float().mul(torch.tensor(1.0 / 255)).mul(2.0).sub(1.0)
        outputs = self.network(scaled)
        return tuple(quantise_u8(outputs[name][0]) for name in self.names)


def export_network(networks: Networks, out: Path) -> dict[str, Any]:
    """Write `networks` to `out`; its description, as in the file. Nothing is predicted.

    Raises OutputConflict (73) if `out` exists, BadData (65) or MissingInput (66) for damaged or missing weights.
    """
    if out.exists():
        raise OutputConflict("a file of this name exists already", where=out, fix="choose another --out")
    check_weights(networks)
    names, input_vox, output_vox = _form(networks)
    module = BytesToBytes(_network(networks), names).eval()
    described = {
        "outputs": {name: networks.affinities.bundle.outputs[name] for name in names},
        "input_shape_vox": list(input_vox),
        "output_shape_vox": list(output_vox),
        "voxel_size_nm": list(networks.affinities.bundle.voxel_size_nm),
        "weights_sha256": networks.weights,
    }
    content = _traced(module, input_vox, json.dumps(described))
    write_atomically(out, lambda file: file.write(content))
    return {"wrote": str(out), **described}


def _form(networks: Networks) -> tuple[tuple[str, ...], Vox3, Vox3]:
    """Names of the outputs, shapes of the raw and of the outputs."""
    bundle = networks.affinities.bundle
    inner = shapes.input_shape_for_output(bundle.unet, bundle.predict_output_shape_vox)
    names = tuple(sorted(bundle.outputs))
    if networks.lsds is None:
        return names, inner, shapes.output_shape_vox(bundle.unet, inner)
    lsd_unet = networks.lsds.bundle.unet
    whole = chain_input_for(lsd_unet, bundle.unet, inner)
    return names, whole, chain_shapes(lsd_unet, bundle.unet, whole).output_vox


def _network(networks: Networks) -> nn.Module:
    bundle, network = load_network(networks.affinities.folder)
    if networks.lsds is None:
        return network
    lsd_bundle, lsd_network = load_network(networks.lsds.folder, expect_kind="lsd")
    return AcrLsd(lsd_network, lsd_bundle.unet, network, bundle.unet)


def _traced(module: nn.Module, input_vox: Vox3, described: str) -> bytes:
    """The content of the file. It is read back, and must give the same bytes as the network for the same noise."""
    noise = torch.randint(0, 256, input_vox, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    content, script = io.BytesIO(), cast(Any, torch.jit)
    with torch.no_grad(), warnings.catch_warnings():
        # torch recommends torch.export, whose files libtorch cannot read, and warns that shapes become constants.
        warnings.simplefilter("ignore")
        script.save(script.trace(module, (noise,)), content, _extra_files={DESCRIPTION: described})
        content.seek(0)
        same = zip(script.load(content)(noise), module(noise), strict=True)
        if not all(torch.equal(read_back, wanted) for read_back, wanted in same):
            raise InternalError("the exported network and the network itself give different bytes")
    return content.getvalue()
