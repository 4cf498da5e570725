"""Pictures of the report: slices of volumes, labels with outlines over the raw image, maps of blocks.

1. Every picture becomes a PNG inside a `data:` address, so that the page needs no other file and no network.
2. Labels get a colour that depends on nothing but their id: the same neuron has the same colour in every picture of
   every report. They are half transparent, so that the raw image is visible beneath; outlines are opaque.
3. The scale bar is a length in nm and its share of the width of the picture. The page draws it in that share, so it
   stays right at whatever size the picture has.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from lsdflow_contract.geometry import Nm3
from lsdflow_evaluate.report.data import BlockState, Picture

LONGEST_SIDE_PX = 1024  # larger slices are reduced
OUTLINED_SIDE_PX = 800  # small slices of labels are enlarged to this, so that outlines are thin
FILL_ALPHA = 118
LARGEST_BAR_SHARE = 0.3
MOST_PALETTE_COLOURS = 256
MICROMETRE_NM = 1000.0
STATE_COLOURS = {
    BlockState.DONE: (47, 158, 110),
    BlockState.RETRIED: (224, 165, 38),
    BlockState.MISSING: (138, 145, 152),
    BlockState.FAILED: (212, 58, 47),
}

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class ScaleBar:
    """A bar of `length_nm`, `width_percent` of the picture wide, with its text."""

    length_nm: float
    width_percent: float
    text: str


@dataclass(frozen=True)
class Figure:
    """What the page needs of one picture: a `data:` address, width / height in nm, the scale bar."""

    kind: str
    index_vox: int
    uri: str
    aspect: float
    bar: ScaleBar


def figure_of(picture: Picture) -> Figure:
    """The figure of one picture. ValueError if its image has another form than its kind, or its pixels no size."""
    _check(picture)
    rows, columns = picture.image.shape[:2]
    row_nm, column_nm = picture.pixel_size_nm
    if picture.kind == "labels":
        pixels = _paint_labels(np.asarray(picture.image, np.uint64))
    else:
        pixels = _reduced(np.asarray(picture.image, np.uint8))
    return Figure(
        kind=picture.kind,
        index_vox=picture.index_vox,
        uri=png_uri(pixels),
        aspect=(columns * column_nm) / (rows * row_nm),
        bar=scale_bar(columns * column_nm),
    )


def example_figure(name: str) -> Figure:
    """The picture <name>.png of this package: one section of the affinities (colour) of a volume of 10 nm voxels."""
    image = np.asarray(Image.open(io.BytesIO((files(__package__) / f"{name}.png").read_bytes())).convert("RGB"))
    return figure_of(Picture("affinities", "colour", "z", 0, image, (10.0, 10.0)))


def _check(picture: Picture) -> None:
    image, channels = picture.image, ((3,), (4,)) if picture.kind == "colour" else ((),)
    if image.ndim < 2 or image.shape[2:] not in channels or min(image.shape) < 1:
        raise ValueError(f"picture of {picture.layer}: found an array {image.shape} for kind {picture.kind!r}")
    if not min(picture.pixel_size_nm) > 0:
        raise ValueError(f"picture of {picture.layer}: found pixel size {picture.pixel_size_nm} nm, wanted lengths > 0")


def colours_of_ids(ids: NDArray[np.uint64]) -> Bytes:
    """RGB u8 (..., 3) of label ids, by a hash of the id alone; id 0 is black. Hues spread over the whole circle."""
    mixed = _mix(ids.astype(np.uint64))
    hue = (mixed & np.uint64(0xFFFF)).astype(np.float64) / 65536.0
    saturation = 0.50 + 0.40 * ((mixed >> np.uint64(16)) & np.uint64(0xFF)).astype(np.float64) / 255.0
    value = 0.72 + 0.28 * ((mixed >> np.uint64(24)) & np.uint64(0xFF)).astype(np.float64) / 255.0
    # Hue to RGB: each channel is a trapezium wave over the circle, shifted by a third.
    shift = np.array([5.0, 3.0, 1.0])
    k = (shift + hue[..., None] * 6.0) % 6.0
    wave = np.clip(np.minimum(k, 4.0 - k), 0.0, 1.0)
    rgb = value[..., None] * (1.0 - saturation[..., None] * wave)
    rgb[ids == 0] = 0.0
    return np.asarray(np.rint(255.0 * rgb), np.uint8)


def _mix(ids: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser: neighbouring ids get unrelated bits."""
    with np.errstate(over="ignore"):
        mixed = ids + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def outlines(labels: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """True at pixels (rows, columns) that differ from a pixel beside, above or below: lines two pixels wide."""
    lines = np.zeros(labels.shape, bool)
    down, across = labels[:-1] != labels[1:], labels[:, :-1] != labels[:, 1:]
    lines[:-1] |= down
    lines[1:] |= down
    lines[:, :-1] |= across
    lines[:, 1:] |= across
    return lines


def _paint_labels(labels: NDArray[np.uint64]) -> Bytes:
    """RGBA: half transparent colour per label, opaque outlines, nothing at all where the label is 0."""
    step = -(-max(labels.shape) // LONGEST_SIDE_PX)
    labels = labels[::step, ::step]
    enlarge = max(1, OUTLINED_SIDE_PX // max(labels.shape))
    ids, place = np.unique(labels, return_inverse=True)
    place = place.reshape(labels.shape).repeat(enlarge, axis=0).repeat(enlarge, axis=1)
    labels = labels.repeat(enlarge, axis=0).repeat(enlarge, axis=1)
    rgb = colours_of_ids(ids)[place]
    alpha = np.where(labels == 0, 0, np.where(outlines(labels), 255, FILL_ALPHA)).astype(np.uint8)
    return np.dstack([rgb, alpha])


def _reduced(image: Bytes) -> Bytes:
    rows, columns = image.shape[:2]
    longest = max(rows, columns)
    if longest <= LONGEST_SIDE_PX:
        return image
    size = (max(1, columns * LONGEST_SIDE_PX // longest), max(1, rows * LONGEST_SIDE_PX // longest))
    return np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BOX))


def png_uri(pixels: Bytes) -> str:
    """A PNG of grey (r,c), RGB (r,c,3) or RGBA (r,c,4) pixels as a `data:` address."""
    buffer = io.BytesIO()
    _image(np.ascontiguousarray(pixels)).save(buffer, "PNG", compress_level=6)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def _image(pixels: Bytes) -> Image.Image:
    """The picture; RGBA of few colours as indices into a palette, which is several times smaller and quicker."""
    if pixels.ndim != 3 or pixels.shape[2] != 4:
        return Image.fromarray(pixels)
    flat = pixels.view(np.uint32).ravel()
    # Only one pixel of each run of equal ones is sorted.
    begins = np.flatnonzero(np.diff(flat, prepend=~flat[:1]))
    colours, place = np.unique(flat[begins], return_inverse=True)
    if len(colours) > MOST_PALETTE_COLOURS:
        return Image.fromarray(pixels)
    indices = place.astype(np.uint8).repeat(np.diff(begins, append=flat.size))
    image = Image.fromarray(indices.reshape(pixels.shape[:2]), "P")
    parts = colours.view(np.uint8).reshape(-1, 4)
    image.putpalette(parts[:, :3].tobytes())
    image.info["transparency"] = parts[:, 3].tobytes()
    return image


def scale_bar(width_nm: float) -> ScaleBar:
    """The longest round length (1, 2 or 5 times a power of ten nm) of at most 30 % of `width_nm`."""
    room = LARGEST_BAR_SHARE * width_nm
    power = 10.0 ** np.floor(np.log10(room))
    length = float(max(f * power for f in (1.0, 2.0, 5.0) if f * power <= room * (1 + 1e-9)))
    text = f"{length / MICROMETRE_NM:g} µm" if length >= MICROMETRE_NM else f"{length:g} nm"
    return ScaleBar(length, 100.0 * length / width_nm, text)


def three_channels(values: NDArray[Any]) -> Bytes:
    """LSDs or affinities (channels, rows, columns) u8 as colour: the first three channels as red, green and blue.

    Of LSDs these are the mean offset, of affinities z, y and x (dark = boundary).
    """
    return np.ascontiguousarray(np.moveaxis(np.asarray(values[:3], np.uint8), 0, -1))


def block_map(states: NDArray[np.uint8], block_nm: Nm3) -> Figure:
    """The states (z, y, x) of blocks seen along z: a pixel for each column, its worst state; `block_nm`: of a block."""
    pixels = np.array([STATE_COLOURS[state] for state in BlockState], np.uint8)[states.max(axis=0)]
    return figure_of(Picture("blocks", "colour", "z", 0, pixels, block_nm[1:]))


def hex_colour(colour: Sequence[float]) -> str:
    """The colour as the page writes it."""
    return "#" + "".join(f"{round(part):02x}" for part in colour)
