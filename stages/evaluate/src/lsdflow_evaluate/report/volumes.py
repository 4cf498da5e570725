"""Planes of volumes as pictures: of the experiment's volumes, and of the newest snapshot of each training.

A snapshot is train/<stage>/snapshots/batch_<iteration>.hdf. The names of its datasets are those that the training
writes (lsdflow_training/snapshots.py; a test compares them). All are inside the patch of raw, each at its `offset`
(nm). A training writes while the report reads, and old files may be damaged: a snapshot that cannot be read is left
out, with a sentence.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.errors import BadData, MissingInput, StageError
from lsdflow_contract.geometry import Box, Geometry, Nm3, Vox3
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import Manifest
from lsdflow_contract.viewer_volumes import Placed, ViewerVolume, viewer_volumes
from lsdflow_evaluate.report.data import AXES, Axis, LayerKind, Picture, TrainingSnapshot
from lsdflow_evaluate.report.figures import three_channels
from lsdflow_evaluate.report.to_label import box_around, middle_of
from lsdflow_evaluate.report.words import CROSS, NOTHING
from lsdflow_evaluate.scores.counting import vox3
from lsdflow_runtime.formats.hdf5 import datasets_in, open_hdf5
from lsdflow_runtime.io.volumes import Volume

MAP = "lsd_error"
RAW, LABELS, MASK = "volumes/raw", "volumes/labels/neuron_ids", "volumes/labels/mask"
FROZEN_LSDS = "volumes/labels/pretrained_lsd"
# Of damaged snapshots so many of the newest are named; older ones are not opened.
MOST_OPENED = 5
RAW_LOW, RAW_HIGH = -1.0, 1.0
# Truth is looked for in boxes of so many voxels' edges, at so many places of each axis.
LOOKED_AT_VOX, LOOKED_AT = 32, 8


@dataclass(frozen=True)
class PlaneBox:
    """A box one voxel thick along `axis`, on the grid of the target."""

    axis: Axis
    index_vox: int
    box: Box


def report_volumes(
    layout: ExperimentLayout, truth_dataset: str, result: Manifest | None = None
) -> tuple[ViewerVolume, ...]:
    """All volumes that exist, in the order in which they are made.

    result: the manifest of the scores in the report, which need not be the current one; its map of LSD errors is in
    the report.
    """
    existing = viewer_volumes(layout, truth_dataset)
    if result is None:
        return existing
    found = {volume.name: volume for volume in existing if volume.name != MAP}
    if MAP in result.outputs:
        truth = found.pop("truth", None)
        found[MAP] = ViewerVolume(MAP, *result.output_array(layout, MAP))
        found |= {"truth": truth} if truth else {}
    return tuple(volume for volume in found.values() if volume.exists)


def pictured_box(volumes: dict[str, Volume]) -> Box:
    """The box in whose middle the pictures are: that of the last volume of the chain. MissingInput if there is none."""
    for name in ("segmentation", "fragments", "affinities", "raw"):
        if name in volumes:
            return volumes[name].box
    raise MissingInput("there is no volume to show", fix="run prepare first")


def central_planes(box: Box, edge_vox: int, at: Vox3 | None = None) -> tuple[PlaneBox, ...]:
    """The planes across z, y and x through a voxel of `box`, or its middle, at most `edge_vox` voxels wide and high."""
    through = at or middle_of(box)
    planes = []
    for number, axis in enumerate(AXES):
        shape = vox3([1 if other == number else edge_vox for other in range(3)])
        planes.append(PlaneBox(axis, through[number], box_around(through, shape, box)))
    return tuple(planes)


def labelled_voxel(truth: Volume, box: Box) -> Vox3:
    """A voxel of `box` whose three planes show truth: its middle if there is truth around it, else one with a label.

    Small boxes on a lattice are looked at, the nearest to the middle first. BadData for a damaged chunk.
    """
    inside, middle = box.intersect(truth.box), middle_of(box)
    if inside.is_empty:
        return middle
    steps = [np.unique(np.linspace(0, n - 1, 2 * LOOKED_AT + 1).astype(int)[1::2]) for n in inside.shape_vox]
    lattice = np.stack(np.meshgrid(*steps, indexing="ij"), -1).reshape(-1, 3) + np.array(inside.begin_vox)
    nearest_first = lattice[np.argsort(((lattice - np.array(middle)) ** 2).sum(axis=1), kind="stable")]
    for at in [middle, *map(vox3, nearest_first.tolist())]:
        around = box_around(at, (LOOKED_AT_VOX,) * 3, box).intersect(inside)
        labelled = np.argwhere(truth.read(around) > 0) + np.array(around.begin_vox) if not around.is_empty else ()
        if len(labelled):
            away = labelled - np.array(at)
            if (away == 0).any(axis=0).all():
                return at
            return vox3(labelled[(away**2).sum(axis=1).argmin()].tolist())
    return middle


def pictures(volume: Volume, name: str, planes: Sequence[PlaneBox], grid: Geometry) -> tuple[Picture, ...]:
    """The three planes of one volume; 0 outside its own box."""
    return tuple(picture_of(name, volume.read(p.box, outside="zero"), p, grid.voxel_size_nm) for p in planes)


def picture_of(layer: str, values: NDArray[Any], plane: PlaneBox, voxel_size_nm: Nm3) -> Picture:
    """The picture of one layer: `values` ([c,] z, y, x) of the plane's box; LSDs and affinities become colours."""
    number = AXES.index(plane.axis)
    image = np.take(values, 0, axis=values.ndim - 3 + number)
    kind: LayerKind = "grey"
    if layer in ("lsds", "affinities"):
        image, kind = three_channels(image), "colour"
    elif layer not in ("raw", "lsd_error"):
        image, kind = image.astype(np.uint64), "labels"
    row, column = (voxel_size_nm[other] for other in range(3) if other != number)
    return Picture(layer, kind, plane.axis, plane.index_vox, np.ascontiguousarray(image), (row, column))


