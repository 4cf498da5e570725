"""Is it good, and what next? What the numbers of a result say, with truth or without, and what to do about it.

Every function returns a sentence, or nothing where there is nothing to say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from lsdflow_contract.experiment import TRAININGS
from lsdflow_contract.trainings import shortfall
from lsdflow_evaluate.errors.doubtful_place import DoubtfulPlace
from lsdflow_evaluate.report.data import ReportData
from lsdflow_evaluate.report.words import CROSS, duration, error_words
from lsdflow_evaluate.scores.error_budget import shares

MOST_NAMED, WORST_SHOWN = 5, 6
# Fragments of a trained network have hundreds of voxels and more; of one that has learnt nothing, some ten.
TINY_VOXELS = 50
# The larger part of the VOI is named if it is so many times the smaller one.
CLEARLY = 1.5
# Bits, and share of the true voxels: less is not mentioned.
FEW_BITS, FEW_VOXELS = 0.1, 0.02
SPLITS = "Neurons are cut in pieces rather than run together", "a higher threshold merges more"
MERGES = "Neurons run together rather than being cut in pieces", "a lower threshold merges less"

# Affinities between these are neither "one neuron" nor "a boundary". A network that knows membranes leaves few.
UNDECIDED, FEW_UNDECIDED, MANY_UNDECIDED = (0.2, 0.8), 0.3, 0.6
# Of affinities that show membranes at least so many are dark.
FEWEST_DARK = 0.01
# Difference of the two shares of the seams: up to these, blocks leave no trace, or a faint one.
NO_SEAM, FAINT_SEAM = 0.01, 0.03
# Share of the volume: a segment that holds more is rather many neurons run together.
TOO_LARGE = 0.5


# What to do where this part of the error budget is the largest.
WHAT_TO_DO = {
    "threshold": "another threshold helps most: segment.threshold = {best_threshold:g}",
    "agglomeration": "most is decided wrongly between fragments: train longer, or on labels of the places below",
    "borders": "most is the course of borders, within two voxels of where truth has them: nothing to do for neurons",
    "fragments": "most is merged inside fragments, where no threshold cuts: train longer, or on labels of such places",
}


class Finding(NamedTuple):
    """A sentence about the result with its title; `state` is good, bad or empty."""

    title: str
    text: str
    state: str = ""


NOTHING_FOUND = Finding("", "")


class Step(NamedTuple):
    """Something to do next: a sentence, and what to type or to write, if anything."""

    text: str
    command: str = ""


def findings(data: ReportData) -> tuple[Finding, ...]:
    """Sentences about the result; only those that apply."""
    found = (
        *(Finding(stage, f"{_capital(lacks)}.", "bad") for stage, lacks in short_trainings(data).items()),
        affinities_in_pictures(data),
        Finding("Fragments", small_fragments(data), "bad"),
        Finding("Segments", too_large_segment(data), "bad"),
        Finding("Trained voxels", trained_words(data.scores.get("trained_on", {})), "bad"),
        Finding("Errors", larger_error(data.scores)),
        Finding("Where the bits go", budget_words(data.scores.get("error_budget", {}))),
        Finding("Threshold", _advice(data)),
        seams_words(data.scores),
        lsd_error_words(data.scores),
    )
    return tuple(finding for finding in found if finding.text)


def short_trainings(data: ReportData) -> dict[str, str]:
    """What each finished training lacks; those that lack nothing are left out."""
    made = {stage: data.manifests[stage] for stage in TRAININGS if stage in data.manifests}
    return {stage: lacks for stage, found in made.items() if (lacks := shortfall(found.facts))}


def affinities_in_pictures(data: ReportData) -> Finding:
    """Whether they are bright inside neurons and dark at membranes; nothing without a picture of them."""
    shown = [picture.image.ravel() for picture in data.pictures if picture.layer == "affinities"]
    if not shown:
        return NOTHING_FOUND
    values = np.concatenate(shown) / 255.0
    low, high = UNDECIDED
    undecided, dark = float(((values > low) & (values < high)).mean()), float((values <= low).mean())
    measured, state = f"{undecided:.0%} are between {low:g} and {high:g}", "bad"
    if undecided > MANY_UNDECIDED:
        text = "Undecided almost everywhere: the network has hardly learnt"
    elif dark < FEWEST_DARK:
        text = "Almost no boundaries: the network sees no membranes, so that neurons run together"
        measured = f"{dark:.1%} are at most {low:g}"
    elif undecided > FEW_UNDECIDED:
        text, state = "Partly undecided: a longer training or more labels would help", ""
    else:
        text, state = "Clear: nearly all say either one neuron, or a boundary", "good"
    return Finding("Affinities", f"{text} ({measured}, in the pictures).", state)


def small_fragments(data: ReportData) -> str:
    """What to do where fragments are tiny: the sign of a network that has hardly learnt."""
    watershed = data.manifests.get("watershed")
    fragments = watershed.facts.get("totals", {}).get("fragments", 0) if watershed else 0
    if not fragments or not data.fragment_voxels or data.fragment_voxels / fragments >= TINY_VOXELS:
        return ""
    mean = data.fragment_voxels / fragments
    return (
        f"{fragments:,.0f} fragments of {mean:.0f} voxels on average. A network that knows membranes leaves far fewer, "
        "far larger ones: check the affinities and the loss, and train longer (max_iteration, max_minutes)."
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


def trained_words(trained: Mapping[str, Any]) -> str:
    """That the scores are of voxels that the network was trained on."""
    if not trained.get("share"):
        return ""
    volumes = ", ".join(trained["volumes"])
    return (
        f"{trained['share']:.0%} of the region that is scored was trained on ({volumes}): these scores, and a "
        "threshold chosen by them, flatter. Hold out what should be judged: evaluate.roi, validation_fraction."
    )


def budget_words(budget: Mapping[str, Any]) -> str:
    """How many bits of the VOI each part costs, and what to do about the largest; empty without a budget."""
    bits = shares(budget)
    if not bits or sum(bits.values()) < FEW_BITS:
        return ""
    listed = ", ".join(f"{name} {value:.2f}" for name, value in bits.items())
    largest = max(bits, key=lambda name: bits[name])
    return f"Of {sum(bits.values()):.2f} bits: {listed}. {_capital(WHAT_TO_DO[largest].format(**budget))}."


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
    return f"{advice['threshold']:.4f} by {advice['method']}: {advice['reason']}"


def too_large_segment(data: ReportData) -> str:
    """That one segment holds most of the volume."""
    largest = (data.chosen_lut or {}).get("largest_segment_vox") or 0
    if not data.fragment_voxels or largest <= TOO_LARGE * data.fragment_voxels:
        return ""
    share = largest / data.fragment_voxels
    return f"The largest holds {share:.0%} of the volume: neurons run together. A lower threshold merges less."


def seams_words(scores: Mapping[str, Any]) -> Finding:
    """Whether blocks show: how often neighbouring voxels are in one segment, across faces of blocks and inside."""
    if "seams" not in scores:
        return NOTHING_FOUND
    seams = scores["seams"]
    faces, inside = seams["faces"]["share"], seams["inside"]["share"]
    said, state = "Blocks leave no trace", "good"
    if inside - faces > FAINT_SEAM:
        said, state = "Blocks show: neurons end at their faces (a larger context, or id_mode seamless, helps)", "bad"
    elif inside - faces > NO_SEAM:
        said, state = "Blocks leave a faint trace", ""
    text = (
        f"{said}. {faces:.2%} of the neighbouring voxels on either side of a block's face are in one segment,"
        f" {inside:.2%} in the middle of blocks ({seams['blocks']} blocks sampled)."
    )
    return Finding("Seams", text, state)


def lsd_error_words(scores: Mapping[str, Any]) -> Finding:
    """How far the LSDs of the segmentation are from those predicted, without any truth; no text if it is not known."""
    error = scores.get("lsd_error")
    if not isinstance(error, Mapping) or "mean" not in error:
        return NOTHING_FOUND
    most = [f"{row['segment']} ({row['mean']:.2f})" for row in error.get("worst", ())[:MOST_NAMED]]
    first = f" Check first the segments that differ most: {', '.join(most)}." if most else ""
    text = (
        f"The shapes of the segments (their LSDs) differ by {error['mean']:.3f} (of 1) from those that the network "
        f"predicts from the image. Of two results of one network, the one that differs less is better.{first}"
    )
    return Finding("Self-consistency", text)


def worst_errors(scores: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The worst few errors of each kind, and the others: kind, `what` in words, bits, voxel, and `at` in nm."""
    rows = [
        {
            "kind": listed["kind"],
            "what": error_words(listed),
            "bits": listed["bits"],
            "voxel": listed.get("position_vox"),
            "at": ",".join(f"{value:g}" for value in listed.get("position_nm", ())),
        }
        for listed in scores.get("worst", ())
    ]
    first = [row for kind in ("split", "merge") for row in [r for r in rows if r["kind"] == kind][:WORST_SHOWN]]
    return first, [row for row in rows if row not in first]


