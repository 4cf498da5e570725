"""Fragments of one block are those of the published chain: scipy EDT, maximum_filter, mahotas."""

from __future__ import annotations

import mahotas
import numpy as np
import pytest
import waterz
from numpy.typing import NDArray
from scipy.ndimage import distance_transform_edt, maximum_filter

from lsdflow_contract.errors import BadData
from lsdflow_contract.testing import same_partition
from lsdflow_watershed.distance import squared_distance
from lsdflow_watershed.fragments import FragmentRules, extract_fragments


def published_plane(inside: NDArray[np.bool_], window: int) -> NDArray[np.int64]:
    """The published chain on one volume or section."""
    distance = distance_transform_edt(inside)
    seeds, _ = mahotas.label(maximum_filter(distance, window) == distance)
    return np.asarray(mahotas.cwatershed(distance.max() - distance, seeds))


def published(
    affs: NDArray[np.uint8], mask: NDArray[np.uint8] | None = None, in_xy: bool = False, window: int = 10
) -> NDArray[np.int64]:
    """Published fragments of a read box, with the mask applied before and after, as there."""
    values = affs.astype(np.float32) * (1 if mask is None else mask)
    if in_xy:
        mean = 0.5 * (values[1] + values[2])
        sections = [published_plane(section > 0.5 * 255, window) for section in mean]
        starts = np.cumsum([0, *(section.max() for section in sections[:-1])])
        fragments = np.stack([section + start for section, start in zip(sections, starts, strict=True)])
    else:
        fragments = published_plane(values.mean(axis=0) > 0.5 * 255, window)
    return fragments if mask is None else fragments * mask


@pytest.mark.proves("WSD-08")
@pytest.mark.parametrize("in_xy", [False, True])
@pytest.mark.parametrize("window", [10, 5, 3])
def test_fragments_are_those_of_the_published_chain(affs: NDArray[np.uint8], in_xy: bool, window: int) -> None:
    rules = FragmentRules(fragments_in_xy=in_xy, min_seed_distance_vox=window)
    found = extract_fragments(affs, None, rules)
    assert len(np.unique(found)) > 10
    assert same_partition(found, published(affs, in_xy=in_xy, window=window))


@pytest.mark.parametrize("in_xy", [False, True])
def test_no_fragments_outside_the_mask_and_those_inside_as_published(affs: NDArray[np.uint8], in_xy: bool) -> None:
    mask = np.ones(affs.shape[1:], np.uint8)
    mask[:, :15, 30:] = 0
    mask[10:14] = 0
    found = extract_fragments(affs, mask, FragmentRules(fragments_in_xy=in_xy))
    assert not found[mask == 0].any()
    assert found[mask > 0].all()
    assert same_partition(found, published(affs, mask, in_xy))


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 40, 1), (3, 1, 50), (2, 2, 2)])
def test_thin_volumes_work(shape: tuple[int, int, int]) -> None:
    generator = np.random.default_rng(1)
    affs = generator.integers(0, 256, (3, *shape), dtype=np.uint8)
    affs[:, 0, 0, 0] = 0  # somewhere a boundary: without one, the published distance is not defined
    assert same_partition(extract_fragments(affs, None, FragmentRules()), published(affs))


def test_a_volume_without_boundary_is_one_fragment() -> None:
    found = extract_fragments(np.full((3, 20, 30, 40), 255, np.uint8), None, FragmentRules())
    assert np.unique(found).tolist() == [1]


@pytest.mark.proves("WSD-03")
def test_sections_without_boundary_are_one_fragment_each() -> None:
    found = extract_fragments(np.full((3, 4, 30, 40), 255, np.uint8), None, FragmentRules(fragments_in_xy=True))
    assert len({int(section.max()) for section in found}) == 4
    assert all(section.min() == section.max() for section in found)


