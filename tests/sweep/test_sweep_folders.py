"""The folders of a sweep: an experiment for every run, what no axis changes in one place, paths that lead there."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from lsdflow_contract.errors import MissingInput, OutputConflict
from lsdflow_contract.experiment import STAGES, load_experiment, stages_of_mode
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import Manifest, Writer
from lsdflow_launch.sweep.check import require_fresh_base
from lsdflow_launch.sweep.file import Sweep, load_sweep
from lsdflow_launch.sweep.folder import SweepFolder, link_stages, open_stages, open_sweep, write_folders
from lsdflow_launch.sweep.run import SweepRunner, prepare_volumes

from .conftest import VOLUME, FakeStages

Write = Callable[[str], Path]
TWO_LEVELS = "[axes]\n'segment.threshold' = [0.2, 0.4]\n'watershed.min_seed_distance_vox' = [4, 6]\n"


def prepared(path: Path) -> tuple[Sweep, SweepFolder]:
    sweep = load_sweep(path)
    return sweep, write_folders(sweep, sweep.default_folder)


@pytest.mark.proves("SWP-04")
def test_every_run_is_an_experiment_of_its_own_with_its_values(sweep_file: Write) -> None:
    _, made = prepared(sweep_file(TWO_LEVELS))
    folders = [made.run_folder(run) for run in made.plan.runs]
    assert len(set(folders)) == 4
    for run, folder in zip(made.plan.runs, folders, strict=True):
        tables = load_experiment(folder).tables
        assert tables["segment"] == {"thresholds_step": 0.1, "threshold": float(run.at["segment.threshold"])}
        distance = int(run.at["watershed.min_seed_distance_vox"])
        assert tables["watershed"] == {"block_shape": "16 vox", "context": "6 vox", "min_seed_distance_vox": distance}
        assert tables["experiment"]["name"] == folder.name
        assert load_experiment(folder).resolve(tables["prepare"]["target"]["raw"]).is_file()


def test_each_stage_is_made_once_for_all_runs_that_agree_so_far(sweep_file: Write, base: Path) -> None:
    _, made = prepared(sweep_file(TWO_LEVELS))
    for run in made.plan.runs:
        assert [stage for node in run.nodes for stage in node.stages] == list(stages_of_mode("mtlsd"))
        first, middle, last = (made.folder(node) for node in run.nodes)
        assert (first, middle.parent.name, last.parent.name) == (base, "shared", "runs")
        assert run.nodes[1].stages == ("watershed", "agglomerate")
        tables = load_experiment(middle).tables
        assert tables["watershed"]["min_seed_distance_vox"] == int(run.at["watershed.min_seed_distance_vox"])
        assert tables["segment"]["threshold"] == 0.3, "an axis of a later stage says nothing here"
    assert len({run.nodes[1].folder for run in made.plan.runs}) == 2


def test_a_base_with_a_network_from_elsewhere_trains_in_no_run(sweep_file: Write, base: Path) -> None:
    text = (base / "experiment.toml").read_text()
    (base / "experiment.toml").write_text(text + '\n[predict]\ncheckpoint = "../network"\n')
    _, made = prepared(sweep_file("[axes]\n'segment.threshold' = [0.2, 0.4]\n"))
    first = made.plan.runs[0].nodes[0]
    assert first.stages == ("prepare", "predict", "watershed", "agglomerate")
    assert open_stages(load_experiment(made.folder(first)), first) == ("prepare", "predict", "watershed", "agglomerate")


def test_a_level_without_a_stage_that_the_run_needs_has_no_folder(sweep_file: Write) -> None:
    _, made = prepared(sweep_file("[axes]\n'train-acrlsd.max_iteration' = [10]\n'experiment.seed' = [0, 1]\n"))
    assert [[node.stages[0] for node in run.nodes] for run in made.plan.runs] == [["prepare", "train-acrlsd"]] * 2


def test_an_axis_of_volumes_leaves_nothing_to_the_base(sweep_file: Write) -> None:
    text = "[axes.dataset]\na = { 'prepare.target.raw' = 'input/cells.hdf' }\nb = { 'prepare.target.raw' = 'b.hdf' }"
    _, made = prepared(sweep_file(text))
    assert [[node.folder for node in run.nodes] for run in made.plan.runs] == [["runs/dataset-a"], ["runs/dataset-b"]]
    fake = FakeStages()
    assert prepare_volumes(made, fake) == 0
    assert fake.calls == [("prepare", "dataset-a"), ("prepare", "dataset-b")]


@pytest.mark.proves("SWP-03")
def test_prepare_makes_the_shared_volumes_once(sweep_file: Write) -> None:
    _, made = prepared(sweep_file(TWO_LEVELS))
    fake = FakeStages()
    assert prepare_volumes(made, fake) == 0
    assert fake.calls == [("prepare", "base")]


def test_a_mongo_store_is_each_runs_own_from_watershed_on(sweep_file: Write, base: Path) -> None:
    file = base / "experiment.toml"
    file.write_text(f'{file.read_text()}[store]\nengine = "mongo"\nuri_file = "uri"\n')
    (base / "uri").write_text("mongodb://user:word@host/")
    _, made = prepared(sweep_file("[axes]\n'segment.threshold' = [0.2, 0.4]\n"))
    assert {run.nodes[-1].stages for run in made.plan.runs} == {STAGES[4:]}
    stores = [load_experiment(made.run_folder(run)) for run in made.plan.runs]
    databases = {experiment.database for experiment in stores}
    assert len(databases) == 2
    assert "base" not in databases
    assert {experiment.resolve(experiment.store.uri_file or "") for experiment in stores} == {base / "uri"}


def test_a_grid_may_grow_and_what_is_done_stays(sweep_file: Write) -> None:
    _, made = prepared(sweep_file("[axes]\n'segment.threshold' = [0.2]\n"))
    SweepRunner(made, FakeStages()).run_all(made.plan.runs)
    _, grown = prepared(sweep_file("[axes]\n'segment.threshold' = [0.1, 0.2]\n"))
    fake = FakeStages()
    assert SweepRunner(grown, fake).run_all(grown.plan.runs) == {"threshold-0.1": "done", "threshold-0.2": "done"}
    assert fake.calls == [("segment", "threshold-0.1"), ("evaluate", "threshold-0.1")]


def test_a_base_that_finished_with_other_settings_is_refused_and_imported_results_are_not_checked(
    sweep_file: Write, base: Path
) -> None:
    sweep = load_sweep(sweep_file("[axes]\n'segment.threshold' = [0.2]\n"))
    answers = {"prepare": {"finished": True}, "train-acrlsd": {"finished": True}, "predict": {"finished": False}}
    fake, arguments = FakeStages(), ["run", "--experiment", str(base / "experiment.toml")]
    fake("predict", arguments)
    require_fresh_base(sweep, lambda stage, _arguments: {"predict": {"finished": False}}[stage])
    for stage in ("prepare", "train-acrlsd"):
        fake(stage, arguments)
    with pytest.raises(OutputConflict, match="predict of the base finished with other settings"):
        require_fresh_base(sweep, lambda stage, _arguments: answers[stage])
    answers["predict"] = {"finished": True}
    require_fresh_base(sweep, lambda stage, _arguments: answers[stage])


def test_another_sweep_in_the_same_folder_is_refused_before_a_byte_changes(sweep_file: Write, base: Path) -> None:
    _, made = prepared(sweep_file("[axes]\n'segment.threshold' = [0.2]\n"))
    before = {path: path.read_bytes() for path in made.root.rglob("*") if path.is_file()}
    (base / "experiment.toml").write_text((base / "experiment.toml").read_text().replace("0.1", "0.05"))
    with pytest.raises(OutputConflict, match="another sweep is in this folder"):
        prepared(sweep_file("[axes]\n'segment.threshold' = [0.1, 0.2]\n"))
    assert {path: path.read_bytes() for path in made.root.rglob("*") if path.is_file()} == before


def test_a_base_that_changed_after_prepare_is_refused(sweep_file: Write, base: Path) -> None:
    _, made = prepared(sweep_file("[axes]\n'segment.threshold' = [0.2]\n"))
    open_sweep(made.root).require_base()
    (base / "experiment.toml").write_text((base / "experiment.toml").read_text() + "# another\n")
    with pytest.raises(OutputConflict, match="changed after the sweep was prepared"):
        open_sweep(made.root).require_base()


def test_a_folder_without_a_sweep_is_missing_input(tmp_path: Path) -> None:
    with pytest.raises(MissingInput, match="no prepared sweep"):
        open_sweep(tmp_path)


def test_a_link_never_replaces_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "a" / VOLUME).mkdir(parents=True)
    made = Manifest(
        writer=Writer.of("prepare"), key="k", config={}, inputs={}, outputs={"target": VOLUME}, identity="i"
    )
    made.write(ExperimentLayout(tmp_path / "a"))
    link_stages(["prepare"], tmp_path / "a", tmp_path / "b")
    link_stages(["prepare"], tmp_path / "a", tmp_path / "b")
    (tmp_path / "c" / VOLUME).mkdir(parents=True)
    with pytest.raises(OutputConflict, match="something else is where"):
        link_stages(["prepare"], tmp_path / "a", tmp_path / "c")


def test_the_file_of_a_run_keeps_every_value_of_the_base(sweep_file: Write, base: Path) -> None:
    odd = 'viewer_url = "http://h:1/\\"q\\" µ"\n'
    (base / "experiment.toml").write_text(f"{(base / 'experiment.toml').read_text()}[evaluate]\n{odd}")
    _, made = prepared(sweep_file("[axes]\n'segment.threshold' = [0.2]\n"))
    (run,) = made.plan.runs
    found, wanted = (tomllib.loads((f / "experiment.toml").read_text()) for f in (made.run_folder(run), base))
    assert found["evaluate"] == wanted["evaluate"]
    assert {k: v for k, v in found["prepare"]["training"][0].items() if k != "raw"} == {"name": "cells"}


def test_an_axis_of_stores_begins_where_the_first_of_them_is_written(sweep_file: Write, base: Path) -> None:
    (base / "uri").write_text("mongodb://user:word@host/")
    file = base / "experiment.toml"
    file.write_text(f'{file.read_text()}[store]\nuri_file = "uri"\n')
    _, made = prepared(sweep_file("[axes]\n'store.engine' = ['files', 'mongo']\n'segment.threshold' = [0.2, 0.4]\n"))
    assert {run.nodes[0].stages for run in made.plan.runs} == {("prepare", "train-acrlsd")}
    assert {stage for run in made.plan.runs for stage in run.nodes[-1].stages} == {*STAGES[4:]}


@pytest.mark.proves("TLS-27")
def test_a_path_to_a_file_of_the_base_leads_there_from_every_run_also_if_it_is_gone(
    sweep_file: Write, base: Path
) -> None:
    (base / "here.swc").touch()
    (base / "networks" / "fib-sem").mkdir(parents=True)
    text = (base / "experiment.toml").read_text() + '[evaluate]\nskeletons = "here.swc"\n'
    text += '[predict]\nmask = "../gone.zarr"\n[train-lsd]\ninitial_weights = "networks/fib-sem"\n'
    (base / "experiment.toml").write_text(text)
    _, made = prepared(sweep_file("[axes]\n'segment.threshold' = [0.2]\n"))
    found = load_experiment(made.run_folder(made.plan.runs[0]))
    assert found.resolve(found.tables["evaluate"]["skeletons"]) == base / "here.swc"
    assert found.resolve(found.tables["predict"]["mask"]) == base.parent / "gone.zarr"
    assert found.resolve(found.tables["train-lsd"]["initial_weights"]) == base / "networks" / "fib-sem"
