"""Experiments that earlier contracts left on disk are verified, gone on with, and give the bits they gave then."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest

from lsdflow_agglomerate import task as agglomerate
from lsdflow_command.app import RunOptions
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_contract.manifest import read_manifest
from lsdflow_runtime.volumes import open_volume
from lsdflow_segment import task as segment
from lsdflow_watershed import task as watershed

ARCHIVES = sorted((Path(__file__).resolve().parents[1] / "data" / "archives").glob("contract-*.tar.gz"))
STAGES = {"watershed": watershed, "agglomerate": agglomerate, "segment": segment}


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.gz"))
def archived(request: pytest.FixtureRequest, tmp_path: Path) -> Experiment:
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path / "old", filter="data")
    # What an experiment did not say was "blocks" up to contract 1.3.
    said = "id_mode" in (tmp_path / "old" / "experiment.toml").read_text()
    return load_experiment(tmp_path / "old", [] if said else ['watershed.id_mode="blocks"'])


def test_there_is_an_archive() -> None:
    assert ARCHIVES


@pytest.mark.parametrize("stage", STAGES)
def test_what_an_earlier_contract_left_is_verified_and_not_done_again(archived: Experiment, stage: str) -> None:
    path = archived.layout.manifest(stage)
    before = path.read_bytes()
    assert STAGES[stage].verify(archived)["verified"]
    STAGES[stage].run(archived, RunOptions())
    assert path.read_bytes() == before


def test_a_later_stage_goes_on_from_the_graph_of_an_earlier_contract_with_the_same_bits(archived: Experiment) -> None:
    layout = archived.layout
    wanted = open_volume(layout.segmentation, "volumes/segmentation")
    voxels, identity = wanted.read(wanted.box), read_manifest(layout, "segment").identity
    tables = {path.name: path.read_bytes() for path in layout.luts.glob("*.npz")}
    for folder in (layout.segmentation, layout.luts, layout.store / "blocks" / "segment"):
        shutil.rmtree(folder)
    layout.manifest("segment").unlink()
    segment.run(archived, RunOptions())
    assert read_manifest(layout, "segment").identity == identity
    assert {path.name: path.read_bytes() for path in layout.luts.glob("*.npz")} == tables
    found = open_volume(layout.segmentation, "volumes/segmentation")
    assert np.array_equal(found.read(found.box), voxels)