def test_the_threshold_is_fixed_and_does_not_follow_the_content_of_a_block(affs: NDArray[np.uint8]) -> None:
    dark = affs // 2  # no affinity above one half of the full scale: all boundary, one flat fragment
    assert np.unique(extract_fragments(dark, None, FragmentRules())).tolist() == [1]


def test_squared_distances_are_exact(affs: NDArray[np.uint8]) -> None:
    inside = affs.mean(axis=0) > 127.5
    wanted = np.rint(distance_transform_edt(inside) ** 2).astype(np.int32)
    assert np.array_equal(squared_distance(inside, in_xy=False), wanted)


def weak_plane_affinities() -> NDArray[np.uint8]:
    """Two columns in xy; z affinities are low in the left one, and x affinities in the right one."""
    affs = np.full((3, 2, 20, 40), 250, np.uint8)
    affs[:, :, :, 19:21] = 0
    affs[0, :, :, :19] = 20
    affs[2, :, :, 21:] = 10
    affs[1, :, :, 21:] = 250
    return affs


def test_the_filter_in_xy_uses_the_in_plane_channels_that_made_the_fragments() -> None:
    """Lineage bug: channels 0 and 1 (z, y) were averaged, so weak z affinities removed good fragments."""
    affs = weak_plane_affinities()
    rules = FragmentRules(fragments_in_xy=True, filter_fragments=0.55)
    kept = extract_fragments(affs, None, rules)
    assert kept[0, 10, 5] > 0, "in-plane affinities are high there"
    assert kept[0, 10, 35] == 0, "in-plane affinities are (250 + 10) / 2 of 255 there"


@pytest.mark.proves("WSD-06")
def test_the_filter_drops_fragments_below_the_mean_and_keeps_the_others(affs: NDArray[np.uint8]) -> None:
    """Slow reference: one mean per fragment. Lineage bug: the entry point passed an undefined name instead."""
    everything = extract_fragments(affs, None, FragmentRules())
    means = {int(f): float(affs[:, everything == f].mean() / 255) for f in np.unique(everything)}
    limit = float(np.median(list(means.values())))
    kept = extract_fragments(affs, None, FragmentRules(filter_fragments=limit))
    assert set(np.unique(kept)) - {0} == {f for f, mean in means.items() if mean >= limit}
    assert np.array_equal(kept[kept > 0], everything[kept > 0])


@pytest.mark.proves("WSD-04")
def test_epsilon_agglomerate_is_what_waterz_gives_at_that_threshold(
    affs: NDArray[np.uint8], capfd: pytest.CaptureFixture[str]
) -> None:
    plain = extract_fragments(affs, None, FragmentRules(min_seed_distance_vox=4))
    capfd.readouterr()
    merged = extract_fragments(affs, None, FragmentRules(min_seed_distance_vox=4, epsilon_agglomerate=0.2))
    assert capfd.readouterr().out == "", "waterz must not write into the output of the command"
    (wanted,) = waterz.agglomerate(
        affs.astype(np.float32) / 255,
        [0.2],
        fragments=plain.astype(np.uint64),
        scoring_function="OneMinus<HistogramQuantileAffinity<RegionGraphType, 25, ScoreValue, 256, false>>",
        discretize_queue=256,
    )
    assert len(np.unique(merged)) < len(np.unique(plain))
    assert same_partition(merged, wanted)


def test_a_block_without_any_fragment_survives_filter_and_epsilon() -> None:
    affs = np.zeros((3, 8, 8, 8), np.uint8)
    rules = FragmentRules(filter_fragments=0.5, epsilon_agglomerate=0.3)
    assert not extract_fragments(affs, None, rules).any()


@pytest.mark.parametrize("wrong", [np.zeros((3, 4, 4, 4), np.float32), np.zeros((2, 4, 4, 4), np.uint8)])
def test_what_is_no_affinities_is_refused(wrong: NDArray[np.uint8]) -> None:
    with pytest.raises(BadData, match="not affinities"):
        extract_fragments(wrong, None, FragmentRules())