def next_steps(data: ReportData) -> tuple[Step, ...]:
    """What to do next, the most useful first: train on, and without truth look at and label a small box."""
    if not data.pictures:
        return ()
    return (*_train_on(data), *(() if data.scores.get("has_truth") else _without_truth(data)))


def _train_on(data: ReportData) -> Iterator[Step]:
    """The command that continues each training that ended before its iterations, and how long they take."""
    for stage in short_trainings(data):
        facts = data.manifests[stage].facts
        left = facts.get("max_iteration", 0) - facts["iteration"]
        if left > 0 and facts.get("ended_by") == "max_minutes" and facts.get("it_per_s"):
            minutes = facts["minutes"] + left / facts["it_per_s"] / 60
            yield Step(
                f"Train longer: all iterations of {stage} take about {duration(60 * minutes)} on this machine. The"
                " training resumes from its last checkpoint.",
                f"lsdflow run {data.folder} --set {stage}.max_minutes={max(1.0, np.ceil(1.2 * minutes)):g}",
            )
        elif facts.get("ended_by") not in ("plateau", "overfit"):
            yield Step(
                f"Look at the snapshot of {stage}: raw and target must show the same cells. If they do, train longer.",
                f"lsdflow run {data.folder} --set {stage}.max_iteration={2 * facts['iteration']}",
            )
        else:
            yield Step(f"Give {stage} more labels or augmentation: a longer training alone does not help.")


