"""Experiments that earlier contracts left on disk are verified and resumed, and give the same bits as then."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest

from lsdflow_agglomerate.stage import Agglomerate
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_contract.manifest import read_manifest
from lsdflow_contract.testing import made
from lsdflow_evaluate.stage import Evaluate
from lsdflow_runtime.io.volumes import open_volume
from lsdflow_segment.stage import Segment
from lsdflow_watershed.stage import Watershed

watershed = Watershed()
agglomerate = Agglomerate()
segment = Segment()
evaluate = Evaluate()

ARCHIVES = sorted((Path(__file__).resolve().parents[1] / "data" / "archives").glob("contract-*.tar.gz"))
STAGES = {"watershed": watershed, "agglomerate": agglomerate, "segment": segment}


def _has_scores(path: Path) -> bool:
    with tarfile.open(path) as archive:
        return "report/scores.json" in archive.getnames()


def _name(path: Path) -> str:
    return path.name.removesuffix(".tar.gz")


EVALUATED = [path for path in ARCHIVES if _has_scores(path)]


@pytest.fixture(params=ARCHIVES, ids=_name)
def archived(request: pytest.FixtureRequest, tmp_path: Path) -> Experiment:
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path / "old", filter="data")
    # What an experiment did not say was "blocks" up to contract 1.3.
    said = "id_mode" in (tmp_path / "old" / "experiment.toml").read_text()
    return load_experiment(tmp_path / "old", [] if said else ['watershed.id_mode="blocks"'])


def test_there_are_archives() -> None:
    assert len(ARCHIVES) > len(EVALUATED) > 0


@pytest.mark.parametrize("stage", STAGES)
def test_what_an_earlier_contract_left_is_verified_and_not_done_again(archived: Experiment, stage: str) -> None:
    path = archived.layout.manifest(stage)
    before = path.read_bytes()
    assert STAGES[stage].verify(archived)["verified"]
    STAGES[stage].run(archived)
    assert path.read_bytes() == before


def test_a_later_stage_resumes_from_the_graph_of_an_earlier_contract_with_the_same_bits(archived: Experiment) -> None:
    layout = archived.layout
    wanted = open_volume(made(layout, "segment"), "volumes/segmentation")
    voxels, identity = wanted.read(wanted.box), read_manifest(layout, "segment").identity
    tables = {path.name: path.read_bytes() for path in layout.luts.rglob("*.npz")}
    for folder in (made(layout, "segment"), layout.luts, layout.store / "blocks" / "segment"):
        shutil.rmtree(folder)
    layout.manifest("segment").unlink()
    segment.run(archived)
    assert read_manifest(layout, "segment").identity == identity
    assert {path.name: path.read_bytes() for path in layout.luts.rglob("*.npz")} == tables
    found = open_volume(made(layout, "segment"), "volumes/segmentation")
    assert np.array_equal(found.read(found.box), voxels)


@pytest.mark.parametrize("archived", EVALUATED, indirect=True, ids=_name)
def test_scores_of_an_earlier_contract_are_verified_and_a_new_evaluation_gives_the_same(archived: Experiment) -> None:
    layout = archived.layout
    scores = layout.report / "scores.json"
    expected = json.loads(scores.read_text())
    assert evaluate.verify(archived)["verified"]
    layout.manifest("evaluate").unlink()
    scores.unlink()
    for folder in (*layout.store.glob("overlaps_*"), layout.store / "evaluate", layout.store / "blocks" / "evaluate"):
        shutil.rmtree(folder)
    evaluate.run(archived)
    found = json.loads(scores.read_text())
    assert {name: found[name] for name in expected} == expected
