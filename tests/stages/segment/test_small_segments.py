"""`segment.min_segment_vox`: small segments become background, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lsdflow_contract.arrays import SEGMENTATION
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.lut import find_luts, luts_of, read_lut
from lsdflow_contract.manifest import read_manifest
from lsdflow_contract.testing import made
from lsdflow_runtime.io.volumes import open_volume
from lsdflow_segment.stage import Segment

Make = Callable[..., Experiment]
SMALLEST, COARSE = "segment.min_segment_vox=150", "segment.thresholds_step=0.1"
# At this threshold a third of the fragments is joined.
SET = (COARSE, "segment.threshold=0.2")


def segmentation(experiment: Experiment) -> np.ndarray:
    volume = open_volume(made(experiment.layout, "segment"), SEGMENTATION.dataset)
    return volume.read(volume.box)


def without_small(segments: np.ndarray, smallest: int = 150) -> np.ndarray:
    """What must come out, by counting the finished segmentation."""
    _, place, voxels = np.unique(segments, return_inverse=True, return_counts=True)
    return np.where(voxels[place].reshape(segments.shape) < smallest, 0, segments)


def facts_of(experiment: Experiment) -> dict[str, Any]:
    return read_manifest(experiment.layout, "segment").facts


@pytest.mark.proves("TRB-17")
@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("compute.runner=daisy",),
        ('segment.block_shape="5, 7, 9 vox"',),
        ("segment.nodes_in_memory=20",),
    ],
)
def test_segments_with_fewer_voxels_are_background_for_any_block_worker_or_part_of_the_graph(
    make_experiment: Make, overrides: tuple[str, ...]
) -> None:
    plain = make_experiment("a", *SET)
    Segment().run(plain)
    segments, voxels = np.unique(segmentation(plain), return_counts=True)
    smallest = int(np.sort(voxels[segments > 0])[len(voxels) // 2])  # the size of a segment, which stays
    cleaned = make_experiment("b", *SET, f"segment.min_segment_vox={smallest}", *overrides)
    Segment().run(cleaned)
    wanted = without_small(segmentation(plain), smallest)
    assert 1 < len(np.unique(wanted)) < len(np.unique(segmentation(plain)))
    assert np.array_equal(segmentation(cleaned), wanted)
    left_out = len(np.unique(segmentation(plain))) - len(np.unique(wanted))
    assert facts_of(cleaned)["small_segments"] == left_out
    assert Segment().verify(cleaned)["verified"]


def test_a_segment_counts_whole_where_only_a_region_is_written(make_experiment: Make) -> None:
    roi = 'segment.roi={begin="3, 4, 5 vox", shape="10, 11, 12 vox"}'
    plain, part = make_experiment("a", *SET), make_experiment("b", *SET, SMALLEST, roi)
    Segment().run(plain)
    Segment().run(part)
    assert np.array_equal(segmentation(part), without_small(segmentation(plain))[3:13, 4:15, 5:17])


def test_the_manifest_and_the_tables_say_what_was_left_out(make_experiment: Make) -> None:
    plain, cleaned = make_experiment("a", *SET), make_experiment("b", *SET, SMALLEST)
    Segment().run(plain)
    Segment().run(cleaned)
    before, facts = facts_of(plain), facts_of(cleaned)
    assert facts["small_segments"] == before["segments"] - facts["segments"] > 0
    assert facts["small_vox"] == facts["background_vox"] - before["background_vox"] > 0
    assert "small_segments" not in before
    watershed = read_manifest(cleaned.layout, "watershed").identity
    luts = find_luts(luts_of(cleaned.layout, read_manifest(cleaned.layout, "segment")), watershed)
    for known in luts:
        segments = read_lut(known.path).segments
        assert known.facts["segments"] == len(np.unique(segments[segments > 0]))
    (chosen,) = (k for k in luts if (k.merge_function, k.threshold) == (facts["merge_function"], 0.2))
    assert (chosen.facts["small_segments"], chosen.facts["small_vox"]) == (facts["small_segments"], facts["small_vox"])


def test_both_segmentations_and_their_tables_exist_side_by_side(make_experiment: Make) -> None:
    plain = make_experiment("a", *SET)
    Segment().run(plain)
    folder = luts_of(plain.layout, read_manifest(plain.layout, "segment"))
    tables, voxels = {path.name: path.read_bytes() for path in folder.iterdir()}, segmentation(plain)
    cleaned = make_experiment("a", *SET, SMALLEST)
    Segment().run(cleaned)
    assert luts_of(cleaned.layout, read_manifest(cleaned.layout, "segment")) != folder
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == tables
    Segment().run(plain)
    assert np.array_equal(segmentation(plain), voxels)
    assert Segment().verify(plain)["verified"]


def test_what_a_killed_run_without_it_left_is_not_used(make_experiment: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph in parts: workers map the tables that the killed run wrote for them."""
    plain, cleaned = (make_experiment("a", *SET, "segment.nodes_in_memory=20", *some) for some in ((), (SMALLEST,)))

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("lsdflow_segment.stage.run_task", killed)
        with pytest.raises(KeyboardInterrupt):
            Segment().run(plain)
    assert list((plain.layout.luts / ".parts").rglob("lut_*.npy"))
    Segment().run(cleaned)
    found = segmentation(cleaned)
    Segment().run(plain)
    assert np.array_equal(found, without_small(segmentation(plain)))


def test_the_threshold_that_is_advised_without_truth_does_not_depend_on_it(make_experiment: Make) -> None:
    plain, cleaned = (make_experiment(name, *some, truth=False) for name, some in (("a", ()), ("b", (SMALLEST,))))
    Segment().run(plain)
    Segment().run(cleaned)
    assert facts_of(plain)["advice"]["reason"] == facts_of(cleaned)["advice"]["reason"]


def test_a_segmentation_of_which_nothing_is_left_is_written_and_counted(make_experiment: Make) -> None:
    experiment = make_experiment("a", *SET, "segment.min_segment_vox=1000000")
    Segment().run(experiment)
    assert not segmentation(experiment).any()
    facts = facts_of(experiment)
    assert (facts["segments"], facts["largest_segment"]) == (0, 0)
    luts = find_luts(luts_of(experiment.layout, read_manifest(experiment.layout, "segment")), "watershed-key-identity")
    assert {(known.facts["segments"], known.facts["largest_segment_vox"]) for known in luts} == {(0, 0)}
