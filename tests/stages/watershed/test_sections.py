"""Bad sections are counted on the target volume, whatever block they lie in."""

from __future__ import annotations

import numpy as np
import pytest

from lsdflow_watershed.block_fragments import replace_sections


def stack(*values: int) -> np.ndarray:
    """One 2 x 2 section per value."""
    return np.array(values, np.uint32)[:, None, None] * np.ones((1, 2, 2), np.uint32)


@pytest.mark.proves("WSD-07")
def test_bad_sections_are_cleared_by_their_z_in_the_target() -> None:
    found = replace_sections(stack(1, 2, 3, 4), begin_z=40, bad_z={41, 43, 7}, filling="zero")
    assert found[:, 0, 0].tolist() == [1, 0, 3, 0]


def test_copy_takes_the_nearest_good_section_and_the_lower_one_on_ties() -> None:
    found = replace_sections(stack(1, 2, 3, 4, 5), begin_z=0, bad_z={1, 2, 4}, filling="copy")
    assert found[:, 0, 0].tolist() == [1, 1, 4, 4, 4]
    tie = replace_sections(stack(1, 2, 3), begin_z=0, bad_z={1}, filling="copy")
    assert tie[:, 0, 0].tolist() == [1, 1, 3]


def test_nothing_good_to_copy_gives_nothing() -> None:
    assert not replace_sections(stack(1, 2), begin_z=0, bad_z={0, 1}, filling="copy").any()


def test_the_input_is_not_changed() -> None:
    fragments = stack(1, 2)
    replace_sections(fragments, begin_z=0, bad_z={0}, filling="zero")
    assert fragments[0, 0, 0] == 1
