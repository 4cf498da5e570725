"""Which error is the larger one, and whether another threshold would help: the words that a table of scores lacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# The larger part of the VOI is named if it is so many times the smaller one.
_CLEARLY = 1.5
# Bits, and share of the true voxels: less is not worth a word.
_FEW_BITS, _FEW_VOXELS = 0.1, 0.02
_SPLITS = "Neurons are cut in pieces rather than run together", "a higher threshold merges more"
_MERGES = "Neurons run together rather than being cut in pieces", "a lower threshold merges less"


def larger_error(scores: Mapping[str, Any]) -> str:
    """What scores.json says of the chosen threshold, in sentences; empty without scores, or where all is balanced."""
    return " ".join(sentence for sentence in (_larger_part(scores), _missing(scores)) if sentence)


def _larger_part(scores: Mapping[str, Any]) -> str:
    split, merge = scores.get("voi_split"), scores.get("voi_merge")
    if split is None or merge is None:
        return ""
    large, small = max(split, merge), min(split, merge)
    if large < _FEW_BITS or large < _CLEARLY * small:
        return ""
    what, how = _SPLITS if split > merge else _MERGES
    return f"{what} (VOI split {split:.2f}, merge {merge:.2f}): {how}. {_better_threshold(scores)}"


def _better_threshold(scores: Mapping[str, Any]) -> str:
    own = [row for row in scores["thresholds"] if row["merge_function"] == scores["merge_function"]]
    best = min(own, key=lambda row: (row["voi"], row["threshold"]))
    if best["voi"] >= scores["voi"]:
        return "None of those tried has a smaller VOI: other merge functions or a longer training would help."
    return f"By this truth {best['threshold']:g} is the best of those tried, with a VOI of {best['voi']:.2f}."


def _missing(scores: Mapping[str, Any]) -> str:
    zero = scores.get("zero_fraction")
    if zero is None or zero < _FEW_VOXELS:
        return ""
    return f"{zero:.1%} of the true neurons' voxels are in no segment: masks, regions, filter_fragments leave them out."
