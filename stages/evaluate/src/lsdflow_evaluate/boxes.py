"""Boxes for people to correct: cut where the segmentation is worst, and taken back as volumes to train on.

BOX/box.json     where it was cut, voxel size, checksum of the labels; sealed
BOX/box.zarr     OME-NGFF 0.5: raw as the image, labels/segmentation
BOX/raw.tif      the same for programs that read TIFF, with the voxel size as ImageJ writes it
BOX/labels.tif
BOX/around.zarr  raw of the box and half a box around it: what a network sees when it is trained there

Labels are 1, 2, 3 ... in the order of the ids of their segments, which box.json lists; 0 is no segment. A person may
correct either form of the labels, and may save it under another name in the folder of the box.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
from numpy.typing import NDArray

from lsdflow_contract import CONTRACT_VERSION
from lsdflow_contract.arrays import LABELS, RAW, ArraySpec
from lsdflow_contract.errors import (
    BadData,
    ContractMismatch,
    MissingInput,
    OutputConflict,
    UsageError,
    problems_of,
    together,
)
from lsdflow_contract.files import storage_errors
from lsdflow_contract.geometry import Box, Geometry, Lengths, Vox3
from lsdflow_contract.hashing import hash_of_array
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import read_manifest
from lsdflow_contract.sealing import read_sealed, write_sealed
from lsdflow_evaluate.config import STAGE
from lsdflow_evaluate.inputs import open_segmented
from lsdflow_evaluate.report.to_label import box_around, least_certain
from lsdflow_evaluate.scores.counting import vox3
from lsdflow_runtime.formats.claims import agree
from lsdflow_runtime.formats.detect import open_source
from lsdflow_runtime.formats.ngff import image_metadata, labels_metadata, write_group
from lsdflow_runtime.formats.source import SourceVolume
from lsdflow_runtime.io.target import target_grid
from lsdflow_runtime.io.volumes import OutputArray, Volume, open_volume

RECORD, ZARR, ZARR_LABELS, TIFF_RAW, TIFF_LABELS, AROUND = (
    *("box.json", "box.zarr", "labels/segmentation"),
    *("raw.tif", "labels.tif", "around.zarr"),
)
CHUNK_VOX = (64, 64, 64)
# A box is cut in memory, and its labels are uint16, which ImageJ reads.
MOST_VOXELS, MOST_LABELS = 512**3, 2**16 - 1
CUT_AGAIN = "cut the box again: lsdflow cut"


@dataclass(frozen=True, eq=False)
class Corrected:
    """A box that came back: its name, its place, raw around it, and its ids u64 (z, y, x)."""

    name: str
    geometry: Geometry
    around: Volume
    ids: NDArray[np.uint64]


def cut_boxes(layout: ExperimentLayout, at: str, shape: Vox3, to: Path) -> list[dict[str, Any]]:
    """Cut the boxes that `at` names (worst:1..5, or a position) into folders in `to`; returns where each is.

    shape: of a box, voxels; smaller where the volume is. Raises MissingInput (66) before segment has finished,
    UsageError (2) for a position outside, OutputConflict (73), before anything is written, for a box that is there.
    """
    grid, segment = target_grid(layout), read_manifest(layout, "segment")
    segmentation = open_volume(*segment.output_array(layout, "segmentation"), grid)
    raw = open_volume(layout.target_volume, RAW.dataset)
    if min(shape) < 1 or np.prod(shape) > MOST_VOXELS:
        raise UsageError("a box of this size cannot be cut", where="--size", wanted="1 to 512**3 voxels", found=shape)
    boxes = _boxes_at(layout, at, shape, grid, segmentation.box.intersect(raw.box))
    folders = {to / "box-{}-{}-{}".format(*box.begin_vox): box for box in boxes}
    if there := [folder for folder in folders if folder.exists()]:
        fix = "correct that one, or cut into another folder: --to"
        raise OutputConflict("a box of this place was cut before", where=there[0], fix=fix)
    made = []
    for folder, box in folders.items():
        place = Geometry(grid.voxel_size_nm, grid.position_nm(box.begin_vox), box.shape_vox)
        facts: dict[str, Any] = {"begin_vox": box.begin_vox, "offset_nm": place.offset_nm, "shape_vox": place.shape_vox}
        facts["voxel_size_nm"] = place.voxel_size_nm
        wider = box.grow(vox3([n // 2 for n in box.shape_vox])).intersect(raw.box)
        around = Geometry(grid.voxel_size_nm, grid.position_nm(wider.begin_vox), wider.shape_vox), raw.read(wider)
        _write_box(folder, place, around, segmentation.read(box), facts)
        made.append({"folder": str(folder), **facts})
    return made


def _boxes_at(layout: ExperimentLayout, at: str, shape: Vox3, grid: Geometry, whole: Box) -> list[Box]:
    """The boxes of `worst:FIRST..LAST`, without places that a worse box shows; or the one at a position."""
    if not (ranks := re.fullmatch(r"worst(?::(\d+)(?:\.\.(\d+))?)?", at.strip())):
        voxel = _voxel_at(at, grid)
        if not whole.contains(Box(voxel, (1, 1, 1))):
            raise UsageError("there is no segmentation", where=f"--at {at}", wanted=f"inside {whole}", found=voxel)
        return [box_around(voxel, shape, whole)]
    first, last = int(ranks[1] or 1), int(ranks[2] or ranks[1] or 1)
    if not 1 <= first <= last:
        raise UsageError("no such ranks", where="--at", wanted="worst:1, worst:1..5", found=at)
    found: list[Box] = []
    for voxel in _worst(layout, grid, shape):
        if whole.contains(Box(voxel, (1, 1, 1))) and not any(box.contains(Box(voxel, (1, 1, 1))) for box in found):
            found.append(box_around(voxel, shape, whole))
    if len(found) < first:
        wanted = "a lower rank, or a position: --at Z,Y,X"
        raise UsageError("there are not so many places", where="--at", wanted=wanted, found=f"{len(found)} places")
    return found[first - 1 : last]


def _voxel_at(at: str, grid: Geometry) -> Vox3:
    """The voxel at a position in the world: `z,y,x` in nm or another unit, or "z, y, x vox" of the target."""
    try:
        lengths = Lengths.parse(at if re.search("[a-df-zµ]", at) else f"{at} nm")
    except ValueError as error:
        wanted = 'worst:1..5, z,y,x in nm, or "z, y, x vox"'
        raise UsageError("that is no place", where="--at", wanted=wanted, found=at) from error
    begin = (0.0, 0.0, 0.0) if lengths.unit == "vox" else grid.offset_nm
    axes = zip(lengths.to_nm(grid.voxel_size_nm), begin, grid.voxel_size_nm, strict=True)
    return vox3([int((place - first) // size) for place, first, size in axes])


def _worst(layout: ExperimentLayout, grid: Geometry, shape: Vox3) -> list[Vox3]:
    """Where the worst errors are; without ground truth, where a small change of the threshold changes most."""
    segment = read_manifest(layout, "segment")
    try:
        evaluated = read_manifest(layout, STAGE)
    except MissingInput:
        return least_certain(open_segmented(layout, grid), grid, shape)
    if evaluated.inputs.get("segment") != segment.identity:
        what, fix = "the scores are those of another segmentation", f"lsdflow run {layout.root} --from evaluate"
        raise ContractMismatch(what, where=layout.manifest(STAGE), fix=fix)
    scores = read_sealed(layout.result(STAGE, evaluated.key) / "scores.json", "run: evaluate run")
    if "worst" not in scores:
        return least_certain(open_segmented(layout, grid), grid, shape)
    errors = sorted(scores["worst"], key=lambda error: -error["bits"])
    return [vox3(error["position_vox"]) for error in errors if "position_vox" in error]


def _write_box(
    folder: Path,
    place: Geometry,
    around: tuple[Geometry, NDArray[np.uint8]],
    segments: NDArray[np.uint64],
    facts: dict[str, Any],
) -> None:
    """Write a box into a hidden folder, which gets its name when it is complete."""
    begin = place.voxel_offset_from(around[0], folder)
    raw = around[1][Box(begin, place.shape_vox).slices()]
    ids = np.unique(segments[segments > 0])
    if len(ids) > MOST_LABELS:
        raise UsageError("too many segments for one box", where="--size", wanted="a smaller box", found=len(ids))
    labels = np.where(segments > 0, np.searchsorted(ids, segments) + 1, 0).astype(np.uint16)
    hidden = folder.with_name(f".{folder.name}")
    with storage_errors(folder):
        shutil.rmtree(hidden, ignore_errors=True)
        hidden.mkdir(parents=True)
        levels = [(place.voxel_size_nm, place.offset_nm)]
        for path, kind, values in ((hidden / ZARR, "image", raw), (hidden / ZARR / ZARR_LABELS, "labels", labels)):
            _write_array(path, ArraySpec("0", values.dtype.name, 0, kind), place, values)
            write_group(path, {"ome": image_metadata(path.stem, kind, levels)})
        write_group(hidden / ZARR / "labels", {"ome": labels_metadata(["segmentation"])})
        _write_array(hidden / AROUND, RAW, *around)
        z, y, x = place.voxel_size_nm
        how: dict[str, Any] = {"imagej": True, "resolution": (1 / x, 1 / y)}
        for name, image in ((TIFF_RAW, raw), (TIFF_LABELS, labels)):
            tifffile.imwrite(hidden / name, image, metadata={"axes": "ZYX", "spacing": z, "unit": "nm"}, **how)
        record = {"contract": CONTRACT_VERSION, **facts, "segments": ids.tolist()}
        write_sealed(hidden / RECORD, {**record, "labels_sha256": hash_of_array(labels.astype(np.uint64))})
        hidden.rename(folder)


def take_boxes(layout: ExperimentLayout, given: Sequence[Path], to: Path) -> list[dict[str, Any]]:
    """Check all boxes, then write each as a volume to train on, `to`/NAME.zarr; returns their names and labelled part.

    Raw reaches further than the labels, so that a network sees what is around them (`pad_labels`).
    given: the folder of a box, or its corrected labels. Raises the errors of `read_corrected`, for all boxes at once
    and before anything is written; ContractMismatch (76) for a box with other voxels than the target of the experiment.
    """
    size, taken = target_grid(layout).voxel_size_nm, dict[str, Corrected]()

    def take(path: Path) -> None:
        """Read one box, and require the voxel size of the target and a name of its own."""
        box = read_corrected(path)
        if not agree(box.geometry.voxel_size_nm, size):
            what, found = "the box has other voxels than the target", f"{box.geometry.voxel_size_nm} nm"
            raise ContractMismatch(what, where=path, wanted=f"{size} nm", found=found)
        if box.name in taken:
            raise UsageError("a box is named twice", where=path, found=box.name)
        taken[box.name] = box

    if problems := problems_of([partial(take, path) for path in given]):
        raise together(problems)
    for box in taken.values():
        container = to / f"{box.name}.zarr"
        _write_array(container, RAW, box.around.geometry, box.around.read(box.around.box))
        _write_array(container, LABELS, box.geometry, box.ids)
    facts = [
        {"labelled": float((box.ids > 0).mean()), "neurons": len(np.unique(box.ids[box.ids > 0]))}
        for box in taken.values()
    ]
    return [{"name": name, **found} for name, found in zip(taken, facts, strict=True)]


def read_corrected(path: Path) -> Corrected:
    """Read a box with corrected labels; `path`: its folder, or the labels in it.

    Raises MissingInput (66) if it is not in a folder that `cut` wrote; BadData (65) if no labels were corrected or both
    forms were, for labels that are no integers >= 0 or that are all 0, for another shape, voxel size or offset.
    """
    folder = next((at for at in (path, *path.absolute().parents) if (at / RECORD).is_file()), None)
    if folder is None:
        fix = f"name a folder with {RECORD}, or labels in such a folder"
        raise MissingInput("this is no box that lsdflow cut wrote", where=path, fix=fix)
    facts = read_sealed(folder / RECORD, CUT_AGAIN)
    place = Geometry(*(tuple(facts[key]) for key in ("voxel_size_nm", "offset_nm", "shape_vox")))
    if path.absolute() == folder.absolute():
        ids = _corrected_labels(folder, place, facts["labels_sha256"])
    else:
        ids = _read_labels(path / ZARR_LABELS if path.name == ZARR else path, place)
    return Corrected(folder.absolute().name, place, open_volume(folder / AROUND, RAW.dataset), ids)


def _corrected_labels(folder: Path, place: Geometry, before: str) -> NDArray[np.uint64]:
    """The labels of the two forms that are no longer those that were cut."""
    read = {
        path: _read_labels(path, place)
        for name in (f"{ZARR}/{ZARR_LABELS}", TIFF_LABELS)
        if (path := folder / name).exists()
    }
    changed = {path: ids for path, ids in read.items() if hash_of_array(ids) != before}
    if len(changed) != 1:
        what = "both forms of the labels were changed" if changed else "the labels are those that were cut"
        fix = f"name the labels that are right: {folder / TIFF_LABELS}"
        raise BadData(what, where=folder, found=", ".join(path.name for path in changed or read), fix=fix)
    return next(iter(changed.values()))


def _read_labels(path: Path, place: Geometry) -> NDArray[np.uint64]:
    with open_source(path) as source:
        labels = source.as_numbers()
        _require_place(labels, place)
        values = labels.read(labels.box)
    if values.min() < 0 or not values.any():
        found = "negative numbers" if values.min() < 0 else "only 0"
        raise BadData(
            "nothing is labelled" if found == "only 0" else "labels are negative",
            where=path,
            wanted="a number above 0 for each neuron, 0 = background",
            found=found,
        )
    return values.astype(np.uint64)


def _require_place(labels: SourceVolume, place: Geometry) -> None:
    """Raise BadData for no integers, or for another shape, voxel size or offset than the box; TIFF has no offset."""
    if labels.dtype.kind not in "ui":
        fix = "save them as 8, 16 or 32-bit integers"
        raise BadData("labels must be integers", where=labels.where, wanted="integers", found=labels.dtype, fix=fix)
    wanted: list[tuple[str, object, object, bool]] = [
        ("shape", place.shape_vox, labels.shape_vox, labels.shape_vox == place.shape_vox and labels.channels is None)
    ]
    for claim in labels.claims:
        size, offset = claim.voxel_size_nm, claim.offset_nm
        wanted.append(("voxel size", place.voxel_size_nm, size, size is None or agree(size, place.voxel_size_nm)))
        near = offset is None or agree(offset, place.offset_nm, place.voxel_size_nm)
        wanted.append(("offset", place.offset_nm, offset, near))
    for what, right, found, fits in wanted:
        if not fits:
            fix = "save the labels with the metadata of the labels that were cut"
            raise BadData(
                f"the labels have another {what} than the box", where=labels.where, wanted=right, found=found, fix=fix
            )


def _write_array(container: Path, spec: ArraySpec, place: Geometry, values: NDArray[Any]) -> None:
    output = OutputArray(container, spec, place, place.box, CHUNK_VOX)
    output.create({"key": hash_of_array(values)})
    output.open().write(place.box, values)
    output.write_groups()
