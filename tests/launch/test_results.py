"""lsdflow results, use and clean: an earlier result can be made current again; the others can be dropped."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path

import pytest
import zarr
from typer.testing import CliRunner

from lsdflow_command.lease_file import Holder, LeaseFile
from lsdflow_command.stage import RunOptions
from lsdflow_contract.errors import MissingInput, NotOurs
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_contract.manifest import read_manifest
from lsdflow_contract.testing import membrane_raw, voronoi_labels
from lsdflow_launch.cli import app
from lsdflow_launch.results import drop, results_of, use

ARCHIVE = Path(__file__).resolve().parents[1] / "data" / "archives" / "contract-1.6.tar.gz"
FIRST, SECOND = "watershed.min_seed_distance_vox=5", "watershed.min_seed_distance_vox=6"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two watersheds beside each other in an experiment of an earlier contract; the second is current."""
    from lsdflow_watershed.stage import Watershed

    folder = tmp_path_factory.mktemp("results") / "exp"
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    for settings in (FIRST, SECOND):
        Watershed().run(load_experiment(folder, [settings]), RunOptions())
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
    shown = CliRunner().invoke(app, ["results", str(experiment.layout.root)])
    assert shown.exit_code == 0
    assert [line.split()[:3] for line in shown.stdout.splitlines()] == [
        ["watershed", first.key, "finished"],
        ["watershed", second.key, "current"],
    ]
    assert all("  fragments.zarr" in line for line in shown.stdout.splitlines())


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
    again.run(load_experiment(experiment.path, [FIRST]), RunOptions())
    assert again.verify(load_experiment(experiment.path, [FIRST]))["verified"]


def test_a_stage_at_work_loses_nothing(experiment: Experiment) -> None:
    first, _ = results_of(experiment.layout)
    lease = LeaseFile(experiment.layout.stage_runs("watershed") / "lease")
    lease.path.write_text(json.dumps(Holder("token", "elsewhere", 1).__dict__))
    with pytest.raises(NotOurs, match="at work"):
        drop(experiment, [first])
    assert len(results_of(experiment.layout)) == 2


def test_an_earlier_volume_is_made_current_again_and_dropped_when_it_is_not(tmp_path: Path) -> None:
    from lsdflow_prepare.stage import Prepare

    make_volume(tmp_path / "raw.zarr")
    (tmp_path / "exp").mkdir()
    (tmp_path / "exp" / "experiment.toml").write_text('[prepare.target]\nraw = "../raw.zarr"\n')
    found = []
    for settings in ([], ["prepare.target.raw_range=[0, 100]"]):
        Prepare().run(load_experiment(tmp_path / "exp", settings), RunOptions())
        found.append(read_manifest(load_experiment(tmp_path / "exp").layout, "prepare"))
    first, second = found
    experiment = load_experiment(tmp_path / "exp")
    assert sum(result.current for result in results_of(experiment.layout)) == 2, "the volume, and its manifest"
    use(experiment.layout, "prepare", first.key[:8])
    assert experiment.layout.target_volume == experiment.layout.root / first.outputs["target"]
    Prepare().run(experiment, RunOptions())
    assert read_manifest(experiment.layout, "prepare") == first
    drop(experiment, [result for result in results_of(experiment.layout) if not result.current])
    assert not (experiment.layout.root / second.outputs["target"]).exists()
    assert Prepare().verify(experiment)["verified"]


def make_volume(path: Path) -> None:
    """Grey values, 8 nm."""
    array = zarr.create_array(path / "volumes/raw", shape=(32, 32, 32), dtype="uint8", zarr_format=2)
    array[:] = membrane_raw(voronoi_labels((32, 32, 32), 4))
    array.attrs.update({"resolution": [8, 8, 8], "offset": [0, 0, 0]})