def _without_truth(data: ReportData) -> Iterator[Step]:
    to_label = data.to_label
    if to_label is not None:
        where = f"begin {_nm(to_label.begin_nm)}, {CROSS.join(map(str, to_label.box.shape_vox))} voxels"
        yield Step(
            f"{_why_there(data, to_label.place)} Look there:",
            f"lsdflow view {data.folder} --at {','.join(f'{value:g}' for value in to_label.at_nm)}",
        )
        yield Step(
            f"Label every neuron in this small box ({where}; axes z, y, x); save the labels with voxel size and "
            "offset. As truth they give scores: add these lines to [prepare.target] and run again. As a training "
            "volume they improve the network.",
            'truth = "box.zarr"\npad_labels = true    # the box covers a part of the volume',
        )
    if data.scores.get("lsd_error", {}).get("made") is False:
        yield Step(
            "Store the predicted LSDs: the report then maps where the segmentation contradicts the network.",
            f"lsdflow run {data.folder} --set predict.store_lsds=true",
        )
    if not short_trainings(data):
        yield Step("If membranes above are grey, open or in wrong places, train longer, or on labels of this tissue.")


def _why_there(data: ReportData, place: DoubtfulPlace | None) -> str:
    if place is None or data.chosen is None:
        return "The middle of the volume is as good a place to begin as any."
    now, then = ("one", "two") if place.joined else ("two", "one")
    first, second = place.parts
    return (
        f"The most doubtful decision near the middle: segments {first} and {second} are {now} at the chosen threshold "
        f"{data.chosen[1]:g} and {then} at {place.other_threshold:g}."
    )


def _nm(values: tuple[float, float, float]) -> str:
    return f"{', '.join(f'{value:g}' for value in values)} nm"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
