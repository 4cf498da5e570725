"""Opens the inputs of one prepared volume and aligns them on one grid."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.arrays import LABELS, MASK, RAW, MaskState
from lsdflow_contract.errors import BadData, ConfigError, MissingInput
from lsdflow_contract.geometry import Box, Geometry, Nm3
from lsdflow_prepare import placement
from lsdflow_prepare.config import Region, TargetVolume, TrainingVolume
from lsdflow_prepare.findings import Findings
from lsdflow_prepare.greyscale import refuse_type
from lsdflow_prepare.neuron_ids import LabelledBlock, labelled_block, mask_states, refuse_label_type
from lsdflow_prepare.resampling import SAME_VOXELS, Factors, factors_to
from lsdflow_runtime.formats.detect import detect_format, open_source
from lsdflow_runtime.formats.source import SourceVolume
from lsdflow_runtime.formats.tiff import TO_GREY

NO_MASK = "none"
SINGLE_VOLUME_FORMATS = ("tiff", "precomputed")
Resolve = Callable[[str], Path]


@dataclass
class Overlay:
    """Labels or mask, and their position in raw voxels."""

    source: SourceVolume
    placed: Box
    covered: Box


@dataclass
class VolumeInputs:
    """Open inputs of one volume; `region` is the part of raw that is prepared, `geometry` that of the whole raw.

    `resolve`: what finds the paths of the table. `factors`: how many voxels of raw make a prepared one, if the volume
    is resampled.
    """

    name: str
    table: TrainingVolume | TargetVolume
    resolve: Resolve
    raw: SourceVolume
    geometry: Geometry
    region: Box
    labels: Overlay | None = None
    mask: Overlay | None = None
    ignored: tuple[Box, ...] = ()
    factors: Factors = SAME_VOXELS

    @property
    def label(self) -> str:
        """ "target", or "training/" and its name."""
        return f"training/{self.name}" if self.role == "training" else "target"

    @property
    def role(self) -> str:
        """ "training" or "target"."""
        return _role(self.table)

    @property
    def sources(self) -> dict[str, SourceVolume]:
        """All open sources by what they are: raw, labels, mask."""
        overlays = {"labels": self.labels, "mask": self.mask}
        return {"raw": self.raw} | {name: found.source for name, found in overlays.items() if found is not None}

    @cached_property
    def states(self) -> dict[str, dict[str, str]]:
        """The state of each source when it was first asked for (`SourceVolume.state`)."""
        return self.states_now()

    def states_now(self) -> dict[str, dict[str, str]]:
        """The present state of each source; examines all files of the sources."""
        return {name: source.state() for name, source in self.sources.items()}

    @property
    def output_geometry(self) -> Geometry:
        """Geometry of the prepared volume, which begins at the corner of the region, also if it is resampled."""
        begin = self.geometry.position_nm(self.region.begin_vox)
        size_nm = _resampled_size_nm(self.table) or self.geometry.voxel_size_nm
        return Geometry(size_nm, begin, self.factors.output_shape(self.region.shape_vox))

    def source_box(self, box: Box, *, neighbours: bool = False) -> Box:
        """The voxels of raw in which the prepared voxels `box` lie; neighbours: and those interpolated with them."""
        cells = self.factors.cells(box).grow(self.factors.neighbours_vox if neighbours else (0, 0, 0))
        return cells.translate(self.region.begin_vox).intersect(self.region)

    def read_raw(self, box: Box) -> NDArray[np.generic]:
        """Raw of a box (index 0 = first voxel of the whole raw): z,y,x, stored dtype, the chosen channel."""
        values = self.raw.read(box)
        return values if self.raw.channels is None else values[self.table.raw_channel or 0]

    def read_labels(self, box: Box) -> LabelledBlock:
        """Ids and mask states of a box; voxels without labels are 0 and ignored."""
        if self.labels is None:
            raise MissingInput("the volume has no labels", where=self.name)
        states = self._read_states(box)
        part = self.labels.covered.intersect(box)
        source = self.labels.source
        if part == box:
            labels = source.read(placement.moved(box, self.labels.placed.begin_vox))
        else:
            labels = np.zeros(box.shape_vox, source.dtype)
            labels[part.slices(box.begin_vox)] = source.read(placement.moved(part, self.labels.placed.begin_vox))
            states = _only_inside(states, part, box)
        ids = (self.table.ignore_ids, self.table.background_ids)
        return labelled_block(labels, states, *ids, where=f"{source.where} {box}")

    def _read_states(self, box: Box) -> NDArray[np.uint8]:
        states = np.full(box.shape_vox, MaskState.TRAIN, np.uint8)
        if self.mask is not None:
            part = self.mask.covered.intersect(box)
            values = self.mask.source.read(placement.moved(part, self.mask.placed.begin_vox))
            read = mask_states(values, self.table.mask_train_value, f"{self.mask.source.where} {box}")
            states[part.slices(box.begin_vox)] = read
            states = _only_inside(states, part, box)
        for ignored in self.ignored:
            states[ignored.intersect(box).slices(box.begin_vox)] = MaskState.IGNORE
        return states

    def close(self) -> None:
        """Close all sources."""
        for source in self.sources.values():
            source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_inputs(
    name: str, table: TrainingVolume | TargetVolume, resolve: Resolve, findings: Findings
) -> VolumeInputs | None:
    """Open raw, labels and mask of a volume; problems are added to `findings`. None if raw or labels are unusable."""
    found = len(findings.errors)
    with ExitStack() as opened:
        inputs = None
        with findings.collecting():
            raw = opened.enter_context(open_source(resolve(table.raw), table.raw_dataset, RAW.dataset))
            inputs = _place_raw(name, table, resolve, raw, findings)
        for spec in (LABELS, MASK):
            with findings.collecting():
                source = _open_overlay(spec.dataset, table, resolve)
                if source is not None:
                    source = opened.enter_context(source).as_numbers()
                    _check_overlay(spec.dataset, source, table, inputs)
        if inputs is not None:
            with findings.collecting():
                _leave_out_incomplete_cells(inputs, findings)
        if inputs is None or len(findings.errors) > found:
            return None
        opened.pop_all()
        return inputs


def fix_key(name: str, role: str) -> str:
    """The config key of the voxel size, for messages."""
    return f'[[prepare.training]] (name = "{name}") voxel_size' if role == "training" else "[prepare.target] voxel_size"


def _role(table: TrainingVolume | TargetVolume) -> str:
    return "training" if isinstance(table, TrainingVolume) else "target"


def _place_raw(
    name: str, table: TrainingVolume | TargetVolume, resolve: Resolve, raw: SourceVolume, findings: Findings
) -> VolumeInputs:
    role = _role(table)
    refuse_type(raw.dtype, raw.where)
    _refuse_channels(raw, table.raw_channel)
    if raw.palette:
        raise BadData("raw is numbers of colours in a palette", where=raw.where, wanted="grey values", fix=TO_GREY)
    geometry = _geometry(raw, table, fix_key(name, role))
    _warn_override(raw, table, name, findings)
    region = geometry.box
    if raw.roi_nm is not None:
        region = placement.region_box_nm(*raw.roi_nm, _geometry(raw, _unscaled(table, raw), "voxel_size"), raw.where)
    field = "prepare.training.roi" if role == "training" else "prepare.target.roi"
    if table.roi is not None:
        wanted = placement.region_box(table.roi.offset, table.roi.shape, geometry, field)
        if not region.contains(wanted):
            raise ConfigError(f"{field} leaves the region of the JSON file", wanted=str(region), found=str(wanted))
        region = wanted
    ignored = tuple(_region(item, geometry, f"{field[:-4]}.ignore_regions") for item in table.ignore_regions)
    wanted_nm = _resampled_size_nm(table) or geometry.voxel_size_nm
    factors = factors_to(geometry.voxel_size_nm, wanted_nm, f"{field[:-4]}.resample_to", raw.where)
    return VolumeInputs(name, table, resolve, raw, geometry, region, ignored=ignored, factors=factors)


def _resampled_size_nm(table: TrainingVolume | TargetVolume) -> Nm3 | None:
    return None if table.resample_to is None else table.resample_to.to_nm((1.0, 1.0, 1.0))


def _leave_out_incomplete_cells(inputs: VolumeInputs, findings: Findings) -> None:
    """Reduce the region to whole voxels of the prepared volume, with a warning; ConfigError if there is none."""
    whole, region = inputs.factors.whole_cells(inputs.region), inputs.region
    if whole.is_empty:
        raise ConfigError(
            "the region is smaller than one voxel of resample_to",
            where=inputs.raw.where,
            wanted=f"at least {inputs.factors.coarser} voxels",
            found=f"{region.shape_vox} voxels",
            fix="a smaller resample_to, or a larger roi",
        )
    if whole != region:
        text = f"resample_to leaves out {region.size - whole.size} voxels at the far end: of {region.shape_vox}, "
        findings.warn(inputs.name, text + f"{whole.shape_vox} are whole cells of {inputs.factors.coarser} voxels")
        inputs.region = whole


def _region(item: Region, geometry: Geometry, field: str) -> Box:
    return placement.region_box(item.offset, item.shape, geometry, field)


def _unscaled(table: TrainingVolume | TargetVolume, raw: SourceVolume) -> TrainingVolume | TargetVolume:
    """The table without the options that rescale nm, because a JSON ROI uses the nm of the container's metadata."""
    changes: dict[str, Any] = {"expansion_factor": 1.0}
    if any(claim.voxel_size_nm is not None for claim in raw.claims):
        changes["voxel_size"] = None
    return table.model_copy(update=changes)


