"""The networks that come with predict, on real volumes beside the checkout that they were not trained on.

    shipped_networks.py [--data ../shared/data]         `make bench-quality`; some seven minutes
    shipped_networks.py --score FOLDER...               a line for each of these networks, for example of an ablation

1. VOI (split + merge, bits) of fib-sem on each volume: raw as it is and with the `raw_range` that `lsdflow init` sets;
   at the calibrated threshold, at the best one of this volume, and at the best one of all other volumes together; the
   best threshold of all volumes together for each merge function.
2. Where the bits go at the calibrated threshold, with FFN in the same run: without borders of 1 to 3 voxels, and with
   each segment, each fragment given its best neuron (the lines of `scores/error_budget.py`); beside them expected run
   lengths (ERL), also as a share of the largest possible one (NERL).
3. Bits of the cells in the middle of each volume, as it is and with black and white exchanged (`lsdflow init`).
4. By how many levels affinities differ from those of the weights before they were rounded to half precision.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from gpu_machine import print_head, print_row
from networks import ffn_segments
from numpy.typing import NDArray

import lsdflow
from lsdflow_contract.checkpoint import read_bundle
from lsdflow_contract.geometry import Box
from lsdflow_evaluate.passes import MERGE_NODES_OF_THINNED_TRUTH
from lsdflow_evaluate.scores.counting import without_border
from lsdflow_evaluate.scores.error_budget import at_best
from lsdflow_evaluate.scores.run_length import run_lengths
from lsdflow_evaluate.skeletons.skeletonise import lattice_step_vox, skeletons_of
from lsdflow_launch.init.middle import separate_cells
from lsdflow_launch.init.networks import grey_choices
from lsdflow_metrics.contingency import contingency
from lsdflow_metrics.scores import score
from lsdflow_predict.shipped import NETWORKS, shipped_networks
from lsdflow_prepare.greyscale import to_u8

REAL = Path(__file__).resolve().parents[2] / "shared" / "data"
MERGE_FUNCTION = "hist_quant_75"
THRESHOLDS = [round(0.3 + 0.02 * i, 2) for i in range(33)]
CONTEXT_VOX, CONTEXT_SECTIONS = 20, 12
BUDGET = (
    *("volume", "threshold", "VOI", "adapted Rand error", "NERL", "ERL, voxels", "without a border of 1", "2", "3"),
    *("segments at their best", "fragments at their best"),
)

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Labelled:
    """Raw u8 (z, y, x), truth of `box` in it, and the network for it."""

    name: str
    network: str
    raw: Bytes
    truth: NDArray[Any] | None = None
    box: Box | None = None


@dataclass(frozen=True)
class Graph:
    """Affinities u8 (3, z, y, x) and fragments of the labelled box of a volume."""

    affinities: Bytes
    fragments: NDArray[np.uint64]

    def edges(self, merge_function: str = MERGE_FUNCTION) -> Any:
        """Its scored edges."""
        return lsdflow.score_edges(self.affinities, self.fragments, merge_function)


def volumes(data: Path) -> list[Labelled]:
    """The volumes; AC4 was trained on as a whole, so it is only looked at."""
    fib = zarr.open_group(data / "fib25" / "trvol-250-2.zarr", mode="r")
    begin = 160 - CONTEXT_VOX
    found = [
        Labelled(
            "FIB-25 trvol-250-2, z >= 160",
            "fib-sem",
            np.asarray(fib["volumes/raw"][begin:]),
            np.asarray(fib["volumes/labels/neuron_ids"][160:]),
            Box((CONTEXT_VOX, 0, 0), (90, 250, 250)),
        )
    ]
    reference = zarr.open_group(data / "lsd_reference" / "fib.zarr", mode="r")
    truth = np.asarray(reference["labels"][:])
    corner = tuple(round(nm / 8) for nm in reference["labels"].attrs["offset"])
    box = Box((corner[0], corner[1], corner[2]), (truth.shape[0], truth.shape[1], truth.shape[2]))
    near = box.grow((CONTEXT_VOX,) * 3).intersect(Box((0, 0, 0), reference["raw"].shape))
    raw, own = np.asarray(reference["raw"][near.slices()]), box.translate(tuple(-n for n in near.begin_vox))
    found.append(Labelled("reference volume of the LSD paper, 8 nm", "fib-sem", raw, truth, own))
    for part in ("test", "train"):
        gala = zarr.open_group(data / "gala_mini" / f"{part}.zarr", mode="r")
        raw, truth = np.asarray(gala["volumes/raw"][:]), np.asarray(gala["volumes/labels/neuron_ids"][:])
        found.append(Labelled(f"gala, {part}", "fib-sem", raw, truth, Box((0, 0, 0), raw.shape)))
    more = zarr.open_group(data / "fib25" / "tstvol-520-raw.zarr", mode="r")
    found.append(Labelled("FIB-25 tstvol-520", "fib-sem", np.asarray(more["volumes/raw"][:, 180:340, 180:340])))
    ac4 = zarr.open_group(data / "snemi3d" / "ac4-train.zarr", mode="r")
    found.append(Labelled("AC4 (trained)", "serial-sections", np.asarray(ac4["volumes/raw"][20:60, 100:360, 100:360])))
    return found


def held_out_sections(data: Path) -> Labelled:
    """AC4, z >= 60, for networks that were trained on z < 60."""
    ac4, begin = zarr.open_group(data / "snemi3d" / "ac4-train.zarr", mode="r"), 60 - CONTEXT_SECTIONS
    truth = np.asarray(ac4["volumes/labels/neuron_ids"][60:])
    box = Box((CONTEXT_SECTIONS, 0, 0), (truth.shape[0], truth.shape[1], truth.shape[2]))
    return Labelled("AC4, z >= 60", "serial-sections", np.asarray(ac4["volumes/raw"][begin:]), truth, box)


def as_init_reads(raw: Bytes, network: str) -> Bytes | None:
    """Raw with the `raw_range` that init sets for this network; None if it sets none."""
    percentiles = {str(share): float(np.percentile(raw, share)) for share in (1, 50, 99)}
    choices = grey_choices(shipped_networks()[network], {"dtype": "uint8", "grey_percentiles": percentiles})
    return to_u8(raw, tuple(choices[0].value), "benchmark").values if choices else None


def affinities_of(raw: Bytes, network: Path) -> Bytes:
    """Affinities u8 (3, z, y, x), on the CPU."""
    return lsdflow.predict_affinities(raw, network, device="cpu")


def graph_of(volume: Labelled, raw: Bytes, network: Path) -> Graph:
    """What the stages make of raw, in the labelled box."""
    affinities = affinities_of(raw, network)
    inside = np.ascontiguousarray(affinities[(slice(None), *volume.box.slices())]) if volume.box else affinities
    return Graph(inside, lsdflow.extract_fragments(inside))


def curve(volume: Labelled, graph: Graph, merge_function: str = MERGE_FUNCTION) -> dict[float, tuple[float, float]]:
    """VOI split and merge of each threshold."""
    found, edges = {}, graph.edges(merge_function)
    for threshold in THRESHOLDS:
        scores = lsdflow.compare(lsdflow.segment(graph.fragments, edges, threshold), volume.truth)
        found[threshold] = (scores.voi_split, scores.voi_merge)
    return found


def best(curves: list[dict[float, tuple[float, float]]]) -> float:
    """The threshold with the lowest mean VOI."""
    return min(THRESHOLDS, key=lambda t: sum(sum(curve[t]) for curve in curves))


def shown(found: dict[float, tuple[float, float]], threshold: float) -> str:
    split, merge = found[threshold]
    return f"{split + merge:.3f} ({split:.3f} + {merge:.3f}) @ {threshold:.2f}"


def print_scores(labelled: list[Labelled], data: Path) -> None:
    """Tables 1 and 2."""
    read = {volume.name: as_init_reads(volume.raw, volume.network) for volume in labelled}
    network = NETWORKS / "fib-sem"
    graphs = {volume.name: graph_of(volume, volume.raw, network) for volume in labelled}
    plain = {volume.name: curve(volume, graphs[volume.name]) for volume in labelled}
    graphs |= {v.name: graph_of(v, raw, network) for v in labelled if (raw := read[v.name]) is not None}
    used = {v.name: plain[v.name] if read[v.name] is None else curve(v, graphs[v.name]) for v in labelled}
    calibration = read_bundle(network).calibration
    if calibration is None:
        raise SystemExit(f"{network}: no calibration")
    calibrated = calibration.thresholds[MERGE_FUNCTION]
    head = ("volume", "raw as it is, calibrated", "as init reads it, calibrated", "best", "best of the others")
    print_head("fib-sem, VOI (split + merge) @ threshold", head)
    for volume in labelled:
        mine, others = used[volume.name], [found for name, found in used.items() if name != volume.name]
        changed = "the same" if read[volume.name] is None else shown(mine, calibrated)
        row = (volume.name, shown(plain[volume.name], calibrated), changed, shown(mine, best([mine])))
        print_row((*row, shown(mine, best(others))))
    print_head("all volumes together", ("merge function", "calibrated", "best threshold", "mean VOI there"))
    for merge_function, threshold in calibration.thresholds.items():
        curves = [curve(volume, graphs[volume.name], merge_function) for volume in labelled]
        print_row((merge_function, threshold, best(curves), f"{mean_voi(curves, best(curves)):.3f}"))

    print_head("where the bits go", BUDGET)
    print_row(("FFN", "", *budget(ffn_segments(data / "fib25" / "trvol-250-2.zarr"), labelled[0].truth), ""))
    others = best([used[volume.name] for volume in labelled[1:]])
    for volume, threshold in ((labelled[0], others), *((volume, calibrated) for volume in labelled)):
        graph = graphs[volume.name]
        segments = lsdflow.segment(graph.fragments, graph.edges(), threshold)
        oracle = score(at_best(contingency(graph.fragments, volume.truth)), "label").voi
        print_row((volume.name, f"{threshold:.2f}", *budget(segments, volume.truth), f"{oracle:.3f}"))


def mean_voi(curves: list[dict[float, tuple[float, float]]], threshold: float) -> float:
    """Of volumes, at one threshold."""
    return sum(sum(curve[threshold]) for curve in curves) / len(curves)


def print_line_of(network: Path, fib_sem: list[Labelled], sections: Labelled) -> None:
    """The best VOI of each volume, the mean at the best common threshold, the first volume at that of the others."""
    labelled = [sections] if read_bundle(network).unet.kernels_down else fib_sem
    curves = []
    for volume in labelled:
        read = as_init_reads(volume.raw, volume.network)
        curves.append(curve(volume, graph_of(volume, volume.raw if read is None else read, network)))
    cells = [shown(found, best([found])) for found in curves]
    if len(curves) > 1:
        common = best(curves)
        cells += [f"{mean_voi(curves, common):.3f} @ {common:.2f}", shown(curves[0], best(curves[1:]))]
    print_row((network.name, *cells))


def budget(segments: NDArray[Any], truth: NDArray[Any]) -> list[str]:
    """Cells: VOI, adapted Rand error, run lengths, VOI without borders of 1, 2, 3 voxels, and each segment at its best.

    Run lengths along skeletons of the truth, as `thin_truth` of evaluate makes them; all these voxels are cubes.
    """
    whole = lsdflow.compare(segments, truth)
    step = lattice_step_vox((1.0, 1.0, 1.0))
    coarse = truth[tuple(slice(None, None, n) for n in step)].astype(np.uint64)
    skeletons = skeletons_of(coarse, (float(step[0]), float(step[1]), float(step[2])), (0.0, 0.0, 0.0))
    nodes = np.rint(skeletons.positions_nm).astype(int)
    runs = run_lengths(skeletons, segments[tuple(nodes.T)].astype(np.uint64), MERGE_NODES_OF_THINNED_TRUTH)
    inner = [lsdflow.compare(segments, without_border(truth.astype(np.uint64), width)).voi for width in (1, 2, 3)]
    oracle = score(at_best(contingency(segments, truth)), "label").voi
    lengths = [f"{runs.normalized_erl:.3f}", f"{runs.expected_run_length_nm:.0f} of {runs.max_erl_nm:.0f}"]
    return [f"{whole.voi:.3f}", f"{whole.adapted_rand_error:.3f}", *lengths, *(f"{v:.3f}" for v in (*inner, oracle))]


def print_cells(found: list[Labelled]) -> None:
    """Table 3."""
    print_head("bits of the cells in the middle", ("volume", "network", "as it is", "inverted"))
    for volume in found:
        shape = read_bundle(NETWORKS / volume.network).predict_input_shape_vox
        begin = [max(0, (n - wanted) // 2) for n, wanted in zip(volume.raw.shape, shape, strict=True)]
        middle = volume.raw[tuple(slice(b, b + wanted) for b, wanted in zip(begin, shape, strict=True))]
        bits = [separate_cells(affinities_of(raw, NETWORKS / volume.network)) for raw in (middle, 255 - middle)]
        print_row((volume.name, volume.network, *(f"{cells:.2f}" for cells in bits)))


def print_precision(raw: Bytes, whole: Path) -> None:
    """Table 4, of the network whose weights before are beside the volumes."""
    patch = np.ascontiguousarray(raw[:, :200, :200])
    rounded, exact = (affinities_of(patch, folder).astype(int) for folder in (NETWORKS / "serial-sections", whole))
    levels = np.abs(rounded - exact)
    print(f"\nhalf precision: {(levels > 0).mean():.2%} of the affinities differ, by at most {levels.max()} levels")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=REAL, help="folder of the real volumes")
    parser.add_argument("--score", type=Path, nargs="+", default=[], help="folders of other networks: score them")
    options = parser.parse_args()
    data = options.data
    if not data.is_dir():
        raise SystemExit(f"{data}: not there. Give the folder of the real volumes with --data")
    found = volumes(data)
    labelled = [volume for volume in found if volume.truth is not None]
    if options.score:
        columns = (*(volume.name for volume in labelled), "mean, one threshold", "first, threshold of the others")
        print_head("best VOI; for serial sections: of AC4, z >= 60", ("network", *columns))
        for network in options.score:
            print_line_of(network, labelled, held_out_sections(data))
        return
    print_scores(labelled, data)
    print_cells(found)
    print_precision(found[-1].raw, data / "networks" / "serial-sections-30x6x6nm")


if __name__ == "__main__":
    main()