def places_in(root: Path, existing: tuple[ViewerVolume, ...], volumes: dict[str, Volume]) -> dict[str, Placed]:
    """For neuroglancer: by name, the path inside the experiment folder and the place of those that were opened."""
    return {
        layer.name: Placed(
            str(layer.folder.relative_to(root)), volumes[layer.name].geometry, volumes[layer.name].array_axes
        )
        for layer in existing
        if layer.name in volumes
    }


@dataclass(frozen=True)
class Output:
    """Datasets of one output of a network: (c, z, y, x), target and prediction in [0, 1]; weight 0: not trained."""

    title: str
    layer: str
    target: str
    prediction: str
    weight: str


OUTPUTS = (
    Output("LSDs", "lsds", "volumes/gt_embedding", "volumes/pred_embedding", "volumes/lsds_weight"),
    Output("LSDs", "lsds", "volumes/gt_lsds", "volumes/pred_lsds", "volumes/lsds_weight"),
    Output("Affinities", "affinities", "volumes/gt_affinities", "volumes/pred_affinities", "volumes/affs_weight"),
    Output(
        "Affinities",
        "affinities",
        "volumes/labels/gt_affinities",
        "volumes/labels/pred_affinities",
        "volumes/affs_weight",
    ),
)


@dataclass(frozen=True, eq=False)
class _Dataset:
    """One dataset: values ([c,] z, y, x), and its box on the voxels of whatever its offset counts from."""

    values: NDArray[Any]
    box: Box
    voxel_size_nm: Nm3


def training_snapshot(folder: Path, stage: str, edge_vox: int) -> TrainingSnapshot | None:
    """The newest snapshot in `folder` that can be read, cut to `edge_vox` voxels; None if there is no file at all."""
    left_out: list[str] = []
    try:
        paths = _newest_first(folder)
    except OSError as error:
        return TrainingSnapshot(stage, None, left_out=(f"The snapshots cannot be listed: {error.strerror}.",))
    for iteration, path in paths[:MOST_OPENED]:
        try:
            return _read_snapshot(path, stage, iteration, edge_vox, tuple(left_out))
        except StageError as error:
            why = f"{error.what} ({error.found})" if error.found else error.what
            left_out.append(f"{path.name} is left out: {why}.")
    return TrainingSnapshot(stage, None, left_out=tuple(left_out)) if left_out else None


def _newest_first(folder: Path) -> list[tuple[int, Path]]:
    """(iteration, file); a file that is being written has another name."""
    found = []
    for path in folder.iterdir() if folder.is_dir() else ():
        if named := re.fullmatch(r"batch_([0-9]+)\.hdf", path.name):
            found.append((int(named[1]), path))
    return sorted(found, reverse=True)


def _read_snapshot(
    path: Path, stage: str, iteration: int, edge_vox: int, left_out: tuple[str, ...]
) -> TrainingSnapshot:
    datasets = {name: _read_dataset(path, name) for name in datasets_in(path)}
    outputs = [output for output in OUTPUTS if output.prediction in datasets]
    _check(path, datasets, outputs)
    plane = central_planes(datasets[outputs[0].prediction].box, edge_vox)[0]
    return TrainingSnapshot(
        stage,
        iteration,
        pictures=tuple(_pictures(path, datasets, outputs, plane)),
        datasets=tuple(_facts(name, datasets, outputs) for name in datasets),
        left_out=left_out,
    )


