"""Training volumes: their metadata, which are chosen, how often each is drawn, and whether a patch fits in them.

They are results of prepare (zarr format 2), and described from their metadata files alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lsdflow_contract.arrays import LABELS, MASK, RAW, ArraySpec
from lsdflow_contract.errors import BadData, ConfigError, MissingInput, StageError
from lsdflow_contract.experiment import did_you_mean
from lsdflow_contract.files import read_json
from lsdflow_contract.geometry import Box, Geometry, Nm3
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import Manifest
from lsdflow_contract.metadata import read_geometry, understanding_metadata
from lsdflow_contract.sealing import require_sealed_array
from lsdflow_training.config import TrainingConfig
from lsdflow_training.settings import TrainingSettings

_TRAINING = "training/"  # prefix of training volumes in the facts of prepare
MOSTLY_LABELLED = 0.5


@dataclass(frozen=True)
class TrainingVolume:
    """A prepared volume; boxes are in voxels of its raw array."""

    name: str
    path: Path
    voxel_size_nm: Nm3
    raw: Box
    labels: Box
    mask: Box | None


@dataclass(frozen=True)
class Source:
    """A volume, how often it is drawn, and the box held out for validation (never trained)."""

    volume: TrainingVolume
    probability: float
    validation: Box | None


def open_training_volume(path: Path) -> TrainingVolume:
    """Read the metadata of one training volume.

    Raises MissingInput (no volume, no raw or labels) and BadData (not zarr format 2, not 3-D, voxel sizes differ,
    labels outside raw or off its voxel grid).
    """
    if not path.is_dir():
        raise MissingInput("no such training volume", where=path, fix="run prepare first")
    with understanding_metadata(path):
        return _training_volume(path)


def _training_volume(path: Path) -> TrainingVolume:
    raw = _geometry(path, RAW)
    labels = _geometry(path, LABELS)
    has_mask = (path / MASK.dataset / ".zarray").is_file()
    return TrainingVolume(
        name=path.name.removesuffix(".zarr"),
        path=path,
        voxel_size_nm=raw.voxel_size_nm,
        raw=raw.box,
        labels=_box_on(raw, labels, path / LABELS.dataset),
        mask=_box_on(raw, _geometry(path, MASK), path / MASK.dataset) if has_mask else None,
    )


def validation_slab(labels: Box, fraction: float) -> Box | None:
    """The last `fraction` of a volume along z (at least one section); None for fraction 0."""
    if fraction <= 0:
        return None
    depth = max(1, round(labels.shape_vox[0] * fraction))
    z, y, x = labels.begin_vox
    return Box((z + labels.shape_vox[0] - depth, y, x), (depth, *labels.shape_vox[1:]))


def _geometry(path: Path, spec: ArraySpec) -> Geometry:
    folder = path / spec.dataset
    if not (folder / ".zarray").is_file():
        raise MissingInput(
            f"the training volume has no {spec.dataset}", where=path, wanted="a zarr format 2 array", fix="run prepare"
        )
    require_sealed_array(folder)
    shape = read_json(folder / ".zarray").get("shape", [])
    if len(shape) != 3:
        raise BadData("a training array must be 3-D (z,y,x)", where=folder, found=f"shape {shape}")
    attributes = read_json(folder / ".zattrs") if (folder / ".zattrs").is_file() else {}
    return read_geometry(attributes, (int(shape[0]), int(shape[1]), int(shape[2])), folder)


def _box_on(raw: Geometry, other: Geometry, where: Path) -> Box:
    """The box of another array on the voxel grid of raw."""
    box = Box(other.voxel_offset_from(raw, where), other.shape_vox)
    if not raw.box.contains(box):
        raise BadData("the array lies outside the raw data", where=where, wanted=f"within {raw.box}", found=str(box))
    return box


def prepared_probabilities(prepared: Manifest) -> dict[str, float]:
    """Name -> probability of a training volume from prepare (given, or by labelled voxels), in prepare's order."""
    volumes = prepared.facts.get("volumes", {})
    return {k.removeprefix(_TRAINING): v["probability"] for k, v in volumes.items() if k.startswith(_TRAINING)}


def chosen_volumes(layout: ExperimentLayout, config: TrainingConfig, available: Sequence[str]) -> list[TrainingVolume]:
    """The volumes named in the config, or all that prepare made (`available`). Raises as chosen_names, and BadData."""
    return [open_training_volume(layout.training_volume(name)) for name in chosen_names(layout, config, available)]


def chosen_names(layout: ExperimentLayout, config: TrainingConfig, available: Sequence[str]) -> tuple[str, ...]:
    """The names in the config, or all of `available`. Raises MissingInput (66) if there are none, ConfigError (78)."""
    if not available:
        where, fix = layout.manifest("prepare"), "give [[prepare.training]] and run prepare"
        raise MissingInput("no training volumes", where=where, fix=fix)
    for name in config.volumes:
        if name not in available:
            raise ConfigError(f"no training volume {name!r}", where="volumes", fix=did_you_mean(name, available))
    names = config.volumes or tuple(available)
    if config.probabilities and len(config.probabilities) != len(names):
        raise ConfigError(
            "one probability per volume is needed",
            where="probabilities",
            wanted=f"{len(names)} for {', '.join(names)}",
            found=f"{len(config.probabilities)}",
        )
    return tuple(names)


