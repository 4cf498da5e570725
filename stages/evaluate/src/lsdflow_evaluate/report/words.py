"""Numbers, findings and the methods section in words, as they are on the page.

The methods section describes what was really done, from what the stages recorded, in sentences for a paper. What is not
known is left out: a segmentation of imported predictions, say, has no sentence about its training. The numbers in
brackets are those of the references (lsdflow_contract.citations).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from lsdflow_contract.checkpoint import Bundle
from lsdflow_evaluate.report.data import ReportData, Resources

NOTHING = "\u2013"  # where a value would be
CROSS = "\u00d7"
MIB, GIB = 1 << 20, 1 << 30

_FRAGMENTS = {
    "seamless": "grown by a seeded watershed, block by block, named by their seeds",
    "blocks": "grown by a seeded watershed, cut at the faces of blocks,",
    "mutex": "cut by the mutex watershed [7]",
}
_SCORED = {
    "seamless": "of the whole graph, as waterz scores a volume at once [2, 6]",
    "blocks": "with waterz, block by block [2, 6]",
    "mutex": "with waterz, block by block [2, 6]",
}
_FILTERS = ("epsilon_agglomerate", "filter_fragments", "remove_debris_vox")


def duration(seconds: float) -> str:
    """Seconds as people say them: 0.4 s, 12 s, 3 min 20 s, 5 h 12 min, 3 d 4 h."""
    if not math.isfinite(seconds):
        return NOTHING
    if seconds < 10:
        return f"{seconds:.2g} s"
    for size, name, small, small_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= size:
            rest = int(seconds % size // small)
            return f"{int(seconds // size)} {name}" + (f" {rest} {small_name}" if rest else "")
    return f"{seconds:.0f} s"


def bytes_words(size: int | None) -> str:
    """312 MiB, 4.2 GiB; a dash for what is not known."""
    if size is None:
        return NOTHING
    if size >= GIB:
        return f"{size / GIB:,.1f} GiB"
    return f"{size / MIB:,.0f} MiB" if size >= 10 * MIB else f"{size / MIB:.2g} MiB"


def resource_words(used: Resources) -> tuple[str, ...]:
    """Processor time, memory, read, written, GPU; a dash for what was not recorded."""
    gpu = f"{used.gpu}, {bytes_words(used.gpu_bytes)}" if used.gpu and used.gpu_bytes else used.gpu
    return (
        duration(used.cpu_s) if used.cpu_s is not None else NOTHING,
        bytes_words(used.peak_resident_bytes),
        bytes_words(used.read_bytes),
        bytes_words(used.written_bytes),
        gpu or NOTHING,
    )


def error_words(listed: Mapping[str, Any]) -> str:
    """A split or merge error of scores.json in a sentence."""
    first, second = listed["first"], listed["second"]
    if listed["kind"] == "split":
        parts = f"{first['segment']} ({first['voxels']:,} vox) and {second['segment']} ({second['voxels']:,} vox)"
        return f"truth {listed['id']} is in {listed['parts']} segments; the largest are {parts}"
    parts = f"{first['truth']} ({first['voxels']:,} vox) and {second['truth']} ({second['voxels']:,} vox)"
    return f"segment {listed['id']} holds {listed['parts']} truth objects; the largest are {parts}"


def methods(data: ReportData) -> tuple[str, ...]:
    """The paragraphs, as far as the data carries them."""
    if not (data.scores.get("thresholds") or data.luts):
        return ("No segmentation was made yet. The method and its software are those of the papers below.",)
    paragraphs = (_volume(data), _training(data), _segmenting(data), _merging(data), _comparing(data), _libraries(data))
    return tuple(text for text in paragraphs if text)


def _volume(data: ReportData) -> str:
    """What was segmented with what."""
    volume = "The volume"
    if data.shape_vox and data.voxel_size_nm:
        volume = f"The volume ({_by(data.shape_vox)} voxels of {_by(data.voxel_size_nm)} nm, axes z, y, x)"
    writers = {stage: found.writer for stage, found in data.manifests.items()}
    versions = ", ".join(f"{stage} {writer.version}" for stage, writer in writers.items() if writer.version)
    revisions = {writer.revision for writer in writers.values() if writer.revision}
    commit = f"; commit {revisions.pop()[:12]}" if len(revisions) == 1 else ""
    return f"{volume} was segmented with lsdflow{f' ({versions}{commit})' if versions else ''}."


def _training(data: ReportData) -> str:
    """Which networks learnt what, from how much."""
    if not data.networks:
        return ""
    sentences = [f"{_learner(network, n)} {_learnt(network)}." for n, network in enumerate(data.networks)]
    batches = "Training batches were made with gunpowder [4]." if _by_gunpowder(data) else ""
    return " ".join(filter(None, (*sentences, _truth_volumes(data), batches, _prediction(data))))


def _learner(network: Bundle, number: int) -> str:
    unet = network.unet
    levels = len(unet.downsample_factors)
    maps = f"{unet.num_fmaps} feature maps, {unet.fmap_inc_factor} times as many at each of {levels} coarser levels"
    patches = f"patches of {_by(network.train_input_shape_vox)} voxels in, {_by(network.train_output_shape_vox)} out"
    return f"{'Another' if number else 'A three-dimensional'} U-Net ({maps}; {patches})"


def _learnt(network: Bundle) -> str:
    sigma = f"; Gaussian of {_by(network.sigma_nm)} nm" if network.sigma_nm else ""
    lsds = f"local shape descriptors (LSDs{sigma})"
    source = "the image and the predicted LSDs" if network.unet.in_channels > 10 else "the predicted LSDs"
    what = {
        "lsd": f"{lsds} from the image",
        "acrlsd": f"voxel affinities from {source} (auto-context, AcrLSD)",
        "mtlsd": f"voxel affinities and {lsds} at once (MtLSD) from the image",
        "affinities": "voxel affinities from the image",
    }[network.kind]
    return f"learnt {what} [1] in {network.iteration:,} iterations with {network.framework}"


def _truth_volumes(data: ReportData) -> str:
    prepared = data.manifests.get("prepare")
    volumes = prepared.facts.get("volumes", {}) if prepared else {}
    found = [facts for label, facts in volumes.items() if label.startswith("training/") and "labelled_voxels" in facts]
    if not found:
        return ""
    voxels, neurons = (sum(int(facts.get(name, 0)) for facts in found) for name in ("labelled_voxels", "neurons"))
    count = "one volume" if len(found) == 1 else f"{len(found)} volumes"
    return f"The truth for training: {count}, {voxels:,} labelled voxels of {neurons:,} neurons."


def _by_gunpowder(data: ReportData) -> bool:
    trained = [data.manifests[stage] for stage in ("train-lsd", "train-acrlsd") if stage in data.manifests]
    return any(found.config.get("pipeline", "gunpowder") == "gunpowder" for found in trained)


def _prediction(data: ReportData) -> str:
    predicted = data.manifests.get("predict")
    precision = predicted.config.get("precision") if predicted else None
    return f"Prediction: {precision} arithmetic." if precision else ""


def _fragments_by(data: ReportData) -> str:
    """How the fragments were made and named."""
    watershed = data.manifests.get("watershed")
    if watershed is None or watershed.config.get("id_mode", "seamless") == "seamless":
        return "seamless"
    return "mutex" if watershed.config.get("method") == "mutex" else "blocks"


def _segmenting(data: ReportData) -> str:
    made = _fragments_by(data)
    return (
        f"Fragments were {_FRAGMENTS[made]} on the affinities{_watershed_settings(data)} and joined in a "
        f"region adjacency graph whose edges were scored{_from(data)} by hierarchical agglomeration "
        f"{_SCORED[made]}; "
        "blocks were scheduled with daisy [5]."
    )


def _from(data: ReportData) -> str:
    """What edges were scored from, where it is not the affinities."""
    scored = data.manifests.get("agglomerate")
    by_lsds = scored is not None and scored.config.get("scored_from") == "lsds"
    return ", from the predicted LSDs alone," if by_lsds else ""


def _watershed_settings(data: ReportData) -> str:
    """Settings that decide about the fragments, by the names that the configuration reference explains."""
    finished = data.manifests.get("watershed")
    if finished is None:
        return ""
    config, resolved = finished.config, finished.config.get("resolved", {})
    named = [] if _fragments_by(data) == "mutex" else [f"min_seed_distance_vox {config.get('min_seed_distance_vox')}"]
    named += ["boundary affinity"] if config.get("boundary") == "affinity" else []
    named += ["seeds and growth within sections"] if config.get("fragments_in_xy") else []
    named += [f"{name} {config[name]:g}" for name in _FILTERS if config.get(name)]
    if "block_shape_vox" in resolved:
        context = _by(resolved.get("context_vox", (0, 0, 0)))
        named.append(f"blocks of {_by(resolved['block_shape_vox'])} voxels, read with a context of {context}")
    return f" ({'; '.join(named)})" if named else ""


def _merging(data: ReportData) -> str:
    chosen = data.chosen
    if not chosen:
        return ""
    return (
        f"Edges of the merge function {chosen[0]} with a score of at most {chosen[1]:g} were "
        "merged; a higher threshold merges more."
    )


def _comparing(data: ReportData) -> str:
    if not data.scores.get("thresholds"):
        return ""
    return (
        "The segmentation was compared with the truth by variation of information (in bits; split and merge add up to "
        "the sum) [3] and adapted Rand error; voxels without a label in the truth were left out."
    )


def _libraries(data: ReportData) -> str:
    """Versions of what did the work, as recorded; where stages had different ones, all of them."""
    found: dict[str, set[str]] = {}
    for manifest in data.manifests.values():
        for name, number in manifest.libraries.items():
            found.setdefault(name, set()).add(number)
    named = [f"{name} {' and '.join(sorted(numbers))}" for name, numbers in sorted(found.items())]
    return f"Libraries: {', '.join(named)}." if named else ""


def _by(values: Sequence[float]) -> str:
    return f" {CROSS} ".join(f"{value:g}" for value in values)
