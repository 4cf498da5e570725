"""The state of a neuroglancer viewer that shows all volumes of an experiment at their positions.

neuroglancer reads zarr and precomputed data over HTTP. Precomputed data place themselves. A bare zarr array has axes
d0, d1, ... and no unit, so its source has a transform that names the axes, sets their voxel size in metres, and moves
the array to its offset. The transform must use the viewer's names for the array's axes; otherwise the viewer silently
ignores it::

    position along an axis (in voxels of this array) = index + offset_nm / voxel_size_nm

Offsets need not be whole voxels; voxel sizes need not be integers and may differ between layers. The axes of arrays
are z, y, x; those of the viewer x, y, z. An array may have one axis before them: channels that a shader combines, or
steps (the thresholds of a segmentation) that a slider selects.
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
    """A leading axis with a slider: its name, the name of each step, and the step that is shown first."""

    axis: str
    names: tuple[str, ...]
    first: int


@dataclass(frozen=True)
class ViewerLayer:
    """One array to show: `path` below the prefix (container and dataset), its offset in nm, its shape (z,y,x).

    segments: those that the 3-D panel shows by their meshes or skeletons, which are a part of a precomputed layer.
    """

    name: str
    kind: Kind
    path: str
    voxel_size_nm: Nm3
    offset_nm: Nm3
    shape_vox: tuple[int, int, int]
    visible: bool = True
    array_axes: tuple[str, ...] = ()  # as the array names its axes; none = d0, d1, ...
    steps: Steps | None = None
    places_itself: bool = False  # an OME-NGFF image, whose own metadata contain its levels and its offset
    form: Literal["zarr", "precomputed"] = "zarr"
    segments: tuple[int, ...] = ()


def neuroglancer_state(
    layers: tuple[ViewerLayer, ...],
    url_prefix: str,
    position_nm: Nm3 | None = None,
    failed: tuple[FailedBlock, ...] = (),
) -> dict[str, Any]:
    """The viewer state (plain values, ready for JSON); it opens at `position_nm` or in the middle of the first layer.

    `failed`: blocks that are shown as boxes in a separate layer. `url_prefix`: the address of the served experiment
    folder, for example http://127.0.0.1:9000.
    Raises ValueError for no layers, an empty prefix, or a voxel size that is not positive.
    """
    if not layers:
        raise ValueError("neuroglancer: found no layers to show")
    if not url_prefix:
        raise ValueError("neuroglancer: found no address prefix, wanted for example http://127.0.0.1:9000")
    first = layers[0]
    in_3d = next((layer for layer in layers if layer.segments), first)
    extent_nm = max(n * size for n, size in zip(in_3d.shape_vox, in_3d.voxel_size_nm, strict=True))
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
        "projectionScale": 2 * extent_nm / min(first.voxel_size_nm),
        "layers": [*(_layer(layer, url_prefix) for layer in layers), *_boxes(failed, first.voxel_size_nm, space)],
        "selectedLayer": {"layer": layers[-1].name, "visible": False},
        "showSlices": False,
        "layout": "4panel",
    }


def _boxes(failed: tuple[FailedBlock, ...], voxel_size_nm: Nm3, space: dict[str, Any]) -> list[dict[str, Any]]:
    """The layer of failed blocks; empty if there are none."""
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
    # With twelve digits, 8.1 nm becomes 8.1e-09 and not 8.100000000000001e-09.
    return [float(f"{nm * METRE_PER_NM:.12g}"), "m"]


def _middle_vox(layer: ViewerLayer, axis: int) -> float:
    return layer.offset_nm[axis] / layer.voxel_size_nm[axis] + layer.shape_vox[axis] / 2


def _layer(layer: ViewerLayer, url_prefix: str) -> dict[str, Any]:
    address = f"{layer.form}://{url_prefix.removeprefix('zarr://').rstrip('/')}/{layer.path.strip('/')}"
    described: dict[str, Any] = {
        "name": layer.name,
        "type": "segmentation" if layer.kind == "labels" else "image",
        "source": {"url": address, **({"transform": _transform(layer)} if layer.form == "zarr" else {})},
        "tab": "segments" if layer.kind == "labels" else "rendering",
        "visible": layer.visible,
    }
    if layer.kind == "labels":
        described["selectedAlpha"] = 0.35
        if layer.segments:  # for the 3-D panel; sections still show all
            described |= {"segments": [str(n) for n in layer.segments], "notSelectedAlpha": 0.35}
    else:
        described["shader"] = GREY_SHADER if layer.kind == "image" else RGB_SHADER
    return described


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
    """The shift in voxels; half a voxel for an OME image, whose own offset is that of the centre of voxel 0."""
    if layer.places_itself:
        return [0.5] * (leading + 3)
    return [0.0] * leading + [o / v for o, v in zip(layer.offset_nm, layer.voxel_size_nm, strict=True)]
