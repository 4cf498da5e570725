"""The stage on blocks: any number of workers gives the same bits, and every id has a node."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from lsdflow_contract.arrays import AFFS, FRAGMENTS
from lsdflow_contract.errors import BadData, ConfigError, MissingInput
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_contract.geometry import Box, Geometry
from lsdflow_contract.graph import RagNodes
from lsdflow_contract.manifest import read_manifest
from lsdflow_contract.testing import made, same_partition
from lsdflow_runtime.io.volumes import OutputArray, open_volume
from lsdflow_runtime.store.rag_store import FilesRagStore
from lsdflow_watershed.config import WatershedConfig
from lsdflow_watershed.fragments import FragmentRules, extract_fragments, seeded_fragments
from lsdflow_watershed.ids import number_components, seed_ids
from lsdflow_watershed.stage import Watershed

MakeExperiment = Callable[..., Experiment]
BLOCKS = 'block_shape = "16, 16, 32 vox"\ncontext = "6, 7, 8 vox"'
PUBLISHED = BLOCKS + '\nid_mode = "blocks"'


def run(experiment: Experiment) -> None:
    Watershed().run(experiment)


def fragments_of(experiment: Experiment) -> NDArray[np.uint64]:
    volume = open_volume(made(experiment.layout, "watershed"), FRAGMENTS.dataset)
    return volume.read(volume.box)


def nodes_of(experiment: Experiment) -> RagNodes:
    key = read_manifest(experiment.layout, "watershed").key
    return RagNodes.concatenate(list(FilesRagStore(experiment.layout.store).iter_nodes(key)))


def test_daisy_workers_give_the_bits_of_the_serial_runner(
    make_experiment: MakeExperiment, affs: NDArray[np.uint8]
) -> None:
    serial = make_experiment(affs, BLOCKS, "serial", "serial")
    daisy = make_experiment(affs, BLOCKS, "daisy", "daisy")
    run(serial)
    run(daisy)
    assert np.array_equal(fragments_of(serial), fragments_of(daisy))
    for column in ("id", "center_nm", "size_vox"):
        assert np.array_equal(getattr(nodes_of(serial), column), getattr(nodes_of(daisy), column))
    assert read_manifest(serial.layout, "watershed").identity == read_manifest(daisy.layout, "watershed").identity


@pytest.mark.proves("WSD-01")
def test_every_block_equals_the_core_on_its_read_box(make_experiment: MakeExperiment, affs: NDArray[np.uint8]) -> None:
    """Slow reference: crop, compute, crop; sizes that are no multiple of the block."""
    experiment = make_experiment(affs, PUBLISHED)
    run(experiment)
    found = fragments_of(experiment)
    whole = Box((0, 0, 0), affs.shape[1:])
    number = 0
    for z in range(0, 30, 16):
        for y in range(0, 44, 16):
            for x in range(0, 52, 32):
                write = Box((z, y, x), (16, 16, 32)).intersect(whole)
                read = write.grow((6, 7, 8)).intersect(whole)
                made = extract_fragments(
                    np.ascontiguousarray(affs[(slice(None), *read.slices())]), None, FragmentRules()
                )
                local, count = number_components(made[write.slices(relative_to=read.begin_vox)])
                assert np.array_equal(found[write.slices()], local + np.uint64(number * 16 * 16 * 32))
                assert count > 0
                number += 1
    assert number == read_manifest(experiment.layout, "watershed").facts["blocks"]


@pytest.mark.parametrize(("table", "after"), [("", 1), ('boundary = "distance"', 0)])
def test_a_seamless_block_is_the_core_on_its_context_and_the_voxels_after_it(
    make_experiment: MakeExperiment, affs: NDArray[np.uint8], table: str, after: int
) -> None:
    experiment = make_experiment(affs, f"{BLOCKS}\n{table}")
    run(experiment)
    write = Box((0, 16, 0), (16, 16, 32))
    read = write.grow((6, 7, 8), (6 + after, 7 + after, 8 + after)).intersect(Box((0, 0, 0), (30, 44, 52)))
    rules = FragmentRules(boundary="affinity" if after else "distance")
    numbers, first = seeded_fragments(np.ascontiguousarray(affs[(slice(None), *read.slices())]), None, rules)
    ids = seed_ids(first, read, (30, 44, 52))[numbers[write.slices(relative_to=read.begin_vox)]]
    assert np.array_equal(fragments_of(experiment)[write.slices()], ids)


@pytest.mark.proves("WSD-01")
def test_every_id_has_one_node_with_its_size_and_centre(
    make_experiment: MakeExperiment, affs: NDArray[np.uint8]
) -> None:
    experiment = make_experiment(affs, PUBLISHED, voxel_size_nm=(40.0, 8.0, 8.0))
    run(experiment)
    nodes = nodes_of(experiment)
    ids, sizes = np.unique(fragments_of(experiment), return_counts=True)
    assert np.array_equal(nodes.id, ids[ids > 0])
    assert np.array_equal(nodes.size_vox, sizes[ids > 0])
    some = nodes.id[len(nodes) // 2]
    voxels = np.argwhere(fragments_of(experiment) == some)
    wanted = np.array((100.0, 0.0, 40.0)) + voxels.mean(axis=0) * (40.0, 8.0, 8.0)
    np.testing.assert_allclose(nodes.center_nm[len(nodes) // 2], wanted)


def test_a_volume_smaller_than_a_block_is_one_block(make_experiment: MakeExperiment, affs: NDArray[np.uint8]) -> None:
    experiment = make_experiment(affs, 'block_shape = "128 vox"')
    run(experiment)
    assert read_manifest(experiment.layout, "watershed").facts["blocks"] == 1
    assert same_partition(fragments_of(experiment), seeded_fragments(affs, None, FragmentRules())[0])


def test_predicted_part_of_a_target_is_where_it_was_predicted(
    make_experiment: MakeExperiment, affs: NDArray[np.uint8]
) -> None:
    experiment = make_experiment(affs, PUBLISHED, begin_vox=(3, 5, 7), target_vox=(60, 60, 70))
    run(experiment)
    volume = open_volume(made(experiment.layout, "watershed"), FRAGMENTS.dataset)
    assert volume.geometry.offset_nm == (130.0, 50.0, 110.0)
    assert volume.geometry.shape_vox == affs.shape[1:]
    same_cut = make_experiment(affs, PUBLISHED, name="at-origin")
    run(same_cut)
    assert np.array_equal(fragments_of(experiment), fragments_of(same_cut))


def test_empty_blocks_are_done_blocks_with_zero_rows(make_experiment: MakeExperiment, affs: NDArray[np.uint8]) -> None:
    """Lineage bug: done meant `has any node`, so an empty block was never done."""
    affs[:, :, :32] = 0
    experiment = make_experiment(affs, BLOCKS + "\nfilter_fragments = 0.3")
    run(experiment)
    key = read_manifest(experiment.layout, "watershed").key
    rows = [len(nodes) for nodes in FilesRagStore(experiment.layout.store).iter_nodes(key)]
    assert len(rows) == 12
    assert rows[:2] == [0, 0]
    assert not fragments_of(experiment)[:, :16].any()
    assert len(nodes_of(experiment)) > 0
    run(experiment)
    assert Watershed().status(experiment)["finished"]


@pytest.mark.proves("WSD-10")
def test_a_finished_run_does_no_block_again(make_experiment: MakeExperiment, affs: NDArray[np.uint8]) -> None:
    experiment = make_experiment(affs, BLOCKS)
    run(experiment)
    before = sorted((p, p.stat().st_mtime_ns) for p in made(experiment.layout, "watershed").rglob("*"))
    run(experiment)
    assert sorted((p, p.stat().st_mtime_ns) for p in made(experiment.layout, "watershed").rglob("*")) == before


@pytest.mark.parametrize(
    "change",
    [
        "context = '5 vox'",
        "boundary = 'distance'",
        "min_seed_distance_vox = 6",
        "filter_fragments = 0.1",
        "id_mode = 'blocks'",
    ],
)
def test_other_parameters_are_never_mixed_in(
    make_experiment: MakeExperiment, affs: NDArray[np.uint8], change: str
) -> None:
    experiment = make_experiment(affs[:, :8, :16, :16].copy(), 'block_shape = "16 vox"')
    run(experiment)
    first = read_manifest(experiment.layout, "watershed")
    before = {p: p.stat().st_mtime_ns for p in made(experiment.layout, "watershed").rglob("*")}
    run(load_experiment(experiment.path, [f"watershed.{change}"]))
    other = read_manifest(experiment.layout, "watershed")
    assert other.outputs["fragments"] != first.outputs["fragments"]
    assert {p: p.stat().st_mtime_ns for p in before} == before
    run(experiment)
    assert read_manifest(experiment.layout, "watershed") == first


def write_mask(experiment: Experiment, mask: NDArray[np.uint8], begin_vox: tuple[int, int, int]) -> None:
    grid = Geometry((10.0, 10.0, 10.0), (100.0, 0.0, 40.0), (30, 44, 52))
    z, y, x = mask.shape
    box = Box(begin_vox, (z, y, x))
    spec = type(AFFS)("volumes/labels/mask", "uint8", 0, "mask")
    output = OutputArray(experiment.layout.root / "mask.zarr", spec, grid, box, box.shape_vox)
    output.create({"key": "mask"})
    output.open().write(box, mask)


@pytest.mark.proves("WSD-05")
def test_no_fragments_where_the_mask_is_zero_or_ends(make_experiment: MakeExperiment, affs: NDArray[np.uint8]) -> None:
    experiment = make_experiment(affs, BLOCKS + '\nmask_file = "mask.zarr"')
    mask = np.full((20, 44, 40), 3, np.uint8)
    mask[5:9] = 0
    write_mask(experiment, mask, (10, 0, 0))
    run(experiment)
    inside = np.zeros((30, 44, 52), bool)
    inside[10:30, :, :40] = mask > 0
    assert np.array_equal(fragments_of(experiment) > 0, inside)


def test_a_copy_of_a_mask_is_the_same_mask_and_a_changed_voxel_makes_another(
    make_experiment: MakeExperiment, affs: NDArray[np.uint8]
) -> None:
    experiment = make_experiment(affs, BLOCKS + '\nmask_file = "mask.zarr"')
    mask = np.full((20, 44, 40), 1, np.uint8)
    write_mask(experiment, mask, (10, 0, 0))
    run(experiment)
    path = experiment.layout.root / "mask.zarr"
    shutil.copytree(path, path.with_name("copy.zarr"), copy_function=shutil.copyfile)  # with times of change of its own
    shutil.rmtree(path)
    path.with_name("copy.zarr").rename(path)
    assert Watershed().validate(experiment) == []
    run(experiment)
    shutil.rmtree(path)
    mask[3, 3, 3] = 0
    write_mask(experiment, mask, (10, 0, 0))
    key = read_manifest(experiment.layout, "watershed").key
    run(experiment)
    assert read_manifest(experiment.layout, "watershed").key != key


@pytest.mark.proves("WSD-07")
def test_bad_sections_are_counted_on_the_target_in_every_block(
    make_experiment: MakeExperiment, affs: NDArray[np.uint8]
) -> None:
    table = BLOCKS + "\nreplace_sections = [6, 18, 19]"
    experiment = make_experiment(affs, table, begin_vox=(3, 0, 0), target_vox=(40, 44, 52))
    run(experiment)
    empty = np.flatnonzero(~fragments_of(experiment).any(axis=(1, 2)))
    assert empty.tolist() == [3, 15, 16]


def test_predict_must_have_finished(make_experiment: MakeExperiment, affs: NDArray[np.uint8]) -> None:
    experiment = make_experiment(affs)
    experiment.layout.manifest("predict").unlink()
    with pytest.raises(MissingInput, match="predict"):
        run(experiment)
    assert not (experiment.layout.results / "watershed").exists()


def test_affinities_below_another_name_are_reported_by_that_name(
    make_experiment: MakeExperiment, affs: NDArray[np.uint8]
) -> None:
    """Lineage bug: a fallback to `<dataset>/s0` stored it under another name, and the next line failed."""
    experiment = make_experiment(affs)
    container = made(experiment.layout, "predict")
    shutil.move(container / AFFS.dataset, container / "moved")
    shutil.move(container / "moved", container / AFFS.dataset / "s0")
    with pytest.raises(MissingInput) as caught:
        run(experiment)
    assert "volumes/affs/s0" in caught.value.message()


def test_affinities_of_another_form_are_refused(make_experiment: MakeExperiment, affs: NDArray[np.uint8]) -> None:
    experiment = make_experiment(affs)
    manifest = read_manifest(experiment.layout, "predict")
    manifest.model_copy(update={"outputs": {}}).write(experiment.layout)
    with pytest.raises(MissingInput, match="predict left no affs"):
        run(experiment)
    raw = "data/target.zarr/volumes/raw"
    manifest.model_copy(update={"outputs": {"affs": raw}}).write(experiment.layout)
    with pytest.raises((BadData, MissingInput)):
        run(experiment)


@pytest.mark.parametrize(
    ("table", "word"),
    [
        ('block_shape = "25 nm"', "block_shape"),
        ('block_shape = "0 vox"', "block"),
        ('context = "-1 vox"', "context"),
        ('id_mode = "blocks"\nblock_shape = "2100000 vox"\ncontext = "0 vox"', "2^63"),
        ('block_shape = "2000 vox"', "too large"),
        ("replace_sections = [30]", "replace_sections"),
        ('mask_file = "nowhere.zarr"', "nowhere"),
    ],
)
def test_wrong_settings_are_found_by_validate_and_refused_before_anything_is_written(
    make_experiment: MakeExperiment, affs: NDArray[np.uint8], table: str, word: str
) -> None:
    experiment = make_experiment(affs, table)
    problems = Watershed().validate(experiment)
    assert len(problems) == 1
    assert word in problems[0].message()
    with pytest.raises((ConfigError, MissingInput)):
        run(experiment)
    assert not (experiment.layout.results / "watershed").exists()


def test_validate_is_silent_on_a_good_experiment_before_and_after_prepare(
    make_experiment: MakeExperiment, affs: NDArray[np.uint8]
) -> None:
    experiment = make_experiment(affs, BLOCKS)
    assert Watershed().validate(experiment) == []
    experiment.layout.manifest("predict").unlink()
    assert Watershed().validate(experiment) == []
    shutil.rmtree(experiment.layout.target_volume)
    assert Watershed().validate(experiment) == []


def test_plan_counts_blocks(make_experiment: MakeExperiment, affs: NDArray[np.uint8]) -> None:
    facts = Watershed().plan(make_experiment(affs, BLOCKS))
    assert facts["blocks"] == 2 * 3 * 2
    assert facts["bytes_out_uncompressed"] == 30 * 44 * 52 * 8


def test_the_schema_shows_defaults_as_they_are_written_in_the_file() -> None:
    defaults = {name: p.get("default") for name, p in WatershedConfig.model_json_schema()["properties"].items()}
    assert defaults["block_shape"] == str(WatershedConfig().block_shape) == "256 vox"
    assert WatershedConfig.model_validate(defaults) == WatershedConfig()
