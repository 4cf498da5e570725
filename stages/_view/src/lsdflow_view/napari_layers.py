"""The layers of an experiment as napari takes them: the name of the viewer's method and its arguments.

napari places the centre of an array's first voxel, in whatever unit the scale has: nm here. The contract places its
corner, so half a voxel is added. Arrays stay on disk: a layer reads what it shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.geometry import Box, Nm3
from lsdflow_contract.viewer_state import ViewerLayer
from lsdflow_view.gallery import Gallery

RGB = ("red", "green", "blue")
Corner = Sequence[int]


@dataclass(frozen=True)
class OnDisk:
    """What napari needs of an array: shape, dtype, and parts of it by slices and whole numbers."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    read: Callable[[Corner, Corner], NDArray[Any]]

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def __getitem__(self, key: Any) -> NDArray[Any]:
        """Slices (also with steps) and numbers; what is not named is taken whole."""
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
        """All of it, for those who insist."""
        return np.array(self[...], dtype=dtype, copy=True if copy is None else copy)


@dataclass(frozen=True)
class NapariLayer:
    """`getattr(viewer, method)(data, **arguments)`."""

    method: str
    data: OnDisk
    arguments: dict[str, Any]


def napari_layers(gallery: Gallery) -> tuple[NapariLayer, ...]:
    """All layers, first those at the bottom; three channels of LSDs and affinities are three images that add up."""
    return tuple(made for layer in gallery.layers() for made in _layers(gallery, layer))


def centre_nm(layer: ViewerLayer) -> Nm3:
    """Where napari places a layer: the centre of its first voxel."""
    z, y, x = (o + v / 2 for o, v in zip(layer.offset_nm, layer.voxel_size_nm, strict=True))
    return z, y, x


def _layers(gallery: Gallery, layer: ViewerLayer) -> Iterator[NapariLayer]:
    place = _place(layer)
    if layer.steps:
        yield NapariLayer(
            "add_labels", _every_threshold(gallery, layer), {"name": layer.name, "opacity": 0.35, **place}
        )
    elif layer.kind == "labels":
        yield NapariLayer("add_labels", _volume(gallery, layer, None), {"name": layer.name, "opacity": 0.35, **place})
    elif layer.kind == "image":
        yield NapariLayer("add_image", _volume(gallery, layer, None), {"name": layer.name, "colormap": "gray", **place})
    else:
        for channel, colour in enumerate(RGB):
            looks = {"name": f"{layer.name} {channel}", "colormap": colour, "blending": "additive"}
            light = {"contrast_limits": (0, 255), **place}
            yield NapariLayer("add_image", _volume(gallery, layer, channel), {**looks, **light})


def _place(layer: ViewerLayer) -> dict[str, Any]:
    """Scale, offset, units and names of the axes; steps count as pixels."""
    stepped = layer.steps is not None
    return {
        "scale": (*([1.0] * stepped), *layer.voxel_size_nm),
        "translate": (*([0.0] * stepped), *centre_nm(layer)),
        "units": (*(["pixel"] * stepped), "nm", "nm", "nm"),
        "axis_labels": (*([layer.steps.axis] if layer.steps else []), "z", "y", "x"),
        "visible": layer.visible,
    }


def first_steps(gallery: Gallery) -> tuple[int, ...]:
    """The step that is shown first, of the axis before z, y, x; none where no layer has steps."""
    return tuple(layer.steps.first for layer in gallery.layers() if layer.steps and layer.visible)[:1]


def _volume(gallery: Gallery, layer: ViewerLayer, channel: int | None) -> OnDisk:
    volume = gallery.volumes[layer.name]

    def read(begin: Corner, end: Corner) -> NDArray[Any]:
        values = volume.read(_box(begin, end))
        return values if channel is None else cast(NDArray[Any], values[channel])

    return OnDisk(layer.shape_vox, volume.dtype, read)


def _every_threshold(gallery: Gallery, layer: ViewerLayer) -> OnDisk:
    volume = gallery.relabelled[layer.path.rpartition("/")[2]]

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
