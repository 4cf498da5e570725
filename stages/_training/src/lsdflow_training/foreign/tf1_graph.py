"""Check that the graph beside a TensorFlow 1 checkpoint (`<prefix>.meta`) is that of our U-Net; weights cannot show it.

Checked are activations (ReLU, sigmoid at the outputs), valid convolutions, and pooling windows that match the
upsampling factors.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lsdflow_contract.checkpoint import UNetSpec
from lsdflow_contract.errors import BadData
from lsdflow_contract.geometry import Vox3

_OTHER_ACTIVATIONS = {"Elu", "Selu", "LeakyRelu", "Relu6", "Tanh", "Softplus", "Softsign"}
_OTHER_POOLING = {"AvgPool3D", "AvgPool", "MaxPool"}
_CONVOLUTIONS = {"Conv3D", "Conv3DBackpropInputV2"}


@dataclass(frozen=True)
class GraphNode:
    """An operation: its name, kind, padding ("" if it has none), and the window z,y,x of a pooling."""

    name: str
    op: str
    padding: str
    window: Vox3 | None


def require_our_graph(nodes: Iterable[GraphNode], unet: UNetSpec, where: object) -> None:
    """Raise BadData if the graph has operations that our U-Net lacks. Losses and optimizers are ignored."""
    nodes = list(nodes)
    other = [node for node in nodes if node.op in _OTHER_ACTIVATIONS | _OTHER_POOLING]
    padded = [node for node in nodes if node.op in _CONVOLUTIONS and node.padding not in ("", "VALID")]
    if other or padded:
        raise BadData(
            "the graph beside the checkpoint is not that of our U-Net: it would give other values here",
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
