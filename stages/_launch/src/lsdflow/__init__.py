"""lsdflow in Python: from raw to a segmentation in memory, by the functions that the stages call (docs/python_api.md).

    raw --predict_affinities--> affinities --extract_fragments--> fragments --score_edges--> edges --segment--> segments

Arrays are in the order z, y, x. The results are those of the stages with their default settings, voxel by voxel and id
by id, where these have one block. All errors are those of lsdflow_contract.errors. Each function imports its stage when
it is called: `import lsdflow` is quick, and works where only some of the stages are installed.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lsdflow_command.code_cache import use_own_code_cache
from lsdflow_contract.errors import BadData, NotInstalled, UsageError
from lsdflow_contract.geometry import Box, Geometry, Vox3
from lsdflow_contract.graph import DEFAULT_MERGE_FUNCTIONS, RagEdges

if TYPE_CHECKING:
    from lsdflow_metrics.scores import PartitionScores, ZeroPolicy
    from lsdflow_network.inference import Predictor
    from lsdflow_runtime.io.volumes import Volume

Folder = str | PathLike[str]
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def _of_stages(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """The function, with the commands' cache of compiled code, and NotInstalled where a package is not."""

    @functools.wraps(function)
    def called(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        """Call it; NotInstalled if a package that it imports is missing."""
        if "numba" not in sys.modules:  # which looks for its cache once
            use_own_code_cache()
        try:
            return function(*args, **kwargs)
        except ModuleNotFoundError as error:
            raise NotInstalled(
                f"lsdflow.{function.__name__} needs a package that is not installed",
                where=sys.prefix,
                wanted=str(error.name).partition(".")[0].replace("lsdflow_", "lsdflow-"),
                fix="install it there, or use .venv/blocks of a clone, where `make setup` installs all",
            ) from error

    return called


@_of_stages
def load_predictor(folder: Folder, *, lsd_folder: Folder | None = None, device: str = "cpu") -> Predictor:
    """A network for patches: .predict(raw) gives {"affs": (3, z', y', x') float32 in [0, 1], ...}, smaller than raw.

    Arguments as in predict_affinities; an acrlsd network without lsd_folder takes raw and LSDs (11, z, y, x).
    """
    from lsdflow_network.inference import load_predictor

    return load_predictor(Path(folder), device=device, lsd_folder=None if lsd_folder is None else Path(lsd_folder))


@_of_stages
def predict_affinities(
    raw: ArrayLike, folder: Folder, *, lsd_folder: Folder | None = None, device: str = "auto"
) -> NDArray[np.uint8]:
    """Raw uint8 (z, y, x) -> affinities uint8 (3 or more, z, y, x), 255 = surely the same neuron.

    raw: any shape, at the voxel size of the network; mirrored at its faces. folder: the network (bundle.json);
    lsd_folder: for a network of kind acrlsd, the LSD network before it. device: "auto" (a GPU if there is one), "cpu",
    "cuda:N"; torch becomes deterministic. Raises BadData, UsageError, MissingInput, ContractMismatch or ConfigError.
    """
    import torch

    from lsdflow_contract.checkpoint import Mode, read_bundle
    from lsdflow_contract.layout import ExperimentLayout
    from lsdflow_network.precision import inference_precision
    from lsdflow_predict.blocks import affinity_blocks
    from lsdflow_predict.checkpoints import choose_networks
    from lsdflow_predict.config import PredictConfig
    from lsdflow_predict.evaluation import prepare_torch
    from lsdflow_predict.inputs import Inputs
    from lsdflow_predict.resources import choose_device
    from lsdflow_predict.tiling import tile_networks
    from lsdflow_runtime.blocks import Block

    memory = _Memory(_checked(raw, "raw", np.uint8, 3, "scale it to 0 ... 255, then raw.astype(np.uint8)"))
    path, bundle, box = Path(folder).resolve(), read_bundle(Path(folder)), _box(memory.raw)
    if (bundle.kind == "acrlsd") != (lsd_folder is not None):
        raise UsageError("lsd_folder is for networks of kind acrlsd, and only for them", where=path, found=bundle.kind)
    lsds = "trained_with" if lsd_folder is None else str(Path(lsd_folder).resolve())
    config = PredictConfig(checkpoint=str(path), lsd_checkpoint=lsds)
    mode: Mode = "mtlsd" if bundle.kind == "lsd" else bundle.kind  # which refuses a network of LSDs alone
    networks = choose_networks(ExperimentLayout(path), mode, config, bundle.voxel_size_nm, Path)
    tiled = tile_networks(networks, config, box, bundle.voxel_size_nm)
    device = choose_device(device)
    threads = torch.get_num_threads()
    prepare_torch(inference_precision(device.partition(":")[0], config.precision))
    inputs = Inputs(cast("Volume", memory), {}, networks, *tiled)
    outputs = {"affs": tiled[0].bundle.outputs["affs"]}
    predict_block = affinity_blocks(inputs, None, outputs=outputs, config=config, device=device, threads=threads)
    try:
        return predict_block(Block(0, (0, 0, 0), box, box)).arrays["affs"]
    finally:
        torch.set_num_threads(threads)


@_of_stages
def extract_fragments(
    affinities: ArrayLike,
    mask: ArrayLike | None = None,
    *,
    fragments_in_xy: bool = False,
    min_seed_distance_vox: int = 10,
    filter_fragments: float = 0.0,
    boundary: Literal["affinity", "distance"] = "affinity",
) -> NDArray[np.uint64]:
    """Affinities uint8 (3 or more, z, y, x) -> fragments (supervoxels) uint64 (z, y, x), 0 = none.

    The id of a fragment is 1 + the position of its seed in the volume. mask: uint8 (z, y, x), fragments only where > 0.
    The options are those of the table [watershed]. Raises BadData for other arrays, UsageError for other options.
    """
    from lsdflow_watershed.block_fragments import BlockPlace, BlockRules, seamless_fragments_of_block
    from lsdflow_watershed.fragments import FragmentRules

    affs = _affinities(affinities)
    box = _box(affs)
    inside = None if mask is None else _checked(mask, "mask", np.uint8, 3, "(mask > 0).astype(np.uint8)", box)
    if min_seed_distance_vox < 2 or not 0 <= filter_fragments <= 1 or boundary not in ("affinity", "distance"):
        wanted = 'min_seed_distance_vox >= 2, filter_fragments from 0 to 1, boundary "affinity" or "distance"'
        found = f"{min_seed_distance_vox}, {filter_fragments}, {boundary!r}"
        raise UsageError("no such rule", wanted=wanted, found=found)
    grid = Geometry((1.0, 1.0, 1.0), (0.0, 0.0, 0.0), box.shape_vox)
    fragments = FragmentRules(fragments_in_xy, min_seed_distance_vox, filter_fragments, boundary=boundary)
    rules = BlockRules(fragments, voxels_per_block=1)
    return seamless_fragments_of_block(affs, inside, BlockPlace(0, box, box), rules, grid)[0]


@_of_stages
def score_edges(
    affinities: ArrayLike, fragments: ArrayLike, merge_function: str = DEFAULT_MERGE_FUNCTIONS[0]
) -> RagEdges:
    """The region adjacency graph of fragments uint64 (z, y, x): u < v uint64 (n,), merge_score float32 (n,).

    Score 0 = surely the same neuron, 1 = surely different, NaN = never merged. Raises BadData for other arrays,
    UsageError for an unknown merge function.
    """
    from lsdflow_agglomerate.face_graph import add_faces
    from lsdflow_agglomerate.faces import count_faces
    from lsdflow_agglomerate.graph_agglomeration import score_graph
    from lsdflow_agglomerate.merge_functions import MERGE_FUNCTIONS

    if merge_function not in MERGE_FUNCTIONS:
        raise UsageError("unknown merge function", wanted=", ".join(MERGE_FUNCTIONS), found=merge_function)
    affs = _affinities(affinities)
    box = _box(affs)
    return score_graph(add_faces([count_faces(affs, _fragments(fragments, box), box, box)]), merge_function)


@_of_stages
def segment(fragments: ArrayLike, edges: RagEdges, thresholds: float | Sequence[float]) -> NDArray[np.uint64]:
    """Segments uint64 (z, y, x) at one threshold, or (t, z, y, x) at several; named by their smallest fragment.

    thresholds: 0 to 1; a higher one merges more. Raises BadData if there is no fragment, or for edges of others;
    UsageError for other thresholds.
    """
    from lsdflow_segment.components import ThresholdSweep
    from lsdflow_segment.relabel import relabel

    voxels, wanted = _fragments(fragments), np.asarray(thresholds, np.float64)
    if wanted.ndim > 1 or not wanted.size or not ((wanted >= 0) & (wanted <= 1)).all():
        raise UsageError("no such threshold", wanted="0 to 1", found=thresholds)
    ids = np.unique(voxels[voxels > 0])
    ascending, places = np.unique(wanted, return_inverse=True)
    sweep = ThresholdSweep(ids, ascending.tolist())
    sweep.add(edges.u, edges.v, edges.merge_score)
    found = [relabel(voxels, ids, ids[roots]) for roots in sweep.roots()]
    return np.stack([found[place] for place in places]) if wanted.ndim else found[0]


@_of_stages
def compare(segmentation: ArrayLike, truth: ArrayLike, zeros: ZeroPolicy = "label") -> PartitionScores:
    """Agreement of two volumes of integers >= 0; truth 0 is not counted: .voi, .voi_split, .voi_merge in bits, others.

    zeros: what segmentation 0 means (stages/_metrics/README.md). Raises BadData for other arrays.
    """
    from lsdflow_metrics.contingency import contingency
    from lsdflow_metrics.scores import score

    found, wanted = np.asarray(segmentation), np.asarray(truth)
    for name, ids in (("segmentation", found), ("truth", wanted)):
        if ids.dtype.kind not in "ui" or ids.min(initial=0) < 0:
            raise BadData(f"no labels: {name}", wanted="integers >= 0", found=f"{ids.dtype} from {ids.min(initial=0)}")
    return score(contingency(found, wanted), zeros)


class _Memory:
    """Raw (z, y, x) that predict reads like a volume on disk."""

    def __init__(self, raw: NDArray[np.uint8]) -> None:
        self.raw = raw

    def read(self, box: Box, **_: str) -> NDArray[np.uint8]:
        """The values of `box`, mirrored at the faces."""
        from lsdflow_runtime.io.volumes import mirrored

        axes = zip(box.begin_vox, box.end_vox, self.raw.shape, strict=True)
        return self.raw[np.ix_(*(mirrored(np.arange(begin, end), length) for begin, end, length in axes))]


def _affinities(values: ArrayLike) -> NDArray[np.uint8]:
    return _checked(values, "affinities", np.uint8, 4, "if in [0, 1]: np.floor(affinities * 255).astype(np.uint8)")


def _fragments(values: ArrayLike, box: Box | None = None) -> NDArray[np.uint64]:
    return _checked(values, "fragments", np.uint64, 3, "fragments.astype(np.uint64)", box)


def _checked(
    values: ArrayLike, name: str, dtype: type[np.integer[Any]], axes: int, fix: str, box: Box | None = None
) -> NDArray[Any]:
    """The values, contiguous and writable for compiled loops. Raises BadData for another dtype or shape."""
    array = np.asarray(values)
    shape = f"{box.shape_vox}" if box else "(z, y, x)" if axes == 3 else "(3 or more, z, y, x)"
    fits = array.dtype == dtype and array.ndim == axes and array.size and (axes == 3 or len(array) >= 3)
    if not fits or (box and array.shape != box.shape_vox):
        wanted, found = f"{np.dtype(dtype)} {shape}", f"{array.dtype} {array.shape}"
        raise BadData(f"not what {name} must be", wanted=wanted, found=found, fix=fix)
    return np.require(array, requirements=("C", "W"))


def _box(array: NDArray[Any]) -> Box:
    return Box((0, 0, 0), cast(Vox3, array.shape[-3:]))