def _read_dataset(path: Path, name: str) -> _Dataset:
    with open_hdf5(path, name) as volume:
        if volume.dtype.kind not in "biuf":
            raise BadData("a dataset holds no numbers", where=volume.where, found=f"{name} of {volume.dtype}")
        place = volume.geometry()
        begin = [round(o / v) for o, v in zip(place.offset_nm, place.voxel_size_nm, strict=True)]
        return _Dataset(volume.read(volume.box), Box(cast(Vox3, tuple(begin)), place.shape_vox), place.voxel_size_nm)


def _check(path: Path, datasets: Mapping[str, _Dataset], outputs: list[Output]) -> None:
    """Raises BadData if there is no raw, no prediction, or if what is compared does not fit."""
    if RAW not in datasets or not outputs:
        raise BadData("raw or every prediction is missing", where=path, found=", ".join(datasets) or "no dataset")
    for output in outputs:
        shapes = [
            datasets[n].values.shape if n in datasets else None
            for n in (output.prediction, output.target, output.weight)
        ]
        shape = shapes[0]
        if shape is None or len(shape) != 4 or shape[0] < 3 or shapes.count(shape) != 3:
            raise BadData(
                "prediction, target and weight do not fit each other",
                where=path,
                wanted="one shape (channels, z, y, x), 3 channels or more",
                found=", ".join(str(s) for s in shapes),
            )


def _pictures(
    path: Path, datasets: Mapping[str, _Dataset], outputs: list[Output], plane: PlaneBox
) -> list[tuple[str, Picture]]:
    """Titles and pictures of the plane: what goes in, then of each output target, prediction, weight."""
    size = datasets[RAW].voxel_size_nm

    def picture(layer: str, name: str, scale: float = 1.0, low: float = 0.0) -> Picture:
        """Grey and colours: 255 * scale * (value - low), cut to 0..255."""
        values = _cut(path, name, datasets[name], plane.box)
        if layer != "labels":
            values = _bytes(255 * scale * (values.astype(np.float64) - low))
        return picture_of(layer, values, plane, size)

    made = [("Raw", picture("raw", RAW, 1 / (RAW_HIGH - RAW_LOW), RAW_LOW))]
    made += [("Labels", picture("labels", LABELS))] if LABELS in datasets else []
    made += [("Mask", picture("raw", MASK))] if MASK in datasets else []
    made += [("LSDs of the first network", picture("lsds", FROZEN_LSDS, 1 / 255))] if FROZEN_LSDS in datasets else []
    for output in outputs:
        made.append((f"{output.title}: target", picture(output.layer, output.target)))
        made.append((f"{output.title}: prediction", picture(output.layer, output.prediction)))
        highest = float(datasets[output.weight].values.max())
        made.append(
            (f"{output.title}: weight", picture(output.layer, output.weight, 1 / highest if highest > 0 else 1.0))
        )
    return made


def _cut(path: Path, name: str, datasets: _Dataset, box: Box) -> NDArray[Any]:
    if not datasets.box.contains(box):
        raise BadData(f"{name} is not where the prediction is", where=path, found=f"{datasets.box}, not {box}")
    begins = [b - own for b, own in zip(box.begin_vox, datasets.box.begin_vox, strict=True)]
    spans: tuple[Any, ...] = tuple(slice(b, b + n) for b, n in zip(begins, box.shape_vox, strict=True))
    return np.asarray(datasets.values[(Ellipsis, *spans)])


def _bytes(values: NDArray[np.float64]) -> NDArray[np.uint8]:
    return np.rint(np.clip(np.nan_to_num(values, nan=0.0), 0, 255)).astype(np.uint8)


def _facts(name: str, datasets: Mapping[str, _Dataset], outputs: list[Output]) -> tuple[str, ...]:
    """Name, shape, type and range of a dataset, and, of a prediction, its error, in words."""
    values = datasets[name].values
    output = next((output for output in outputs if output.prediction == name), None)
    words = NOTHING
    if output is not None:
        error, share = weighted_error(values, datasets[output.target].values, datasets[output.weight].values)
        value = f"{error:.4g}" if math.isfinite(error) else "not a number"
        words = f"{value}, of {100 * share:.3g} % of the values" if share else "no weight > 0: nothing is trained here"
    shape = f" {CROSS} ".join(map(str, values.shape))
    return name, shape, str(values.dtype), f"{values.min():.4g} to {values.max():.4g}", words


def weighted_error(prediction: NDArray[Any], target: NDArray[Any], weight: NDArray[Any]) -> tuple[float, float]:
    """Mean squared error of the values whose weight is > 0 (NaN if there are none), and their share of all values."""
    counted = weight > 0
    if not counted.any():
        return math.nan, 0.0
    difference = prediction[counted].astype(np.float64) - target[counted].astype(np.float64)
    return float((difference**2).mean()), float(counted.mean())
