"""`lsdflow migrate` moves an experiment of contract 1, and no block of it is computed again."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from lsdflow_agglomerate.stage import Agglomerate
from lsdflow_contract.arrays import LABELS, RAW
from lsdflow_contract.checkpoint import BUNDLE_JSON, Bundle, UNetSpec, bundle_folder
from lsdflow_contract.errors import MissingInput, OutputConflict
from lsdflow_contract.experiment import STAGES as EXPERIMENT_STAGES
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_contract.geometry import Geometry
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import Manifest, Writer, read_kept_manifest, read_manifest
from lsdflow_contract.testing import made, voronoi_labels
from lsdflow_contract.trainings import TRAININGS
from lsdflow_launch.cli import app
from lsdflow_launch.migrate import migrate
from lsdflow_launch.results import results_of
from lsdflow_prepare.stage import Prepare
from lsdflow_runtime.io.volumes import OutputArray, open_volume
from lsdflow_segment.stage import Segment
from lsdflow_watershed.stage import Watershed

ARCHIVES = sorted((Path(__file__).resolve().parents[1] / "data" / "archives").glob("contract-1.*.tar.gz"))
STAGES = {"watershed": Watershed(), "agglomerate": Agglomerate(), "segment": Segment()}


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.gz"))
def archived(request: pytest.FixtureRequest, tmp_path: Path) -> Experiment:
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path / "old", filter="data")
    said = "id_mode" in (tmp_path / "old" / "experiment.toml").read_text()
    return load_experiment(tmp_path / "old", [] if said else ['watershed.id_mode="blocks"'])


def _voxels(experiment: Experiment) -> np.ndarray:
    volume = open_volume(made(experiment.layout, "segment"), "volumes/segmentation")
    return volume.read(volume.box)


def _identities(experiment: Experiment) -> dict[str, tuple[str, str]]:
    finished = [stage for stage in EXPERIMENT_STAGES if experiment.layout.manifest(stage).exists()]
    manifests = [read_manifest(experiment.layout, stage) for stage in finished]
    return {manifest.writer.stage: (manifest.key, manifest.identity) for manifest in manifests}


def _assert_whole(experiment: Experiment, before: tuple[dict[str, tuple[str, str]], np.ndarray]) -> None:
    layout = experiment.layout
    assert _identities(experiment) == before[0]
    assert np.array_equal(_voxels(experiment), before[1])
    assert {path.name for path in layout.root.iterdir()}.isdisjoint(
        {"predictions", "fragments.zarr", "segmentation.zarr"}
    )
    for name, stage in STAGES.items():
        kept = layout.manifest(name).read_bytes()
        assert stage.verify(experiment)["verified"]
        stage.run(experiment)
        assert layout.manifest(name).read_bytes() == kept, "a block was computed again"
    assert {result.stage for result in results_of(layout) if result.current} >= set(STAGES)


def test_every_stage_of_a_moved_experiment_is_verified_and_not_done_again(archived: Experiment) -> None:
    before = _identities(archived), _voxels(archived)
    done = CliRunner().invoke(app, ["migrate", str(archived.layout.root), "--json"])
    assert done.exit_code == 0, done.output
    assert "fragments.zarr/volumes/fragments" in json.loads(done.stdout)["moved"]
    _assert_whole(archived, before)
    assert migrate(archived.layout) == {}


@contextmanager
def _interrupted_at(monkeypatch: pytest.MonkeyPatch, step: int) -> Iterator[None]:
    """Ctrl-C at the rename of that number."""
    left = [step]
    with monkeypatch.context() as patch:
        for name in ("rename", "replace"):
            inner = getattr(Path, name)

            def interrupted(self: Path, target: Path, inner=inner) -> Path:
                left[0] -= 1
                if left[0] < 0:
                    raise KeyboardInterrupt
                return inner(self, target)

            patch.setattr(Path, name, interrupted)
        yield


@pytest.mark.parametrize("step", range(6))
def test_interrupted_at_any_step_the_same_command_moves_the_rest(
    archived: Experiment, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    before = _identities(archived), _voxels(archived)
    with _interrupted_at(monkeypatch, step), pytest.raises(KeyboardInterrupt):
        migrate(archived.layout)
    migrate(archived.layout)
    _assert_whole(archived, before)


def test_a_container_that_is_a_link_to_other_storage_is_still_found(archived: Experiment, tmp_path: Path) -> None:
    before, container = (_identities(archived), _voxels(archived)), archived.layout.root / "segmentation.zarr"
    container.rename(tmp_path / "storage.zarr")
    container.symlink_to(Path("..") / "storage.zarr")
    migrate(archived.layout)
    assert (tmp_path / "storage.zarr").is_dir()
    _assert_whole(archived, before)


def test_nothing_is_moved_while_a_stage_is_at_work(archived: Experiment) -> None:
    lease = archived.layout.stage_runs("segment") / "lease"
    lease.parent.mkdir(parents=True, exist_ok=True)
    lease.write_text(json.dumps({"token": "x", "host": "elsewhere", "pid": os.getpid()}))
    with pytest.raises(OutputConflict, match="segment is at work"):
        migrate(archived.layout)
    assert (archived.layout.root / "fragments.zarr").is_dir()


def test_a_container_that_is_gone_is_an_error(archived: Experiment) -> None:
    (archived.layout.root / "segmentation.zarr").rename(archived.layout.root / "elsewhere")
    with pytest.raises(MissingInput, match="not there"):
        migrate(archived.layout)


def test_prepared_volumes_are_moved_and_not_prepared_again(tmp_path: Path) -> None:
    grid = Geometry((10.0, 5.5, 5.5), (20.0, 0.0, 0.0), (18, 16, 11))
    raw = np.random.default_rng(0).integers(0, 256, grid.shape_vox).astype(np.uint8)
    for spec, values in ((RAW, raw), (LABELS, voronoi_labels(grid.shape_vox, 3))):
        source = OutputArray(tmp_path / "source.zarr", spec, grid, grid.box, (8, 8, 8))
        source.create({"key": "source"})
        source.open().write(grid.box, values)
    (tmp_path / "experiment.toml").write_text(
        '[prepare.target]\nraw = "source.zarr"\n[[prepare.training]]\nname = "a"\nraw = "source.zarr"\n'
    )
    experiment = load_experiment(tmp_path, [])
    layout, prepare = experiment.layout, Prepare()
    prepare.run(experiment)
    manifest = read_manifest(layout, "prepare")
    outputs = {"target": "data/target.zarr", "training/a": "data/training/a.zarr"}
    for label, place in outputs.items():
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / manifest.outputs[label]).rename(tmp_path / place)
    shutil.rmtree(layout.results)
    manifest.model_copy(update={"outputs": outputs, "contract": "1.8.0"}).write(layout)

    assert set(migrate(layout)) == set(outputs.values())
    kept = layout.manifest("prepare").read_bytes()
    assert read_manifest(layout, "prepare").outputs == manifest.outputs
    assert not layout.data.exists()
    assert prepare.verify(experiment)["verified"]
    prepare.run(experiment)
    assert layout.manifest("prepare").read_bytes() == kept


TRAINED_BEFORE = {"checkpoints": "train/train-lsd/checkpoints", "best": "train/train-lsd/best.json"}


@pytest.mark.parametrize("step", range(4))
def test_a_training_is_moved_and_linked_also_after_an_interruption_at_any_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    layout = ExperimentLayout(tmp_path)
    layout.checkpoints("train-lsd").mkdir(parents=True)
    (layout.train_dir("train-lsd") / "best.json").write_text("{}")
    manifest = Manifest(writer=Writer.of("train-lsd"), key="5b0e77aa00", config={}, inputs={}, outputs={}, identity="i")
    manifest.model_copy(update={"outputs": TRAINED_BEFORE, "contract": "1.8.0"}).write(layout)
    with _interrupted_at(monkeypatch, step), suppress(KeyboardInterrupt):
        migrate(layout)
    migrate(layout)
    assert layout.train_dir("train-lsd").readlink() == Path("../results/train-lsd/5b0e77aa")
    assert layout.best_checkpoint("train-lsd").read_text() == "{}"
    moved = read_manifest(layout, "train-lsd")
    assert (moved.key, moved.identity) == ("5b0e77aa00", "i")
    assert all((tmp_path / path).exists() for path in moved.outputs.values())
    assert read_kept_manifest(layout, "train-lsd", moved.key) == moved
    assert migrate(layout) == {}


def test_an_unfinished_training_is_moved_if_a_checkpoint_says_which_it_is_and_else_stays(tmp_path: Path) -> None:
    layout = ExperimentLayout(tmp_path)
    for stage in TRAININGS:
        layout.checkpoints(stage).mkdir(parents=True)
        (layout.train_dir(stage) / "loss.csv").write_text("iteration\n")
    folder = bundle_folder(layout.checkpoints("train-lsd"), 5)
    folder.mkdir()
    shapes = ("train_input", "train_output", "predict_input", "predict_output")
    bundle = Bundle(
        writer=Writer.of("train-lsd"),
        kind="lsd",
        iteration=5,
        unet=UNetSpec(in_channels=1, num_fmaps=1, fmap_inc_factor=1, downsample_factors=()),
        outputs={"lsds": 10},
        voxel_size_nm=(8.0, 8.0, 8.0),
        training_key="5b0e77aa00",
        **{f"{shape}_shape_vox": (8, 8, 8) for shape in shapes},
    )
    (folder / BUNDLE_JSON).write_text(bundle.model_dump_json())
    assert migrate(layout) == {"train/train-lsd": "results/train-lsd/5b0e77aa"}
    assert (layout.result("train-lsd", "5b0e77aa00") / "loss.csv").exists()
    assert layout.train_dir("train-lsd").is_symlink()
    assert layout.train_dir("train-acrlsd").is_dir()
    assert not layout.train_dir("train-acrlsd").is_symlink()
    assert not (layout.results / "train-acrlsd").exists()
