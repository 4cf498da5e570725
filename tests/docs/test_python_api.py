"""docs/python_api.md: its lines run as they stand, and give what the stages give, voxel by voxel and id by id."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lsdflow
from lsdflow_agglomerate.stage import Agglomerate
from lsdflow_contract.arrays import RAW
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_contract.geometry import Geometry
from lsdflow_contract.manifest import Manifest, Writer, read_manifest
from lsdflow_launch.init.demo import CHECKPOINT, VOXEL_SIZE_NM, write_volume
from lsdflow_launch.synthetic.image import synthetic_em
from lsdflow_predict.stage import Predict
from lsdflow_runtime.io.volumes import OutputArray, open_volume
from lsdflow_runtime.store.stores import open_store
from lsdflow_segment.stage import Segment
from lsdflow_watershed.stage import Watershed

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "python_api.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
SHAPE_VOX = (40, 44, 48)
SETTINGS = """[experiment]
mode = "mtlsd"
[compute]
runner = "serial"
device = "cpu"
[predict]
checkpoint = "input/network"
[segment]
threshold = 0.6
thresholds_step = 0.2
"""


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    """The folder demo/ of the page, with a smaller volume, after the four stages; each has one block."""
    root = tmp_path_factory.mktemp("python_api") / "demo"
    raw, labels = synthetic_em(SHAPE_VOX, VOXEL_SIZE_NM, 0)
    (root / "input").mkdir(parents=True)
    write_volume(root / "input" / "volume.hdf", raw, labels)
    shutil.copytree(CHECKPOINT, root / "input" / "network")
    (root / "experiment.toml").write_text(SETTINGS)
    experiment = load_experiment(root)
    grid = Geometry(VOXEL_SIZE_NM, (0.0, 0.0, 0.0), SHAPE_VOX)
    target = OutputArray(experiment.layout.target_volume, RAW, grid, grid.box, SHAPE_VOX)
    target.create({"key": "raw"})
    target.open().write(grid.box, raw)
    facts: dict[str, Any] = {"key": "raw", "config": {}, "inputs": {}, "outputs": {}, "identity": "raw"}
    Manifest(writer=Writer.of("prepare"), **facts).write(experiment.layout)
    for stage in (Predict(), Watershed(), Agglomerate(), Segment()):
        stage.run(experiment)
    return experiment


@pytest.fixture(scope="module")
def page(experiment: Experiment) -> dict[str, Any]:
    """The names that the lines of the page define."""
    names: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(experiment.path.parent.parent)
        for block in BLOCKS:
            exec(compile(block, "docs/python_api.md", "exec"), names)
    return names


def test_ten_lines_make_a_segmentation_with_one_import() -> None:
    assert len(BLOCKS[0].splitlines()) == 10
    assert re.findall(r"^(?:import|from) (\S+)", "".join(BLOCKS), re.MULTILINE) == ["h5py", "lsdflow"]


def test_the_page_explains_every_function_and_no_other() -> None:
    public = {name for name, value in vars(lsdflow).items() if getattr(value, "__wrapped__", None) is not None}
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) == public
    assert set(re.findall(r"lsdflow\.(\w+)\(", "".join(BLOCKS))) == public


@pytest.mark.proves("WSD-11")
@pytest.mark.parametrize(
    ("stage", "output", "name"),
    [
        ("predict", "affs", "affinities"),
        ("watershed", "fragments", "fragments"),
        ("segment", "segmentation", "segmentation"),
    ],
)
def test_its_arrays_are_those_of_the_stages(
    experiment: Experiment, page: dict[str, Any], stage: str, output: str, name: str
) -> None:
    stored = open_volume(*read_manifest(experiment.layout, stage).output_array(experiment.layout, output))
    found, wanted = page[name], stored.read(stored.box)
    assert found.dtype == wanted.dtype
    assert len(np.unique(wanted)) > 5
    np.testing.assert_array_equal(found, wanted)


def test_its_edges_are_those_of_agglomerate(experiment: Experiment, page: dict[str, Any]) -> None:
    key = read_manifest(experiment.layout, "agglomerate").key
    (wanted,) = open_store(experiment).rag.iter_edges(key, "hist_quant_75")
    assert len(wanted) > 10
    for column in ("u", "v", "merge_score"):
        np.testing.assert_array_equal(getattr(page["edges"], column), getattr(wanted, column))


def test_several_thresholds_are_the_single_ones_in_the_order_given(page: dict[str, Any]) -> None:
    np.testing.assert_array_equal(page["segmentations"][2], page["segmentation"])
    assert [len(np.unique(segments)) for segments in page["segmentations"]] == sorted(
        (len(np.unique(segments)) for segments in page["segmentations"]), reverse=True
    )
    backwards = lsdflow.segment(page["fragments"], page["edges"], page["thresholds"][::-1])
    np.testing.assert_array_equal(backwards[::-1], page["segmentations"])
    assert page["best"] in page["thresholds"]


def test_a_patch_is_the_same_network_without_the_mirrored_faces(page: dict[str, Any]) -> None:
    inner = page["affinities"][:, 8:32, 8:32, 8:32]
    assert page["affinities_of_patch"].shape == inner.shape
    assert np.abs(page["affinities_of_patch"].astype(int) - inner).max() <= 1
