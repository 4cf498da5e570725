"""Numbers and findings in words, as the pages say them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from lsdflow_evaluate.report.data import ReportData, Resources

NOTHING = "\u2013"  # where a value would be
CROSS = "\u00d7"
MIB, GIB = 1 << 20, 1 << 30
MOST_NAMED = 5
# Fragments of a trained network have hundreds of voxels and more; of one that has learnt nothing, some ten.
CRUMB_VOXELS = 50
# The larger part of the VOI is named if it is so many times the smaller one.
CLEARLY = 1.5
# Bits, and share of the true voxels: less is not mentioned.
FEW_BITS, FEW_VOXELS = 0.1, 0.02
SPLITS = "Neurons are cut in pieces rather than run together", "a higher threshold merges more"
MERGES = "Neurons run together rather than being cut in pieces", "a lower threshold merges less"


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


def findings(data: ReportData) -> tuple[tuple[str, str], ...]:
    """Titled sentences about the result; only those that apply."""
    found = (
        ("Fragments", crumbs(data)),
        ("Errors", larger_error(data.scores)),
        ("Threshold", _advice(data)),
        ("Seams", seams_words(data.scores)),
        ("Without truth", lsd_error_words(data.scores)),
    )
    return tuple((title, text) for title, text in found if text)


def crumbs(data: ReportData) -> str:
    """What to do where fragments are crumbs: the mark of a network that has hardly learnt."""
    watershed = data.manifests.get("watershed")
    fragments = watershed.facts.get("totals", {}).get("fragments", 0) if watershed else 0
    if not fragments or not data.fragment_voxels or data.fragment_voxels / fragments >= CRUMB_VOXELS:
        return ""
    mean = data.fragment_voxels / fragments
    return (
        f"{fragments:,.0f} fragments of {mean:.0f} voxels on average. A network that knows membranes leaves far fewer, "
        "far larger ones: look at the affinities and at the loss, and train longer (max_iteration, max_minutes)."
    )


def larger_error(scores: Mapping[str, Any]) -> str:
    """Whether neurons are rather cut or merged, and whether another threshold would help; how much of them is missing.

    scores: what scores.json holds. Empty without scores, or where all is balanced.
    """
    sentences = []
    split, merge = scores.get("voi_split"), scores.get("voi_merge")
    if split is not None and merge is not None:
        large, small = max(split, merge), min(split, merge)
        if large >= FEW_BITS and large >= CLEARLY * small:
            what, how = SPLITS if split > merge else MERGES
            larger = f"{what} (VOI split {split:.2f}, merge {merge:.2f}): {how}."
            sentences += [larger, _better_threshold(scores)]
    zero = scores.get("zero_fraction")
    if zero is not None and zero >= FEW_VOXELS:
        sentences.append(
            f"{zero:.1%} of the true neurons' voxels are in no segment: masks, regions, filter_fragments leave them"
            " out."
        )
    return " ".join(sentences)


def _better_threshold(scores: Mapping[str, Any]) -> str:
    own = [row for row in scores["thresholds"] if row["merge_function"] == scores["merge_function"]]
    best = min(own, key=lambda row: (row["voi"], row["threshold"]))
    if best["voi"] >= scores["voi"]:
        return "None of those tried has a smaller VOI: other merge functions or a longer training would help."
    return f"By this truth {best['threshold']:g} is the best of those tried, with a VOI of {best['voi']:.2f}."


def _advice(data: ReportData) -> str:
    segment = data.manifests.get("segment")
    advice = segment.facts.get("advice") if segment and data.luts else None
    if not isinstance(advice, dict):
        return ""
    return f"threshold {advice['threshold']:.4f} by {advice['method']}: {advice['reason']}"


def seams_words(scores: Mapping[str, Any]) -> str:
    """How often neighbouring voxels are in one segment, across faces of blocks and inside; empty if not measured."""
    if "seams" not in scores:
        return ""
    seams = scores["seams"]
    return (
        f"{seams['faces']['share']:.2%} of the neighbouring voxels on either side of a block's face lie in one segment,"
        f" {seams['inside']['share']:.2%} in the middle of blocks ({seams['blocks']} blocks sampled)"
    )


def lsd_error_words(scores: Mapping[str, Any]) -> str:
    """How far the LSDs of the segmentation are from those predicted, without any truth; empty where it is not known."""
    error = scores.get("lsd_error")
    if not isinstance(error, Mapping) or "mean" not in error:
        return ""
    most = [f"{row['segment']} ({row['mean']:.2f})" for row in error.get("worst", ())[:MOST_NAMED]]
    most_text = f"; most in segments {', '.join(most)}" if most else ""
    return f"the LSDs of the segmentation differ by {error['mean']:.3f} (of 1) from those predicted{most_text}"


def error_words(listed: Mapping[str, Any]) -> str:
    """A split or merge error of scores.json in a sentence."""
    first, second = listed["first"], listed["second"]
    if listed["kind"] == "split":
        parts = f"{first['segment']} ({first['voxels']:,} vox) and {second['segment']} ({second['voxels']:,} vox)"
        return f"truth {listed['id']} lies in {listed['parts']} segments; the largest are {parts}"
    parts = f"{first['truth']} ({first['voxels']:,} vox) and {second['truth']} ({second['voxels']:,} vox)"
    return f"segment {listed['id']} holds {listed['parts']} truth objects; the largest are {parts}"


def missing_parts(data: ReportData) -> tuple[str, ...]:
    """Sentences for the parts of a full report that this one lacks."""
    segment = data.manifests.get("segment")
    has_sizes = segment is not None and data.luts and "size_edges_vox" in segment.facts
    otherwise = "none was made" if data.scores.get("has_truth") else "no truth was given"
    parts = (
        (data.scores.get("thresholds"), f"There are no scores: {data.scores.get('reason') or otherwise}."),
        (data.luts, "The number of segments per threshold is not known."),
        (has_sizes, "The sizes of the segments are not known."),
        (data.losses, "There are no loss curves: no training log was found."),
    )
    return tuple(text for known, text in parts if not known)
