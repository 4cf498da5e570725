"""A tiny experiment to view: voxels of no whole nm (after expansion), an offset, three thresholds with their tables.

Called with a folder, it writes it there, and prints what must be visible, as JSON: for tests in other environments.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from lsdflow_contract.arrays import AFFS, FRAGMENTS, LABELS, LSDS, RAW, SEGMENTATION, ArraySpec
from lsdflow_contract.experiment import load_experiment
from lsdflow_contract.geometry import Box, Geometry, Vox3
from lsdflow_contract.lut import Lut, lut_name, read_lut, write_lut
from lsdflow_contract.manifest import Manifest, Writer
from lsdflow_contract.testing import affinities_of, membrane_raw, voronoi_labels
from lsdflow_runtime.io.volumes import OutputArray, open_volume

EXPANSION_FACTOR = 16.0
VOXEL_SIZE_NM = (400 / EXPANSION_FACTOR, 149.5 / EXPANSION_FACTOR, 149.5 / EXPANSION_FACTOR)
OFFSET_NM = (3 * VOXEL_SIZE_NM[0], 1234.5, -17.25)
SHAPE_VOX = (24, 70, 80)
SEGMENTED = Box((2, 9, 0), (20, 60, 77))
MERGE_FUNCTION = "hist_quant_75"
THRESHOLDS = (0.1, 0.285, 0.9)
CHOSEN = 0.285
AT_VOX = (6, 34, 55)  # its segment is another one at each threshold
STRIDE = np.uint64(2**40 + 1)  # ids that no float holds
GRID = Geometry(VOXEL_SIZE_NM, OFFSET_NM, SHAPE_VOX)


def make_viewed_experiment(root: Path) -> None:
    """Raw and truth in zarr 2, the rest in zarr 3, labels in shards of several chunks."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "experiment.toml").write_text('[experiment]\nname = "shown"\n')
    truth = voronoi_labels(SHAPE_VOX, 30, seed=3)
    truth[:, :4] = 0
    fragments = truth[SEGMENTED.slices()] * STRIDE
    predicted = root / "predictions" / "mtlsd" / "300" / "predictions.zarr"
    affinities = affinities_of(fragments)
    write_array(root / "data" / "target.zarr", RAW, GRID.box, membrane_raw(truth), (16, 32, 32))
    write_array(root / "data" / "target.zarr", LABELS, GRID.box, truth, (16, 32, 32))
    write_array(predicted, AFFS, SEGMENTED, affinities, (16, 32, 32))
    write_array(predicted, LSDS, SEGMENTED, np.resize(affinities, (10, *SEGMENTED.shape_vox)), (16, 32, 32))
    write_array(root / "fragments.zarr", FRAGMENTS, SEGMENTED, fragments, (128, 128, 128))
    luts = {threshold: lut_at(fragments, threshold) for threshold in THRESHOLDS}
    for threshold, lut in luts.items():
        facts = {"fragments_fingerprint": "of watershed", "merge_function": MERGE_FUNCTION, "threshold": threshold}
        write_lut(root / "luts" / lut_name(MERGE_FUNCTION, threshold), lut, facts)
    write_array(root / "segmentation.zarr", SEGMENTATION, SEGMENTED, looked_up(fragments, luts[CHOSEN]), (16, 32, 32))
    finish(root, "prepare", {"target": "data/target.zarr"}, {})
    arrays = {"affs": AFFS, "lsds": LSDS}
    finish(
        root, "predict", {name: str((predicted / spec.dataset).relative_to(root)) for name, spec in arrays.items()}, {}
    )
    finish(root, "watershed", {"fragments": f"fragments.zarr/{FRAGMENTS.dataset}"}, {})
    chosen = {"merge_function": MERGE_FUNCTION, "threshold": CHOSEN}
    finish(root, "segment", {"segmentation": f"segmentation.zarr/{SEGMENTATION.dataset}"}, chosen)


def lut_at(fragments: np.ndarray, threshold: float) -> Lut:
    """Merges ever more: fragments in groups of 1, 3, 9 neighbours in the order of their ids."""
    ids = np.unique(fragments[fragments > 0])
    group = 3 ** THRESHOLDS.index(threshold)
    return Lut(ids, ids[np.arange(len(ids)) // group * group])


def looked_up(fragments: np.ndarray, lut: Lut) -> np.ndarray:
    """Every voxel by itself, in a dictionary: slow, and obviously right."""
    table = {0: 0, **dict(zip(lut.fragments.tolist(), lut.segments.tolist(), strict=True))}
    return np.array([table[voxel] for voxel in fragments.ravel().tolist()], np.uint64).reshape(fragments.shape)


def write_array(path: Path, spec: ArraySpec, box: Box, values: np.ndarray, write_shape: Vox3) -> None:
    """An array over `box` of the grid."""
    output = OutputArray(path, spec, GRID, box, write_shape, zarr_format=2 if path.name == "target.zarr" else 3)
    output.create({"key": path.name})
    output.open().write(box, values.astype(spec.dtype))


def finish(root: Path, stage: str, outputs: dict[str, str], facts: dict[str, object]) -> None:
    """The manifest of a finished stage."""
    writer, names = Writer(stage=stage, version="0"), {"inputs": {}, "outputs": outputs, "facts": facts}
    manifest = Manifest(writer=writer, key="k", config={}, identity=f"of {stage}", **names)
    manifest.write(load_experiment(root).layout)


def what_is_seen(root: Path) -> dict[str, object]:
    """At the centre of a voxel: raw and segment; where each volume begins, in its own voxels from the world's 0."""
    at = Box(AT_VOX, (1, 1, 1))
    known = ((RAW, "data/target.zarr"), (SEGMENTATION, "segmentation.zarr"))
    volumes = {spec.dataset: open_volume(root / path, spec.dataset, GRID) for spec, path in known}
    fragment = open_volume(root / "fragments.zarr", FRAGMENTS.dataset, GRID).read(at)
    luts = [read_lut(root / "luts" / lut_name(MERGE_FUNCTION, threshold)) for threshold in THRESHOLDS]
    begins = (GRID.offset_nm, GRID.position_nm(SEGMENTED.begin_vox))
    target, segmented = ([p / v for p, v in zip(begin, VOXEL_SIZE_NM, strict=True)] for begin in begins)
    return {
        "at_nm": [p + v / 2 for p, v in zip(GRID.position_nm(AT_VOX), VOXEL_SIZE_NM, strict=True)],
        "raw": int(volumes[RAW.dataset].read(at).item()),
        "segment": int(volumes[SEGMENTATION.dataset].read(at).item()),
        "segments": [int(looked_up(fragment, lut).item()) for lut in luts],
        "voxel_size_nm": VOXEL_SIZE_NM,
        "begins_vox": {
            **dict.fromkeys(("raw", "truth"), target),
            **dict.fromkeys(("lsds", "affinities", "fragments", "segmentation"), segmented),
            f"thresholds {MERGE_FUNCTION}": segmented,
        },
    }


if __name__ == "__main__":
    make_viewed_experiment(Path(sys.argv[1]))
    sys.stdout.write(json.dumps(what_is_seen(Path(sys.argv[1]))))
