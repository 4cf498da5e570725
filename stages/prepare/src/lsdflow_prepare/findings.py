"""All problems of the inputs in one list: errors stop the run, warnings do not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from lsdflow_contract.errors import BadData, StageError
from lsdflow_contract.geometry import Nm3, Vox3
from lsdflow_prepare.statistics import LabelStatistics, RawStatistics

FEW_NEURONS = 5
LOW_COVERAGE = 0.5
SMALL_EDGE_VOX = 250
COMPONENTS_PER_NEURON = 10
BROKEN_SHARE = 0.1
CLIPPED_SHARE = 0.01
HUGE_ID = 2**63
USUAL_NM = (1, 1000)


@dataclass
class Findings:
    """Errors and warnings, in the order in which they were found."""

    errors: list[StageError] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Add an error of lsdflow to the list and continue after the `with` block."""
        try:
            yield
        except StageError as error:
            if error.message() not in {known.message() for known in self.errors}:
                self.errors.append(error)

    def warn(self, where: str, text: str) -> None:
        """Add a warning once."""
        line = f"{where}: {text}"
        if line not in self.warnings:
            self.warnings.append(line)


def shape_warnings(shape_vox: Vox3, role: str) -> list[str]:
    """Warn about a training volume below 250^3 voxels, because it has little context for the network."""
    if role == "training" and min(shape_vox) < SMALL_EDGE_VOX:
        return [f"the volume is {shape_vox} voxels; at least {SMALL_EDGE_VOX}^3 is advised, 512^3 is better"]
    return []


def voxel_size_warnings(size_nm: Nm3) -> list[str]:
    """Warn about voxels that no microscope of this field has: usually another unit, or an expansion left out."""
    low, high = USUAL_NM
    if all(low <= size <= high for size in size_nm):
        return []
    size = ", ".join(f"{length:g}" for length in size_nm)
    return [
        f"voxels of {size} nm (z, y, x) are outside {low:,} to {high:,} nm: are the unit of voxel_size and the "
        "expansion_factor right? The Gaussian of the LSDs, run lengths and exported positions are in nm, and a trained "
        "network only takes the voxel size that it was trained with"
    ]


def raw_warnings(raw: RawStatistics) -> list[str]:
    """Warn about constant raw data, and about raw data outside the given range."""
    found = []
    if raw.is_constant:
        found.append(f"raw is constant: all {raw.voxels} voxels seen are {raw.minimum:g}")
    if raw.voxels and raw.clipped / raw.voxels > CLIPPED_SHARE:
        found.append(f"{raw.clipped / raw.voxels:.1%} of raw is outside raw_range and is cut off")
    return found


def label_warnings(labels: LabelStatistics) -> list[str]:
    """Warn about few neurons, few voxels to train on, and ids that seem to be special values."""
    found = []
    if labels.neurons < FEW_NEURONS:
        found.append(f"only {labels.neurons} neurons are labelled; at least {FEW_NEURONS} are advised")
    if labels.trained_fraction < LOW_COVERAGE:
        found.append(f"the mask leaves {labels.trained_fraction:.1%} of the voxels to train on")
    if labels.largest_id >= HUGE_ID:
        signed = labels.largest_id - 2**64
        found.append(f"id {labels.largest_id} looks like a special value ({signed}): set ignore_ids = [{signed}]?")
    return found


def refuse_unlabelled(labels: LabelStatistics, usable: bool, where: str, role: str) -> None:
    """Raise BadData (65) for labels that neither train nor score. usable: whether a neuron is outside of the mask."""
    if usable:
        return
    name, without = ("labels", "give labels that are not empty")
    if role == "target":
        name, without = "ground truth", "or take prepare.target.truth out: without it nothing is scored"
    if not labels.neurons:
        what, found = f"no neuron in the {name}", f"no id above 0 in all {labels.voxels} voxels"
        fix = f"export it again, and check labels_dataset, ignore_ids and background_ids; {without}"
    else:
        what = f"every labelled voxel of the {name} is ignored or background"
        found = f"{labels.neurons} neurons, {labels.trained_fraction:.1%} of the voxels are not ignored"
        fix = 'give the mask of these labels, or mask = "none" for none; check ignore_regions and ignore_ids'
    raise BadData(what, where=where, wanted="at least one neuron where the mask is not 0", found=found, fix=fix)


def component_warnings(per_label: dict[int, int]) -> list[str]:
    """Warn if most neurons have very many components: a broken export. In a small block some are normal."""
    broken = {label: count for label, count in per_label.items() if count > COMPONENTS_PER_NEURON}
    if not per_label or len(broken) <= max(1, BROKEN_SHARE * len(per_label)):
        return []
    worst = max(broken, key=lambda label: broken[label])
    return [
        f"{len(broken)} of {len(per_label)} neurons are in more than {COMPONENTS_PER_NEURON} disconnected pieces "
        f"(id {worst}: {broken[worst]}); were labels interpolated or down-sampled?"
    ]
