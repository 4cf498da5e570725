"""lsdflow results, use and clean: an earlier result can be made current again; the others can be dropped."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zarr
from predicted_experiment import make_predicted
from typer.testing import CliRunner

from lsdflow_command import lock_file
from lsdflow_command.lock_file import Holder, LockFile
from lsdflow_contract import files
from lsdflow_contract.checkpoint import BestCheckpoint, read_best, write_best
from lsdflow_contract.errors import MissingInput, OutputConflict, StoreUnreachable, UsageError
from lsdflow_contract.experiment import STAGES, TRAININGS, Experiment, load_experiment
from lsdflow_contract.hashing import hash_of
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import Manifest, Writer, read_manifest
from lsdflow_contract.testing import membrane_raw, tables_of, voronoi_labels
from lsdflow_contract.trainings import make_current, training_outputs
from lsdflow_launch import results
from lsdflow_launch.cli import app
from lsdflow_launch.disk import disk_use
from lsdflow_launch.results import drop, results_of, use
from lsdflow_launch.sweep.folder import link_stages

FIRST, SECOND = "watershed.min_seed_distance_vox=5", "watershed.min_seed_distance_vox=6"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two watersheds beside each other; the second is current."""
    from lsdflow_watershed.stage import Watershed

    folder = tmp_path_factory.mktemp("results") / "exp"
    make_predicted(folder)
    for settings in (FIRST, SECOND):
        Watershed().run(load_experiment(folder, [settings]))
    return folder


@pytest.fixture
def experiment(made: Path, tmp_path: Path) -> Experiment:
    shutil.copytree(made, tmp_path / "exp")
    return load_experiment(tmp_path / "exp")


def test_results_say_which_is_current_and_what_differs(experiment: Experiment) -> None:
    first, second = results_of(experiment.layout)
    assert (first.stage, first.current, first.finished) == ("watershed", False, True)
    assert (second.current, second.differs) == (True, "")
    assert first.differs == "min_seed_distance_vox 6 -> 5"
    assert first.size_bytes > 1000
    assert first.containers == ("fragments.zarr",)
    done = CliRunner().invoke(app, ["results", str(experiment.layout.root)])
    assert done.exit_code == 0
    heading, *lines = done.stdout.splitlines()
    assert heading.split()[:3] == ["stage", "key", "state"]
    assert [line.split()[:3] for line in lines] == [
        ["watershed", first.key, "finished"],
        ["watershed", second.key, "current"],
    ]
    assert all("  fragments.zarr" in line for line in lines)


@pytest.mark.proves("NEW-01")
def test_an_earlier_result_is_made_current_and_verified(experiment: Experiment) -> None:
    from lsdflow_watershed.stage import Watershed

    first, second = results_of(experiment.layout)
    before = read_manifest(experiment.layout, "watershed")
    use(experiment.layout, "watershed", first.key[:5])
    assert [result.current for result in results_of(experiment.layout)] == [True, False]
    assert Watershed().verify(load_experiment(experiment.path, [FIRST]))["verified"]
    use(experiment.layout, "watershed", second.key)
    assert read_manifest(experiment.layout, "watershed") == before
    with pytest.raises(MissingInput, match="no finished result"):
        use(experiment.layout, "watershed", "nothing")


