"""Sentences of the report: what is missing, how it was made (methods), and what to cite."""

from __future__ import annotations

from lsdflow_contract.citations import REFERENCES
from lsdflow_evaluate.report.content import CROSS, chosen_count, chosen_score
from lsdflow_evaluate.report.data import ReportData

CITATIONS = tuple(reference.text() for reference in REFERENCES)

_FRAGMENTS = {
    "seamless": "grown by a seeded watershed, block by block, named by their seeds",
    "blocks": "grown by a seeded watershed, cut at the faces of blocks,",
    "mutex": "cut by the mutex watershed (Wolf et al. 2019, arXiv 1904.12654)",
}
_SCORED = {
    "seamless": "of the whole graph, as waterz scores a volume at once [2, 6]",
    "blocks": "with waterz, block by block [2, 6]",
    "mutex": "with waterz, block by block [2, 6]",
}


def missing_parts(data: ReportData) -> tuple[str, ...]:
    """Sentences for the parts of a full report that this one lacks."""
    parts = (
        (
            not data.scores,
            "There are no scores: "
            + (data.no_scores or ("none was made" if data.has_truth else "no truth was given"))
            + ".",
        ),
        (not data.segment_counts, "The number of segments per threshold is not known."),
        (data.segment_sizes is None, "The sizes of the segments are not known."),
        (not data.losses, "There are no loss curves: no training log was found."),
    )
    return tuple(text for missing, text in parts if missing)


def methods(data: ReportData) -> tuple[str, ...]:
    """The methods section, as far as the data carries it."""
    if not (data.scores or data.segment_counts):
        return ("No segmentation was made yet. The method and its software are those of the papers below.",)
    volume = "The volume"
    if data.shape_vox and data.voxel_size_nm:
        shape, size = (f" {CROSS} ".join(f"{n:g}" for n in values) for values in (data.shape_vox, data.voxel_size_nm))
        volume = f"The volume ({shape} voxels of {size} nm, axes z, y, x)"
    trained = [f"{c.stage} {int(c.iterations.max()):,}" for c in data.losses if c.iterations.size]
    iterations = f" Iterations of training: {', '.join(trained)}." if trained else ""
    text = [
        f"{volume} was segmented with lsdflow. A three-dimensional U-Net was trained to predict local shape "
        f"descriptors (LSDs) and a second one, or the same one, voxel affinities [1].{iterations} Training batches "
        "were made with gunpowder [4].",
        f"Fragments were {_FRAGMENTS[data.fragments_by]} on the affinities and joined in a region adjacency graph "
        f"whose edges were scored by hierarchical agglomeration {_SCORED[data.fragments_by]}; blocks were scheduled "
        "with daisy [5].",
    ]
    chosen = chosen_score(data) or chosen_count(data)
    if chosen:
        text.append(
            f"Edges of the merge function {chosen.merge_function} with a score of at most {chosen.threshold:g} were "
            "merged; a higher threshold merges more."
        )
    if data.scores:
        text.append(
            "The segmentation was compared with the truth by variation of information (in bits; split and merge add "
            "up to the sum) [3] and adapted Rand error; voxels without a label in the truth were left out."
        )
    return tuple(text)
