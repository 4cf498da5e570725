"""TensorFlow 1 checkpoints (mala, funlib.learn.tensorflow): map their variables to the layers of the U-Net.

    <scope>/unet_layer_<level>_left_<i>/{kernel,bias}       convolutions on the way down
    <scope>/unet_layer_<level>_right_<i>/{kernel,bias}      convolutions on the way up
    <scope>/unet_up_<level+1>_to_<level>/{kernel,bias}      transposed convolution, ReLU
    <scope>/unet_up_..._kernel_variables                    the same with one weight for all voxels of a kernel, no bias
    <scope>/<output>_0/{kernel,bias}                        1x1x1 convolution, sigmoid

Later versions have the prefix decoder_0_layer_<level>/ on the way up. Kernels are (z, y, x, in, out), those of
transposed convolutions (z, y, x, out, in). Variables of optimizers are ignored.

Also check that the graph beside a checkpoint (`<prefix>.meta`) is that of this U-Net; weights cannot show it.

Checked are activations (ReLU, sigmoid at the outputs), valid convolutions, and pooling windows that match the
upsampling factors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lsdflow_contract.checkpoint import UNetSpec
from lsdflow_contract.errors import BadData, UsageError
from lsdflow_contract.geometry import Vox3
from lsdflow_importers.unet import Convolution, UNetLayers

_OTHER_ACTIVATIONS = {"Elu", "Selu", "LeakyRelu", "Relu6", "Tanh", "Softplus", "Softsign"}
_OTHER_POOLING = {"AvgPool3D", "AvgPool", "MaxPool"}
_CONVOLUTIONS = {"Conv3D", "Conv3DBackpropInputV2"}
_OPTIMIZER = re.compile(r"(^|/)(Adam(_\d+)?|Momentum|RMSProp(_\d+)?|beta[12]_power(_\d+)?|global_step)$")
_COUNTER = "gunpowder/iteration"
_PASS = re.compile(r"^unet_layer_(\d+)_(left|right)_(\d+)$")
_UP = re.compile(r"^unet_up_(\d+)_to_(\d+)$")
_CONSTANT = re.compile(r"^unet_up_(\d+)_to_(\d+)_kernel_variables$")
_HEAD = re.compile(r"^(.+)_0$")
_DECODER = re.compile(r"decoder_(\d+)_layer_\d+/")


@dataclass(frozen=True)
class GraphNode:
    """An operation: its name, kind, padding ("" if it has none), and the window z,y,x of a pooling."""

    name: str
    op: str
    padding: str
    window: Vox3 | None


def require_same_graph(nodes: Iterable[GraphNode], unet: UNetSpec, where: object) -> None:
    """Raise BadData if the graph has operations that this U-Net lacks. Losses and optimizers are ignored."""
    nodes = list(nodes)
    other = [node for node in nodes if node.op in _OTHER_ACTIVATIONS | _OTHER_POOLING]
    padded = [node for node in nodes if node.op in _CONVOLUTIONS and node.padding not in ("", "VALID")]
    if other or padded:
        raise BadData(
            "the graph beside the checkpoint is not that of lsdflow's U-Net, so its outputs would differ",
            where=where,
            wanted="ReLU, sigmoid at the outputs, max pooling, valid convolutions",
            found="; ".join(f"{node.name}: {node.op} {node.padding}".rstrip() for node in [*other, *padded][:3]),
        )
    pooling = sorted(node.window for node in nodes if node.op == "MaxPool3D" and node.window is not None)
    if pooling and pooling != sorted(unet.downsample_factors):
        raise BadData(
            "the graph pools by other factors than it upsamples",
            where=where,
            wanted=[list(f) for f in sorted(unet.downsample_factors)],
            found=[list(f) for f in pooling],
            fix="if they came from --downsample-factors, correct them",
        )


Variables = Mapping[str, NDArray[Any]]


def network_variables(shapes: Mapping[str, tuple[int, ...]], where: object) -> list[str]:
    """Names of the variables that belong to the network. Raises BadData unless there is exactly one network."""
    names = [name for name in shapes if not _OPTIMIZER.search(name) and not name.endswith(_COUNTER)]
    scopes = {_scope(name) for name in names if _PASS.match(_layer(name))}
    decoders = {number for name in names for number in _DECODER.findall(name)}
    if len(scopes) != 1 or decoders - {"0"}:
        raise BadData(
            "the checkpoint does not hold one U-Net",
            where=where,
            wanted="variables <scope>/unet_layer_<level>_left_<i>/kernel of one scope, one decoder",
            found=f"scopes {sorted(scopes)}" if len(scopes) != 1 else f"decoders {sorted(decoders)}",
        )
    return names


def unet_of(variables: Variables, factors: tuple[Vox3, ...] | None, where: object) -> UNetLayers:
    """The layers of the network. Raises BadData for variables of unknown layers.

    factors: pooling factors, needed for upsampling kernels that are stored as one weight (else UsageError).
    """
    found = UNetLayers(upsampling="reduce")
    constant: dict[int, str] = {}
    unknown = []
    for name in sorted(variables):
        layer = _layer(name)
        if match := _CONSTANT.match(layer):
            constant[int(match[2])] = name
        elif not name.endswith(("/kernel", "/bias")) or not _placed(found, layer, name, variables, where):
            unknown.append(name)
    if unknown:
        raise BadData(
            "variables of no known layer",
            where=where,
            wanted="the U-Net of mala or funlib.learn.tensorflow, and outputs of one 1x1x1 convolution",
            found=", ".join(unknown[:5]) + (f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""),
        )
    for level, name in constant.items():
        found.up[level] = _constant(found, level, variables[name], factors, name)
    return found


def _placed(found: UNetLayers, layer: str, name: str, variables: Variables, where: object) -> bool:
    """Store the layer of a kernel in `found`; True also for the bias of a known layer, False for unknown layers."""
    is_pass, is_up, is_head = _PASS.match(layer), _UP.match(layer), _HEAD.match(layer)
    if not (is_pass or is_up or is_head) or name.rpartition("/")[0] + "/kernel" not in variables:
        return False
    if name.endswith("/bias"):
        return True
    conv = _convolution(name, variables, where)
    if is_pass:
        part = found.down if is_pass[2] == "left" else found.merge
        part.setdefault(int(is_pass[1]), {})[int(is_pass[3])] = conv
    elif is_up:
        found.up[int(is_up[2])] = conv
    elif is_head:
        found.heads[is_head[1]] = conv
    return True


def _convolution(name: str, variables: Variables, where: object) -> Convolution:
    kernel, bias = variables[name], variables.get(name.removesuffix("kernel") + "bias")
    if bias is None or kernel.ndim != 5 or bias.ndim != 1:
        raise BadData(
            "the variable is not that of a 3-D convolution with a bias",
            where=where,
            wanted="a kernel (z, y, x, in, out) and its bias",
            found=f"{name} {kernel.shape}, {'no bias' if bias is None else f'bias {bias.shape}'}",
        )
    return Convolution(name, torch.from_numpy(np.moveaxis(kernel, (4, 3), (0, 1)).copy()), torch.from_numpy(bias))


def _constant(
    found: UNetLayers, level: int, values: NDArray[Any], factors: tuple[Vox3, ...] | None, name: str
) -> Convolution:
    """Expand a kernel that has the same weight at all its voxels."""
    if factors is None or level >= len(factors):
        raise UsageError(
            "the pooling factors are not in the checkpoint: its upsampling has one weight for all voxels of a kernel",
            where=name,
            wanted='factors z,y,x, from the finest level down: --downsample-factors "2,2,2; 3,3,3"',
            found="none" if factors is None else f"{len(factors)} factors",
        )
    try:
        fine, coarse = (found.down[n][0].weight.shape[0] for n in (level, level + 1))
        weight = torch.from_numpy(values.reshape(fine, coarse).T.copy())
    except (KeyError, ValueError) as error:
        raise BadData("the upsampling does not fit the other layers", where=name, found=values.shape) from error
    return Convolution(name, weight[:, :, None, None, None].expand(coarse, fine, *factors[level]), torch.zeros(fine))


def _layer(name: str) -> str:
    """Second last component of a variable's name; the last one if that is neither kernel nor bias."""
    parts = name.split("/")
    return parts[-2] if len(parts) > 1 and parts[-1] in ("kernel", "bias") else parts[-1]


def _scope(name: str) -> str:
    layer = name.removesuffix("/kernel").removesuffix("/bias").rpartition("/")[0]
    return _DECODER.sub("", layer + "/").rstrip("/")
