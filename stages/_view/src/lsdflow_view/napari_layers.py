"""`lsdflow-view show --napari`: the layers of an experiment in a napari window, if napari is installed.

napari positions the centre of an array's first voxel, in the unit of the scale (here nm). The contract positions its
corner, so half a voxel is added. Arrays stay on disk; a layer reads only what it shows.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.errors import MissingInput
from lsdflow_contract.geometry import Box, Nm3
from lsdflow_contract.viewer_state import ViewerLayer
from lsdflow_view.layers import ViewerLayers

RGB = ("red", "green", "blue")
Corner = Sequence[int]


@dataclass(frozen=True)
class OnDisk:
    """An array on disk for napari: shape, dtype, and indexing by slices and integers."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    read: Callable[[Corner, Corner], NDArray[Any]]

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def __getitem__(self, key: Any) -> NDArray[Any]:
        """Values for slices (also with steps) and integers; missing axes are read in full."""
        named = key if isinstance(key, tuple) else (key,)
        if Ellipsis in named:
            at = named.index(Ellipsis)
            named = (*named[:at], *[slice(None)] * (self.ndim - len(named) + 1), *named[at + 1 :])
        every = (*named, *[slice(None)] * (self.ndim - len(named)))
        spans = [_span(part, length) for part, length in zip(every, self.shape, strict=True)]
        values = self.read([s.start for s in spans], [max(s.start, s.stop) for s in spans])
        inner = (slice(None, None, p.step) if isinstance(p, slice) else 0 for p in every)
        return values[tuple(inner)]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """The whole array in memory."""
        return np.array(self[...], dtype=dtype, copy=True if copy is None else copy)


@dataclass(frozen=True)
class NapariLayer:
    """`getattr(viewer, method)(data, **arguments)`."""

    method: str
    data: OnDisk
    arguments: dict[str, Any]


def napari_layers(layers: ViewerLayers) -> tuple[NapariLayer, ...]:
    """All layers, the bottom one first; three channels of LSDs and affinities are three additive images."""
    return tuple(made for layer in layers.layers() for made in _layers(layers, layer))


def centre_nm(layer: ViewerLayer) -> Nm3:
    """The translation of a layer in napari: the centre of its first voxel."""
    z, y, x = (o + v / 2 for o, v in zip(layer.offset_nm, layer.voxel_size_nm, strict=True))
    return z, y, x


def _layers(layers: ViewerLayers, layer: ViewerLayer) -> Iterator[NapariLayer]:
    place = _place(layer)
    if layer.steps:
        yield NapariLayer("add_labels", _every_threshold(layers, layer), {"name": layer.name, "opacity": 0.35, **place})
    elif layer.kind == "labels":
        yield NapariLayer("add_labels", _volume(layers, layer, None), {"name": layer.name, "opacity": 0.35, **place})
    elif layer.kind == "image":
        yield NapariLayer("add_image", _volume(layers, layer, None), {"name": layer.name, "colormap": "gray", **place})
    else:
        for channel, colour in enumerate(RGB):
            appearance = {"name": f"{layer.name} {channel}", "colormap": colour, "blending": "additive"}
            light = {"contrast_limits": (0, 255), **place}
            yield NapariLayer("add_image", _volume(layers, layer, channel), {**appearance, **light})


def _place(layer: ViewerLayer) -> dict[str, Any]:
    """Scale, offset, units and names of the axes; the unit of the threshold axis is the pixel."""
    stepped = layer.steps is not None
    return {
        "scale": (*([1.0] * stepped), *layer.voxel_size_nm),
        "translate": (*([0.0] * stepped), *centre_nm(layer)),
        "units": (*(["pixel"] * stepped), "nm", "nm", "nm"),
        "axis_labels": (*([layer.steps.axis] if layer.steps else []), "z", "y", "x"),
        "visible": layer.visible,
    }


def first_steps(layers: ViewerLayers) -> tuple[int, ...]:
    """The initial step of the threshold axis before z, y, x; empty if no layer has one."""
    return tuple(layer.steps.first for layer in layers.layers() if layer.steps and layer.visible)[:1]


def _volume(layers: ViewerLayers, layer: ViewerLayer, channel: int | None) -> OnDisk:
    volume = layers.volumes[layer.name]

    def read(begin: Corner, end: Corner) -> NDArray[Any]:
        values = volume.read(_box(begin, end))
        return values if channel is None else cast(NDArray[Any], values[channel])

    return OnDisk(layer.shape_vox, volume.dtype, read)


def _every_threshold(layers: ViewerLayers, layer: ViewerLayer) -> OnDisk:
    volume = layers.relabelled[layer.path.rpartition("/")[2]]

    def read(begin: Corner, end: Corner) -> NDArray[Any]:
        box = _box(begin[1:], end[1:])
        shape = (0, *box.shape_vox)
        chosen = [volume.read(threshold, box) for threshold in range(begin[0], end[0])]
        return np.stack(chosen) if chosen else np.zeros(shape, np.uint64)

    return OnDisk(volume.shape, np.dtype(np.uint64), read)


def _span(part: Any, length: int) -> slice:
    if isinstance(part, slice):
        return slice(*slice(part.start, part.stop).indices(length))
    index = int(part) + (length if int(part) < 0 else 0)
    if not 0 <= index < length:
        raise IndexError(part)
    return slice(index, index + 1)


def _box(begin: Corner, end: Corner) -> Box:
    (z, y, x), (z1, y1, x1) = (map(int, begin), map(int, end))
    return Box.from_bounds((z, y, x), (z1, y1, x1))


def open_napari(layers: ViewerLayers, position_nm: Nm3 | None) -> None:
    """Show the layers until the window is closed. MissingInput if napari is not installed in this environment."""
    try:
        import napari
    except ImportError as error:
        raise MissingInput(
            "napari is not installed",
            where=sys.prefix,
            found=error,
            fix="without --napari the same is shown in neuroglancer; to have napari, in the clone: "
            f"uv pip install --python {sys.executable} 'napari[all]'   (uv: .venv/tools/bin/uv)",
        ) from error
    viewer = napari.Viewer(title="lsdflow")
    for layer in napari_layers(layers):
        getattr(viewer, layer.method)(layer.data, **layer.arguments)
    viewer.scale_bar.visible = True
    for step in first_steps(layers):
        viewer.dims.set_point(0, step)
    if position_nm is not None:
        viewer.dims.set_point(range(viewer.dims.ndim - 3, viewer.dims.ndim), position_nm)
        viewer.camera.center = position_nm
    napari.run()
