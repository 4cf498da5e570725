"""A name in the experiment file stays a name: it leads to no other folder, and nothing in it is executed."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

from lsdflow_contract.arrays import RAW
from lsdflow_contract.errors import ConfigError, MissingInput
from lsdflow_contract.experiment import StoreTable, load_experiment
from lsdflow_contract.geometry import Geometry
from lsdflow_contract.model import StrictModel
from lsdflow_launch.init.template import toml_value
from lsdflow_launch.slurm.table import ClusterTable
from lsdflow_predict.config import PredictConfig
from lsdflow_prepare.config import PrepareConfig
from lsdflow_runtime.formats.detect import open_source
from lsdflow_runtime.io.volumes import OutputArray, open_volume
from lsdflow_segment.config import SegmentConfig

TABLES: dict[str, type[StrictModel]] = {
    "store": StoreTable,
    "prepare": PrepareConfig,
    "predict": PredictConfig,
    "segment": SegmentConfig,
    "cluster": ClusterTable,
}
# Keys whose value becomes a folder, a file, a database or a word of a command; {} is the name.
NAMES = [
    'store.database = "{}"',
    'prepare.training = [{{name = "{}", raw = "a.zarr"}}]',
    'predict.setup = "{}"',
    'segment.run_type = "{}"',
    'segment.merge_function = "{}"',
    'cluster.account = "{}"',
    'cluster.partition_cpu = "{}"',
    'cluster.options = ["{}"]',
]
EVIL = [
    "..",
    ".",
    "../out",
    "/etc",
    "a/b",
    "a\\nb",
    "a\\n",
    "a'b",
    'a\\"b',
    "$(touch out)",
    "`touch out`",
    "a;b",
    "a b",
]
# Words of sbatch, not folders: a dot in them leads nowhere.
NO_FOLDERS = ("cluster.account", "cluster.partition_cpu")


def tried(tmp_path: Path, line: str, value: str) -> None:
    """Read an experiment with one key set."""
    table, _, rest = line.format(value).partition(".")
    (tmp_path / "experiment.toml").write_text(f"[{table}]\n{rest}\n")
    load_experiment(tmp_path).table(table, TABLES[table])


@pytest.mark.parametrize("value", EVIL)
@pytest.mark.parametrize("line", NAMES)
def test_a_name_that_is_a_path_or_a_command_is_refused(tmp_path: Path, line: str, value: str) -> None:
    if line.startswith(NO_FOLDERS) and value in ("..", "."):
        tried(tmp_path, line, value)
        return
    with pytest.raises(ConfigError) as raised:
        tried(tmp_path, line, value)
    assert raised.value.exit_code == 78
    assert [p.name for p in tmp_path.iterdir()] == ["experiment.toml"]


@pytest.mark.parametrize("value", [v for v in EVIL if v not in ("..", ".")])
def test_the_experiments_name_is_letters_digits_and_dots(tmp_path: Path, value: str) -> None:
    (tmp_path / "experiment.toml").write_text(f'[experiment]\nname = "{value}"\n')
    with pytest.raises(ConfigError):
        load_experiment(tmp_path)


@pytest.mark.parametrize("line", NAMES[:4])
def test_a_sound_name_is_taken(tmp_path: Path, line: str) -> None:
    tried(tmp_path, line, "cell-26_v2")


@pytest.mark.parametrize("value", ["$(touch out).zarr", "`touch out`", "a'b\"c.zarr", "a\nb", "a;b && c", "{seed}"])
def test_a_path_is_used_as_it_is_written(tmp_path: Path, value: str) -> None:
    (tmp_path / "experiment.toml").write_text(f"[store]\nuri_file = {toml_value(value)}\n")
    experiment = load_experiment(tmp_path)
    assert experiment.store.uri_file == value
    assert experiment.resolve(value) == tmp_path.resolve() / value
    assert [p.name for p in tmp_path.iterdir()] == ["experiment.toml"]


def container_of(form: str, folder: Path) -> Path:
    """A container of a format with one array `inside`; beside it is another, `outside`."""
    path = folder / f"c.{form}"
    if form == "hdf5":
        with h5py.File(path, "w") as file:
            file["inside"] = np.zeros((4, 4, 4), np.uint8)
        return path
    for array in (path / "inside", folder / "outside"):
        array.mkdir(parents=True)
        n5 = {"dimensions": [4, 4, 4], "blockSize": [4, 4, 4], "dataType": "uint8", "compression": {"type": "raw"}}
        zarr = {"zarr_format": 2, "shape": [4, 4, 4], "chunks": [4, 4, 4], "dtype": "|u1", "compressor": None}
        zarr |= {"fill_value": 0, "order": "C", "filters": None}
        (array / ("attributes.json" if form == "n5" else ".zarray")).write_text(
            json.dumps(n5 if form == "n5" else zarr)
        )
    (path / ("attributes.json" if form == "n5" else ".zgroup")).write_text('{"n5": "2.0.0", "zarr_format": 2}')
    return path


@pytest.mark.parametrize("dataset", ["../outside", "inside/../../outside", "/../outside"])
@pytest.mark.parametrize("form", ["zarr", "n5", "hdf5"])
def test_no_reader_follows_a_dataset_out_of_its_container(tmp_path: Path, form: str, dataset: str) -> None:
    path = container_of(form, tmp_path)
    open_source(path, "inside").close()
    with pytest.raises(ConfigError) as raised:
        open_source(path, dataset)
    assert raised.value.exit_code == 78


def test_masks_and_truth_of_the_stages_are_searched_in_their_container_alone(tmp_path: Path) -> None:
    grid = Geometry((10.0, 10.0, 10.0), (0.0, 0.0, 0.0), (8, 8, 8))
    for name in ("inside", "outside"):
        OutputArray(tmp_path / name, RAW, grid, grid.box, (8, 8, 8)).create({"key": "raw"})
    assert open_volume(tmp_path / "inside", RAW.dataset).box == grid.box
    with pytest.raises(ConfigError):
        open_volume(tmp_path / "inside", f"../outside/{RAW.dataset}")
    with pytest.raises(MissingInput):
        open_volume(tmp_path / "inside", str(tmp_path / "outside" / RAW.dataset))