def test_use_names_the_stage_after_it_as_the_next_step(experiment: Experiment) -> None:
    """From the stage itself, the settings of the experiment file would make another result current."""
    first, _ = results_of(experiment.layout)
    folder = str(experiment.layout.root)
    done = CliRunner().invoke(app, ["use", folder, "watershed", first.key, "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["next"] == f"lsdflow run {folder} --from agglomerate"
    assert "experiment.toml is not changed" in CliRunner().invoke(app, ["use", folder, "watershed", first.key]).stdout


def test_use_of_an_unknown_stage_is_refused(experiment: Experiment) -> None:
    folder = str(experiment.layout.root)
    with pytest.raises(UsageError, match="no stage 'watersed'") as raised:
        use(experiment.layout, "watersed", "abc")
    assert "did you mean 'watershed'" in raised.value.fix
    done = CliRunner().invoke(app, ["use", folder, "watersed", "abc"])
    assert done.exit_code == 2


def test_clean_drops_what_is_not_current_and_leaves_nothing_that_is_believed(experiment: Experiment) -> None:
    from lsdflow_watershed.stage import Watershed

    first, second = results_of(experiment.layout)
    refused = CliRunner().invoke(app, ["clean", str(experiment.layout.root)], input="n\n")
    assert (refused.exit_code, len(results_of(experiment.layout))) == (0, 2)
    done = CliRunner().invoke(app, ["clean", str(experiment.layout.root), "--yes", "--json"])
    assert [result["key"] for result in json.loads(done.stdout)["results"]] == [first.key]
    assert [result.key for result in results_of(experiment.layout)] == [second.key]
    assert list((experiment.layout.store / "blocks" / "watershed").glob(f"{first.key}*")) == []
    assert list((experiment.layout.store / "nodes").glob(f"{first.key}*")) == []
    assert Watershed().verify(load_experiment(experiment.path, [SECOND]))["verified"]
    again = Watershed()
    again.run(load_experiment(experiment.path, [FIRST]))
    assert again.verify(load_experiment(experiment.path, [FIRST]))["verified"]


def test_clean_drops_the_tables_of_a_graph_that_no_other_result_has(experiment: Experiment) -> None:
    from lsdflow_agglomerate.stage import Agglomerate
    from lsdflow_segment.stage import Segment

    layout = experiment.layout
    folders = []
    for settings in (["segment.threshold=0.2"], ["segment.threshold=0.3"], ['agglomerate.merge_functions=["mean"]']):
        changed = load_experiment(experiment.path, [SECOND, *settings])
        Agglomerate().run(changed)
        Segment().run(changed)
        folders.append(tables_of(layout))
    assert folders[0] == folders[1] != folders[2]
    first, second, third = [result for result in results_of(layout) if result.stage == "segment"]
    drop(experiment, [second])
    assert folders[0].is_dir(), "the first result has the same tables"
    drop(experiment, [first])
    assert [folder.exists() for folder in folders] == [False, False, True]
    assert third.size_bytes > disk_use([folders[2]]).size_bytes > 0


def test_a_stage_at_work_loses_nothing(experiment: Experiment) -> None:
    first, _ = results_of(experiment.layout)
    lock = LockFile(experiment.layout.stage_runs("watershed") / "lock")
    lock.path.write_text(json.dumps(Holder("id", "elsewhere", 1).__dict__))
    with pytest.raises(OutputConflict, match="at work"):
        drop(experiment, [first])
    assert len(results_of(experiment.layout)) == 2


def test_an_earlier_volume_is_made_current_again_and_dropped_when_it_is_not(tmp_path: Path) -> None:
    from lsdflow_prepare.stage import Prepare

    make_volume(tmp_path / "raw.zarr")
    (tmp_path / "exp").mkdir()
    (tmp_path / "exp" / "experiment.toml").write_text('[prepare.target]\nraw = "../raw.zarr"\n')
    found = []
    for settings in ([], ["prepare.target.raw_range=[0, 100]"]):
        Prepare().run(load_experiment(tmp_path / "exp", settings))
        found.append(read_manifest(load_experiment(tmp_path / "exp").layout, "prepare"))
    first, second = found
    experiment = load_experiment(tmp_path / "exp")
    assert sum(result.current for result in results_of(experiment.layout)) == 2, "the volume, and its manifest"
    use(experiment.layout, "prepare", first.key[:8])
    assert experiment.layout.target_volume == experiment.layout.root / first.outputs["target"]
    Prepare().run(experiment)
    assert read_manifest(experiment.layout, "prepare") == first
    drop(experiment, [result for result in results_of(experiment.layout) if not result.current])
    assert not (experiment.layout.root / second.outputs["target"]).exists()
    assert Prepare().verify(experiment)["verified"]


def make_volume(path: Path) -> None:
    """Grey values, 8 nm."""
    array = zarr.create_array(path / "volumes/raw", shape=(32, 32, 32), dtype="uint8", zarr_format=2)
    array[:] = membrane_raw(voronoi_labels((32, 32, 32), 4))
    array.attrs.update({"resolution": [8, 8, 8], "offset": [0, 0, 0]})


def _trained(layout: ExperimentLayout, stage: str, key: str, weights: str, lsd: str = "") -> None:
    """A finished training, which is the current one."""
    make_current(layout, stage, key)
    write_best(layout.best_checkpoint(stage), BestCheckpoint(iteration=1, weights_sha256=weights))
    Manifest(
        writer=Writer.of(stage),
        key=key,
        config={},
        inputs={"lsd_weights": lsd} if lsd else {},
        outputs=training_outputs(layout, stage, key),
        identity=hash_of({"key": key, "weights": weights}),
    ).write(layout)


@pytest.fixture
def trained(tmp_path: Path) -> Experiment:
    """Two affinity networks, each with its own LSD network; the second of both is current."""
    (tmp_path / "trained").mkdir()
    (tmp_path / "trained" / "experiment.toml").write_text('[experiment]\nmode = "acrlsd"\n')
    experiment = load_experiment(tmp_path / "trained")
    for number in "12":
        _trained(experiment.layout, "train-lsd", f"{number}aaaaaaaaaaa", f"lsd {number}")
        _trained(experiment.layout, "train-acrlsd", f"{number}bbbbbbbbbbb", f"affs {number}", f"lsd {number}")
    return experiment


def test_an_earlier_network_is_made_current_together_with_its_lsd_network(trained: Experiment) -> None:
    layout = trained.layout
    done = CliRunner().invoke(app, ["use", str(layout.root), "train-acrlsd", "1"])
    assert done.exit_code == 0, done.output
    assert "train-lsd: 1aaaaaaa is current" in done.stdout
    assert read_best(layout.best_checkpoint("train-acrlsd")).weights_sha256 == "affs 1"
    assert read_best(layout.best_checkpoint("train-lsd")).weights_sha256 == "lsd 1"
    assert [read_manifest(layout, stage).key[0] for stage in TRAININGS] == ["1", "1"]
    assert [r.key for r in results_of(layout) if r.current] == ["1aaaaaaa", "1bbbbbbb"]


def test_clean_keeps_the_lsd_network_of_the_current_network_and_an_unfinished_training(trained: Experiment) -> None:
    layout = trained.layout
    use(layout, "train-lsd", "1")
    assert [r.key for r in results_of(layout) if r.current] == ["1aaaaaaa", "2aaaaaaa", "2bbbbbbb"]
    make_current(layout, "train-acrlsd", "3bbbbbbbbbbb")
    assert not layout.manifest("train-acrlsd").exists()
    assert CliRunner().invoke(app, ["clean", str(layout.root), "--yes"]).exit_code == 0
    assert sorted(path.name for path in layout.results.glob("*/*")) == ["1aaaaaaa", "3bbbbbbb"]


@pytest.mark.parametrize(("answer", "code"), [("", 2), ("n\n", 0), ("y\n", 0)])
def test_clean_asks_first_and_without_an_answer_nothing_is_dropped(trained: Experiment, answer: str, code: int) -> None:
    before = len(results_of(trained.layout))
    done = CliRunner().invoke(app, ["clean", str(trained.layout.root)], input=answer)
    assert done.exit_code == code, done.output
    assert "drop 2 results" in done.output
    assert ("use --yes" in done.output) == (code == 2)
    assert len(results_of(trained.layout)) == (before - 2 if answer == "y\n" else before)


def test_clean_in_a_run_of_a_sweep_removes_links_and_nothing_of_the_other_experiment(
    experiment: Experiment, trained: Experiment, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "experiment.toml").write_text("")
    for source in (experiment, trained):
        stages = [stage for stage in STAGES if source.layout.manifest(stage).exists()]
        link_stages(stages, source.layout.root, tmp_path / "run")
    run = load_experiment(tmp_path / "run")
    assert read_best(run.layout.best_checkpoint("train-acrlsd")).weights_sha256 == "affs 2"
    make_current(run.layout, "train-lsd", "3aaaaaaaaaaa")
    make_current(run.layout, "train-acrlsd", "3bbbbbbbbbbb")
    run.layout.manifest("watershed").unlink()

    def files() -> dict[str, bytes]:
        roots = (experiment.layout.root, trained.layout.root)
        return {str(path): path.read_bytes() for root in roots for path in root.rglob("*") if path.is_file()}

    before = files()
    dropped = [result for result in results_of(run.layout) if not result.current]
    assert {result.stage for result in dropped} >= {"train-lsd", "train-acrlsd", "watershed"}
    drop(run, dropped)
    assert files() == before
    assert not [result for result in results_of(run.layout) if not result.current]


@pytest.mark.parametrize("change", ["drop", "use"])
def test_on_a_machine_whose_clock_is_ahead_nothing_changes_while_a_stage_or_a_chain_is_at_work_elsewhere(
    trained: Experiment, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout, ahead = trained.layout, SimpleNamespace(time=lambda: time.time() + 120, sleep=time.sleep)
    earlier = [result for result in results_of(layout) if not result.current]
    for module in (files, lock_file, results):
        monkeypatch.setattr(module, "time", ahead)
    locks = [layout.stage_runs("train-lsd") / "lock", layout.stage_runs("watershed") / "lock", layout.runs / "lock"]
    for lock in locks:
        lock.parent.mkdir(parents=True, exist_ok=True)
        lock.write_text(json.dumps(Holder("id", "elsewhere", 1).__dict__))
        with pytest.raises(OutputConflict, match="work"):
            drop(trained, earlier) if change == "drop" else use(layout, "train-lsd", "1")
        lock.unlink()
    assert [result for result in results_of(layout) if not result.current] == earlier
    assert drop(trained, earlier) == earlier


def test_clean_keeps_a_result_that_has_become_current_since_it_was_listed(trained: Experiment) -> None:
    listed = [result for result in results_of(trained.layout) if not result.current]
    use(trained.layout, "train-acrlsd", "1")
    assert drop(trained, listed) == []
    assert len(results_of(trained.layout)) == 4


@pytest.fixture
def in_a_database(mongod: Any, tmp_path: Path) -> Experiment:
    """The same two watersheds with their marks and rows in a MongoDB."""
    from lsdflow_watershed.stage import Watershed

    folder, database = tmp_path / "exp", tmp_path.name[:60]
    make_predicted(folder)
    uri_file = mongod.uri_file(database, tmp_path)
    with (folder / "experiment.toml").open("a") as file:
        file.write(f'\n[store]\nengine = "mongo"\ndatabase = "{database}"\nuri_file = "{uri_file}"\n')
    for settings in (FIRST, SECOND):
        Watershed().run(load_experiment(folder, [settings]))
    return load_experiment(folder)


def keys_in(mongod: Any, database: str) -> list[set[str]]:
    """The first characters of the keys in the collections of watershed and in those that only lsdflow reads."""
    with mongod.admin() as client:
        names = ("nodes", "blocks_extracted", "lsdflow_rows", "lsdflow")
        return [{key[:8] for key in client[database][name].distinct("key")} for name in names]


def test_clean_drops_rows_in_a_database(mongod: Any, in_a_database: Experiment) -> None:
    from lsdflow_watershed.stage import Watershed

    layout, database = in_a_database.layout, in_a_database.store.database
    first, second = results_of(layout)
    assert keys_in(mongod, database) == [{first.key, second.key}] * 4
    done = CliRunner().invoke(app, ["clean", str(layout.root), "--yes"])
    assert done.exit_code == 0, done.output
    assert keys_in(mongod, database) == [{second.key}] * 4
    assert [result.key for result in results_of(layout)] == [second.key]
    assert Watershed().verify(load_experiment(in_a_database.path, [SECOND]))["verified"]


def test_a_database_that_does_not_answer_is_the_error_of_clean(mongod: Any, in_a_database: Experiment) -> None:
    """The arrays of the result stay, so that the same command finds and drops it later."""
    layout = in_a_database.layout
    before = results_of(layout)
    path = in_a_database.path
    path.write_text(path.read_text() + "retry_s = 0.1\n")
    in_a_database.resolve(in_a_database.store.uri_file or "").write_text("mongodb://a:b@127.0.0.1:9/?authSource=x\n")
    done = CliRunner().invoke(app, ["clean", str(layout.root), "--yes"])
    assert done.exit_code == StoreUnreachable.exit_code, done.output
    after = {result.key: result.finished for result in results_of(layout)}
    assert after == {before[0].key: False, before[1].key: True}