def _geometry(source: SourceVolume, table: TrainingVolume | TargetVolume, setting: str) -> Geometry:
    typed = None if table.voxel_size is None else table.voxel_size.to_nm((1.0, 1.0, 1.0))
    return source.geometry(voxel_size_nm=typed, expansion_factor=table.expansion_factor, setting=setting)


def _warn_override(raw: SourceVolume, table: TrainingVolume | TargetVolume, name: str, findings: Findings) -> None:
    if table.voxel_size is None:
        return
    typed = table.voxel_size.to_nm((1.0, 1.0, 1.0))
    for claim in raw.claims:
        if claim.voxel_size_nm is not None and claim.voxel_size_nm != typed:
            findings.warn(name, f"voxel_size {typed} nm is used instead of {claim.voxel_size_nm} nm of {claim.source}")


def _refuse_channels(raw: SourceVolume, channel: int | None) -> None:
    count = raw.channels
    if count is None or (channel is not None and channel < count):
        return
    raise BadData(
        "raw has several channels",
        where=raw.where,
        wanted="one channel, chosen by raw_channel",
        found=f"{count} channels" + ("" if channel is None else f", raw_channel = {channel}"),
        fix=f"raw_channel = 0 ... {count - 1}",
    )


def _open_overlay(dataset: str, table: TrainingVolume | TargetVolume, resolve: Resolve) -> SourceVolume | None:
    """Labels or mask of a table; None if there are none."""
    if dataset == LABELS.dataset:
        return _open_labels(table, resolve)
    labels = table.labels if isinstance(table, TrainingVolume) else table.truth
    if table.mask == NO_MASK or (isinstance(table, TargetVolume) and labels is None):
        return None
    if table.mask is not None or table.mask_dataset is not None:
        given = table.mask or labels or table.raw
        return open_source(resolve(given), table.mask_dataset, MASK.dataset)
    try:
        return open_source(resolve(labels or table.raw), MASK.dataset)
    except (MissingInput, ConfigError):
        return None


