"""The stage with the mutex watershed: blocks, workers, settings, and affinities to further voxels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from lsdflow_contract.arrays import AFFINITY_NEIGHBORHOOD, FRAGMENTS
from lsdflow_contract.errors import BadData, ConfigError
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_contract.geometry import Box
from lsdflow_contract.manifest import read_manifest
from lsdflow_contract.sealing import ARRAY_SEAL, seal_array
from lsdflow_contract.testing import made, noisy_affinities_to, voronoi_labels
from lsdflow_runtime.io.volumes import open_volume
from lsdflow_runtime.store.rag_store import FilesRagStore
from lsdflow_watershed.config import WatershedConfig
from lsdflow_watershed.fragments import FragmentRules
from lsdflow_watershed.ids import number_components
from lsdflow_watershed.mutex import MutexRules, extract_mutex_fragments, mutex_channels
from lsdflow_watershed.stage import Watershed

MakeExperiment = Callable[..., Experiment]
FAR = (*AFFINITY_NEIGHBORHOOD, (-3, 0, 0), (0, -4, 0), (0, 0, -4), (0, 3, -3))
BLOCKS = 'id_mode = "blocks"\nblock_shape = "16, 16, 32 vox"\ncontext = "6, 7, 8 vox"\n'
MUTEX = BLOCKS + 'method = "mutex"\nmutex_strides = [[2, 2, 2]]\nremove_debris_vox = 5\n'


@pytest.fixture
def far_affs() -> NDArray[np.uint8]:
    """(7, 20, 30, 40) u8 of 25 cells."""
    return noisy_affinities_to(voronoi_labels((20, 30, 40), 25, seed=3), FAR)


def run(experiment: Experiment) -> None:
    Watershed().run(experiment)


def fragments_of(experiment: Experiment) -> NDArray[np.uint64]:
    volume = open_volume(made(experiment.layout, "watershed"), FRAGMENTS.dataset)
    return volume.read(volume.box)


def test_every_block_equals_the_core_on_its_read_box_and_every_id_has_its_node(
    make_experiment: MakeExperiment, far_affs: NDArray[np.uint8]
) -> None:
    """Slow reference: crop, compute, crop. Strides are counted from the first voxel of the target."""
    begin = (3, 5, 7)
    experiment = make_experiment(far_affs, MUTEX, neighborhood=FAR, begin_vox=begin, target_vox=(40, 40, 50))
    assert Watershed().validate(experiment) == []
    run(experiment)
    found = fragments_of(experiment)
    rules = MutexRules(mutex_channels(FAR, (), [(2, 2, 2)]), 5)
    whole = Box((0, 0, 0), (20, 30, 40))
    corners = [(z, y, x) for z in (0, 16) for y in (0, 16) for x in (0, 32)]
    for number, corner in enumerate(corners):
        write = Box(corner, (16, 16, 32)).intersect(whole)
        read = write.grow((6, 7, 8)).intersect(whole)
        z, y, x = (a + b for a, b in zip(read.begin_vox, begin, strict=True))
        cropped = np.ascontiguousarray(far_affs[(slice(None), *read.slices())])
        made = extract_mutex_fragments(cropped, None, FragmentRules(), rules, (z, y, x))
        local, count = number_components(made[write.slices(relative_to=read.begin_vox)])
        assert np.array_equal(found[write.slices()], np.where(local > 0, local + np.uint64(number * 16 * 16 * 32), 0))
        assert count > 0
    key = read_manifest(experiment.layout, "watershed").key
    nodes = list(FilesRagStore(experiment.layout.store).iter_nodes(key))
    ids, sizes = np.unique(found[found > 0], return_counts=True)
    assert np.concatenate([part.id for part in nodes]).tolist() == ids.tolist()
    assert np.concatenate([part.size_vox for part in nodes]).tolist() == sizes.tolist()
    assert Watershed().verify(experiment)["verified"]


def test_daisy_workers_give_the_bits_of_the_serial_runner(
    make_experiment: MakeExperiment, far_affs: NDArray[np.uint8]
) -> None:
    serial = make_experiment(far_affs, MUTEX, "serial", "serial", neighborhood=FAR)
    daisy = make_experiment(far_affs, MUTEX, "daisy", "daisy", neighborhood=FAR)
    run(serial)
    run(daisy)
    assert np.array_equal(fragments_of(serial), fragments_of(daisy))
    assert read_manifest(serial.layout, "watershed").identity == read_manifest(daisy.layout, "watershed").identity


def test_seeds_are_made_from_the_three_nearest_affinities_only(
    make_experiment: MakeExperiment, far_affs: NDArray[np.uint8]
) -> None:
    far = make_experiment(far_affs, BLOCKS, neighborhood=FAR, name="far")
    near = make_experiment(far_affs[:3], BLOCKS, name="near")
    run(far)
    run(near)
    assert np.array_equal(fragments_of(far), fragments_of(near))
    assert fragments_of(far).any()


def test_bad_sections_and_the_filter_hold_for_mutex_fragments_too(
    make_experiment: MakeExperiment, far_affs: NDArray[np.uint8]
) -> None:
    far_affs[:3, :, :, :10] = 30
    table = MUTEX + "replace_sections = [6, 18]\nfilter_fragments = 0.4\n"
    experiment = make_experiment(far_affs, table, neighborhood=FAR)
    run(experiment)
    found = fragments_of(experiment)
    assert np.flatnonzero(~found.any(axis=(1, 2))).tolist() == [6, 18]
    assert found[0, :, :5].max() == 0
    assert found[0, :, 15:].min(axis=0).max() > 0


@pytest.mark.parametrize("change", ["mutex_bias = [-0.3]", "mutex_strides = []", "remove_debris_vox = 9"])
def test_other_parameters_are_never_mixed_in(
    make_experiment: MakeExperiment, far_affs: NDArray[np.uint8], change: str
) -> None:
    experiment = make_experiment(far_affs[:, :8, :16, :16].copy(), MUTEX, neighborhood=FAR)
    run(experiment)
    first = read_manifest(experiment.layout, "watershed")
    run(load_experiment(experiment.path, [f"watershed.{change}"]))
    assert read_manifest(experiment.layout, "watershed").outputs != first.outputs


def test_without_strides_the_usual_ones_are_taken_and_recorded(
    make_experiment: MakeExperiment, far_affs: NDArray[np.uint8]
) -> None:
    table = BLOCKS + 'method = "mutex"\n'
    usual = make_experiment(far_affs, table, neighborhood=FAR, name="usual", voxel_size_nm=(20.0, 10.0, 10.0))
    given = make_experiment(far_affs, table + "mutex_strides = [[2, 4, 4]]\n", neighborhood=FAR, name="given")
    run(usual)
    run(given)
    assert np.array_equal(fragments_of(usual), fragments_of(given))
    recorded = read_manifest(usual.layout, "watershed").config["resolved"]["mutex_channels"]
    assert recorded[0] == {"offset_vox": [-1, 0, 0], "bias": 0.0, "stride_vox": [1, 1, 1]}
    assert recorded[6] == {"offset_vox": [0, 3, -3], "bias": -1.0, "stride_vox": [2, 4, 4]}


def test_options_that_are_not_used_do_not_change_a_key() -> None:
    mutex_only = {"method", "mutex_bias", "mutex_strides", "remove_debris_vox"}
    published = WatershedConfig(id_mode="blocks").parameters()
    assert set(WatershedConfig.model_fields) - set(published) == {*mutex_only, "boundary"}
    assert set(WatershedConfig(method="mutex", id_mode="blocks").parameters()) == {*published, *mutex_only}


def test_only_the_boundary_by_affinity_is_part_of_a_key() -> None:
    """Results of before the setting have the key of "distance"; and the default has that of "affinity"."""
    default, said, distance = (WatershedConfig(boundary=b).parameters() for b in (None, "affinity", "distance"))
    assert default == said == distance | {"boundary": "affinity"}
    assert "boundary" not in distance
    assert (
        WatershedConfig(id_mode="blocks", boundary="distance").parameters()
        == WatershedConfig(id_mode="blocks").parameters()
    )


@pytest.mark.parametrize(
    ("table", "word"),
    [
        ('method = "mutex"\nid_mode = "seamless"', 'id_mode = "blocks"'),
        ('id_mode = "blocks"\nmutex_bias = [-0.5]', 'only with method = "mutex"'),
        ('id_mode = "blocks"\nremove_debris_vox = 5', "remove_debris_vox"),
        ('method = "mutex"\nid_mode = "blocks"\nmutex_strides = [[0, 1, 1]]', "mutex_strides"),
        ('method = "mutex"\nid_mode = "blocks"\nmutex_bias = [-1.5]', "mutex_bias"),
        ('method = "mutex"\nid_mode = "blocks"\nmutex_bias = [-0.5, -0.2]', "watershed.mutex_bias"),
    ],
)
def test_settings_that_do_not_fit_are_refused_before_anything_is_written(
    make_experiment: MakeExperiment, far_affs: NDArray[np.uint8], table: str, word: str
) -> None:
    experiment = make_experiment(far_affs, table, neighborhood=FAR)
    with pytest.raises(ConfigError) as caught:
        run(experiment)
    assert word in caught.value.message()
    assert not (experiment.layout.results / "watershed").exists()


def test_more_channels_than_offsets_are_refused(make_experiment: MakeExperiment, far_affs: NDArray[np.uint8]) -> None:
    experiment = make_experiment(far_affs, MUTEX, neighborhood=FAR)
    volume = open_volume(made(experiment.layout, "predict"), "volumes/affs")
    volume.array.attrs["neighborhood"] = [list(offset) for offset in FAR[:5]]
    del volume.array.attrs[ARRAY_SEAL]
    seal_array(made(experiment.layout, "predict") / "volumes/affs")
    problems = Watershed().validate(experiment)
    assert [type(problem) for problem in problems] == [BadData]
    assert "5 channels" in problems[0].message()