def common_voxel_size(volumes: Sequence[TrainingVolume]) -> Nm3:
    """The voxel size of all volumes. Raises BadData if they differ."""
    first = volumes[0]
    for other in volumes[1:]:
        pairs = zip(first.voxel_size_nm, other.voxel_size_nm, strict=True)
        if not all(math.isclose(a, b, rel_tol=1e-6) for a, b in pairs):
            raise BadData(
                "training volumes have different voxel sizes",
                where=other.path,
                wanted=f"{list(first.voxel_size_nm)} nm, as {first.name}",
                found=f"{list(other.voxel_size_nm)} nm",
                fix="name those of one voxel size in volumes, or resample the others yourself before prepare",
            )
    return first.voxel_size_nm


def labelled_sections(volumes: Sequence[TrainingVolume], prepared: Manifest) -> int:
    """Sections of the thinnest volume; 0 if most of a volume is ignored: its end may hold all of its labels."""
    facts = prepared.facts.get("volumes", {})
    if any(facts.get(f"{_TRAINING}{v.name}", {}).get("trained_fraction", 1.0) < MOSTLY_LABELLED for v in volumes):
        return 0
    return min(volume.labels.shape_vox[0] for volume in volumes)


def make_sources(
    volumes: Sequence[TrainingVolume], config: TrainingConfig, settings: TrainingSettings, prepared: Mapping[str, float]
) -> list[Source]:
    """Volumes with probabilities (from this config, else from prepare, scaled to sum 1) and validation slabs."""
    weights = [prepared[volume.name] for volume in volumes]
    given = config.probabilities or tuple(weight / sum(weights) for weight in weights)
    return [
        Source(volume, probability, validation_slab(volume.labels, settings.validation_fraction))
        for volume, probability in zip(volumes, given, strict=True)
    ]


def source_problems(sources: Sequence[Source], settings: TrainingSettings) -> list[StageError]:
    """Errors of volumes that are too small, or of early stopping without validation data."""
    return [*_size_problems(sources, settings), *_held_out_problems(sources, settings)]


def mask_problems(sources: Sequence[Source], settings: TrainingSettings, prepared: Manifest) -> list[StageError]:
    """Errors of volumes whose masks leave too few voxels for any patch.

    Reads only masks that leave less than `min_masked` of their volume, as measured by prepare.
    """
    from lsdflow_training.data.trained_places import has_place  # numpy: a third of the time in which a command starts

    problems: list[StageError] = []
    for source in sources:
        facts = prepared.facts.get("volumes", {}).get(f"{_TRAINING}{source.volume.name}", {})
        if source.volume.mask is None or facts.get("trained_fraction", 1.0) >= settings.min_masked:
            continue
        wanted = settings.min_masked * math.prod(settings.shapes.output_vox)
        from lsdflow_training.data.volume_arrays import VolumeArrays  # and gunpowder, torch: seconds

        arrays = VolumeArrays(source.volume, settings.targets, outside=source.validation)
        if not has_place(arrays.trained(arrays.boxes["mask"]), settings.shapes.output_vox, wanted):
            problems.append(
                BadData(
                    "the mask leaves too few voxels for any patch of the training",
                    where=source.volume.path,
                    wanted=f"somewhere {settings.min_masked:.0%} of {list(settings.shapes.output_vox)} vox that are "
                    "not ignored",
                    found=f"{facts['trained_fraction']:.1%} of the volume is not ignored",
                    fix="lower min_masked or input_shape_vox, set sparse_labels if few voxels are labelled, or leave "
                    "the volume out of `volumes`",
                )
            )
    return problems


def _held_out_problems(sources: Sequence[Source], settings: TrainingSettings) -> list[StageError]:
    """Early stopping requires a validation loss, and so a held-out part in some volume."""
    if settings.patience is None or any(source.validation for source in sources):
        return []
    return [
        ConfigError(
            "without `validation_fraction` there is no validation loss, so early stopping cannot be used",
            where=f"{settings.stage}.patience_iterations",
            wanted="validation_fraction above 0",
            found=f"patience_iterations = {settings.patience}, validation_fraction = {settings.validation_fraction:g}",
            fix="set validation_fraction = 0.05, or leave patience_iterations out",
        )
    ]


def _size_problems(sources: Sequence[Source], settings: TrainingSettings) -> list[StageError]:
    """Volumes too small for training: the share of a patch's output that fits inside is below min_masked."""
    problems: list[StageError] = []
    for source in sources:
        held_out = source.validation.shape_vox[0] if source.validation else 0
        z, y, x = source.volume.labels.shape_vox
        have = (z - held_out, y, x)
        wanted = [math.ceil(n * max(settings.min_masked, 0.1)) for n in settings.shapes.output_vox]
        inside = [min(h, o) / o for h, o in zip(have, settings.shapes.output_vox, strict=True)]
        if math.prod(inside) < max(settings.min_masked, 0.1):
            problems.append(
                BadData(
                    "the training volume is too small for the network's output",
                    where=source.volume.path,
                    wanted=f"at least about {list(settings.shapes.output_vox)} vox of labels (minimum {wanted})",
                    found=f"{list(have)} vox (without the validation slab)",
                    fix="use a larger volume, a smaller input_shape_vox, or a smaller validation_fraction",
                )
            )
    return problems