def _open_labels(table: TrainingVolume | TargetVolume, resolve: Resolve) -> SourceVolume | None:
    if isinstance(table, TargetVolume):
        if table.truth is None and table.truth_dataset is None:
            return None
        given, dataset = table.truth, table.truth_dataset
    else:
        given, dataset = table.labels, table.labels_dataset
    if given is not None:
        return open_source(resolve(given), dataset, LABELS.dataset)
    if detect_format(resolve(table.raw), table.raw_dataset or RAW.dataset) in SINGLE_VOLUME_FORMATS:
        raise ConfigError(
            "labels are not given", where=table.raw, fix="this format holds one volume: set labels = PATH"
        )
    return open_source(resolve(table.raw), dataset or LABELS.dataset)


def _check_overlay(
    dataset: str, source: SourceVolume, table: TrainingVolume | TargetVolume, inputs: VolumeInputs | None
) -> None:
    """Check dtype, channels, and the position on the raw grid."""
    if dataset == LABELS.dataset:
        refuse_label_type(source.dtype, source.where)
    if source.channels is not None:
        raise BadData("labels and mask have no channels", where=source.where, found=f"{source.channels} channels")
    if inputs is None:
        return
    if source.where == inputs.raw.where:
        raise ConfigError("raw and labels are the same array", where=source.where, fix="set labels_dataset")
    geometry = _geometry(source, table, fix_key(inputs.name, inputs.role))
    placed = placement.lay_on(geometry, inputs.geometry, source.where, inputs.raw.where)
    whole = inputs.geometry.box
    covered = placement.require_cover(placed, inputs.region, whole, inputs.raw.where, table.pad_labels)
    overlay = Overlay(source, placed.box, covered)
    if dataset == LABELS.dataset:
        inputs.labels = overlay
    else:
        inputs.mask = overlay


def _only_inside(states: NDArray[np.uint8], part: Box, box: Box) -> NDArray[np.uint8]:
    """States with everything outside `part` ignored."""
    result = np.full_like(states, MaskState.IGNORE)
    inside = part.slices(box.begin_vox)
    result[inside] = states[inside]
    return result
