"""The state of a neuroglancer viewer that shows all volumes of an experiment in their right places.

neuroglancer reads zarr arrays over HTTP. A bare array has axes d0, d1, ... and no unit, so every source carries a
transform that names the axes, gives them their voxel size in metres, and moves the array to its offset. It speaks of
the array's axes by the names that the viewer gives them; under other names it would be ignored, in silence::

    position along an axis (in voxels of this array) = index + offset_nm / voxel_size_nm

Offsets need not be whole voxels, voxel sizes need not be integers and may differ from layer to layer. Axes of the
arrays are z, y, x; the viewer counts x, y, z. An array may have one axis before them: channels that a shader mixes, or
steps (the thresholds of a segmentation) that a slider of the viewer goes through.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from lsdflow_contract.failed_blocks import FailedBlock

METRE_PER_NM = 1e-9
FAILED_LAYER = "failed blocks"
SMALL_VOX = 320  # shorter volumes are enlarged until they fill a panel
Nm3 = tuple[float, float, float]
Kind = Literal["image", "lsds", "affinities", "labels"]

GREY_SHADER = "#uicontrol invlerp normalized\nvoid main() { emitGrayscale(normalized()); }\n"
RGB_SHADER = (
    "void main() { emitRGB(vec3(toNormalized(getDataValue(0)), toNormalized(getDataValue(1)),"
    " toNormalized(getDataValue(2)))); }\n"
)


@dataclass(frozen=True)
class Steps:
    """A leading axis that a slider goes through: its name, what each step is called, which one is shown first."""

    axis: str
    names: tuple[str, ...]
    first: int


@dataclass(frozen=True)
class ViewerLayer:
    """One array to show: `path` below the prefix (container and dataset), its place in nm, its shape (z,y,x)."""

    name: str
    kind: Kind
    path: str
    voxel_size_nm: Nm3
    offset_nm: Nm3
    shape_vox: tuple[int, int, int]
    visible: bool = True
    array_axes: tuple[str, ...] = ()  # as the array names its axes; none = d0, d1, ...
    steps: Steps | None = None
    places_itself: bool = False  # an OME-NGFF image: its own metadata give its levels and its offset


def neuroglancer_state(
    layers: tuple[ViewerLayer, ...],
    url_prefix: str,
    position_nm: Nm3 | None = None,
    failed: tuple[FailedBlock, ...] = (),
) -> dict[str, Any]:
    """The viewer state (plain values, ready for JSON); it opens at `position_nm` or in the middle of the first layer.

    `failed`: become boxes in a layer of their own. `url_prefix` is where the experiment folder is served, for example http://127.0.0.1:9000.
    Raises ValueError for no layers, an empty prefix, or a voxel size that is not positive.
    """
    if not layers:
        raise ValueError("neuroglancer: found no layers to show")
    if not url_prefix:
        raise ValueError("neuroglancer: found no address prefix, wanted for example http://127.0.0.1:9000")
    first = layers[0]
    space = {name: _length(first.voxel_size_nm[axis]) for name, axis in (("x", 2), ("y", 1), ("z", 0))}
    middle = [_middle_vox(first, axis) for axis in range(3)]
    place = [p / v for p, v in zip(position_nm, first.voxel_size_nm, strict=True)] if position_nm else middle
    steps = {layer.steps.axis: layer.steps for layer in layers if layer.steps}
    return {
        "dimensions": {
            **space,
            **{axis: {"coordinates": list(range(len(s.names))), "labels": list(s.names)} for axis, s in steps.items()},
        },
        "position": [*place[::-1], *(s.first + 0.5 for s in steps.values())],
        "crossSectionScale": min(1.0, max(first.shape_vox) / SMALL_VOX),
        "projectionScale": 2 * max(first.shape_vox),
        "layers": [*(_layer(layer, url_prefix) for layer in layers), *_boxes(failed, first.voxel_size_nm, space)],
        "selectedLayer": {"layer": layers[-1].name, "visible": False},
        "showSlices": False,
        "layout": "4panel",
    }


def _boxes(failed: tuple[FailedBlock, ...], voxel_size_nm: Nm3, space: dict[str, Any]) -> list[dict[str, Any]]:
    """The layer of failed blocks; none without any."""
    if not failed:
        return []
    annotations = []
    for number, block in enumerate(failed):
        begin = [nm / size for nm, size in zip(block.begin_nm, voxel_size_nm, strict=True)]
        end = [b + n for b, n in zip(begin, block.shape_vox, strict=True)]
        corners = {"pointA": begin[::-1], "pointB": end[::-1]}
        box = {"type": "axis_aligned_bounding_box", "id": str(number), "description": str(block)}
        annotations.append({**box, **corners})
    source = {"url": "local://annotations", "transform": {"outputDimensions": space}}
    return [{"name": FAILED_LAYER, "type": "annotation", "source": source, "annotations": annotations}]


def _length(nm: float) -> list[Any]:
    if not nm > 0:
        raise ValueError(f"neuroglancer: found voxel size {nm} nm, wanted a length > 0")
    # Twelve digits: 8.1 nm stays 8.1e-09 and does not become 8.100000000000001e-09.
    return [float(f"{nm * METRE_PER_NM:.12g}"), "m"]


def _middle_vox(layer: ViewerLayer, axis: int) -> float:
    return layer.offset_nm[axis] / layer.voxel_size_nm[axis] + layer.shape_vox[axis] / 2


def _layer(layer: ViewerLayer, url_prefix: str) -> dict[str, Any]:
    described: dict[str, Any] = {
        "name": layer.name,
        "type": "segmentation" if layer.kind == "labels" else "image",
        "source": {"url": _address(layer.path, url_prefix), "transform": _transform(layer)},
        "tab": "segments" if layer.kind == "labels" else "rendering",
        "visible": layer.visible,
    }
    if layer.kind == "labels":
        described["selectedAlpha"] = 0.35
    else:
        described["shader"] = GREY_SHADER if layer.kind == "image" else RGB_SHADER
    return described


def _address(path: str, url_prefix: str) -> str:
    prefix = url_prefix.rstrip("/")
    return f"{prefix if prefix.startswith('zarr://') else 'zarr://' + prefix}/{path.strip('/')}"


def _transform(layer: ViewerLayer) -> dict[str, Any]:
    """Array axes to space: one matrix row per axis, the last column is the shift in voxels of this array."""
    space = {name: _length(size) for name, size in zip("zyx", layer.voxel_size_nm, strict=True)}
    # "c^": an axis of channels that the shader reads, not an axis of space.
    leading = [layer.steps.axis] if layer.steps else [] if layer.kind in {"image", "labels"} else ["c^"]
    output = {**{axis: [1, ""] for axis in leading}, **space}
    shift = _shift_vox(layer, len(leading))
    rank = len(output)
    named = (*layer.array_axes[: len(leading)], "z", "y", "x") if layer.places_itself else layer.array_axes
    names = named or tuple(f"d{i}" for i in range(rank))
    return {
        "inputDimensions": dict(zip(names, output.values(), strict=True)),
        "outputDimensions": output,
        "matrix": [[float(i == j) for j in range(rank)] + [shift[i]] for i in range(rank)],
    }


def _shift_vox(layer: ViewerLayer, leading: int) -> list[float]:
    """An OME image brings its offset, which the viewer takes for that of the middle of voxel 0: half a voxel less."""
    if layer.places_itself:
        return [0.5] * (leading + 3)
    return [0.0] * leading + [o / v for o, v in zip(layer.offset_nm, layer.voxel_size_nm, strict=True)]
