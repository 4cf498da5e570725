"""What segment reads and leaves is sealed: damage is reported by verify and by the next step, and repaired."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lsdflow_contract.errors import BadData
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.lut import lut_name
from lsdflow_contract.manifest import read_manifest
from lsdflow_contract.sealing import read_sealed, write_sealed
from lsdflow_contract.testing import tables_of
from lsdflow_segment.stage import Segment

Make = Callable[..., Experiment]
SETTINGS = ("segment.thresholds_minmax=[0.1, 0.4]", "segment.thresholds_step=0.1", "segment.threshold=0.3")


def finished(make_experiment: Make) -> Experiment:
    experiment = make_experiment("a", *SETTINGS)
    Segment().run(experiment)
    return experiment


def replace_in(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_a_changed_count_of_blocks_is_bad_data_not_another_segmentation(make_experiment: Make) -> None:
    experiment = finished(make_experiment)
    replace_in(experiment.layout.manifest("agglomerate"), '"blocks": 2', '"blocks": 0')
    for verb in (Segment().verify, lambda e: Segment().run(e)):
        with pytest.raises(BadData, match=r"agglomerate\.json") as caught:
            verb(experiment)
        assert "agglomerate run" in caught.value.fix


def test_verify_reports_a_lut_that_was_cut_short_and_the_copy_for_older_readers(make_experiment: Make) -> None:
    experiment = finished(make_experiment)
    for name in (lut_name("hist_quant_75", 0.2), "seg_edges_hist_quant_75_20.npz"):
        path = tables_of(experiment.layout) / name
        content = path.read_bytes()
        for damaged in (content[:-30], content[:60] + bytes([content[60] ^ 4]) + content[61:]):
            path.write_bytes(damaged)
            with pytest.raises(BadData, match=name) as caught:
                Segment().verify(experiment)
            assert "lsdflow repair EXPERIMENT" in caught.value.fix
        path.write_bytes(content)
    assert Segment().verify(experiment)["verified"]


def test_tables_of_another_run_with_a_seal_of_their_own_are_not_those_of_the_manifest(make_experiment: Make) -> None:
    experiment = finished(make_experiment)
    path = tables_of(experiment.layout) / "thresholds_mean.json"
    summary = read_sealed(path, "")
    summary["thresholds"][0]["segments"] += 1
    write_sealed(path, summary)
    with pytest.raises(BadData, match="damaged or was changed") as caught:
        Segment().verify(experiment)
    assert caught.value.where == str(path)
    Segment().repair(experiment)
    assert Segment().verify(experiment)["verified"]


@pytest.mark.parametrize("name", ["thresholds_hist_quant_75.json", "thresholds_mean.json", "lut_mean_0.2000.json"])
def test_repair_writes_damaged_tables_again_as_they_were(make_experiment: Make, name: str) -> None:
    experiment = finished(make_experiment)
    files = {path.name: path.read_bytes() for path in tables_of(experiment.layout).iterdir()}
    replace_in(tables_of(experiment.layout) / name, '"threshold": 0.2', '"threshold": 0.3')
    (tables_of(experiment.layout) / lut_name("hist_quant_75", 0.1)).write_bytes(b"")
    with pytest.raises(BadData):
        Segment().verify(experiment)
    Segment().repair(experiment)
    assert {path.name: path.read_bytes() for path in tables_of(experiment.layout).iterdir()} == files
    assert Segment().verify(experiment)["verified"]


def test_a_run_writes_its_own_damaged_manifest_again_with_the_same_identity(make_experiment: Make) -> None:
    experiment = finished(make_experiment)
    path = experiment.layout.manifest("segment")
    before = read_manifest(experiment.layout, "segment")
    replace_in(path, '"segments"', '"segmentz"')
    with pytest.raises(BadData):
        Segment().verify(experiment)
    Segment().run(experiment)
    found = read_manifest(experiment.layout, "segment")
    assert (found.identity, found.facts["segments"]) == (before.identity, before.facts["segments"])
    assert json.loads(path.read_text())["facts"]["seal"]


def test_results_of_two_thresholds_share_the_tables_and_both_are_verified(make_experiment: Make) -> None:
    """The summary is that of the last run; after `lsdflow use`, verify once found no tables for the other result."""
    automatic = make_experiment("a", *SETTINGS[:2])
    Segment().run(automatic)
    settings = {**automatic.tables["segment"], "threshold": 0.2}
    lower = replace(automatic, tables={**automatic.tables, "segment": settings})
    first = read_manifest(automatic.layout, "segment")
    Segment().run(lower)
    assert Segment().verify(lower)["verified"]
    first.write(automatic.layout)
    assert Segment().verify(automatic)["verified"]
    assert Segment().status(automatic)["finished"]
    path = tables_of(lower.layout) / lut_name("hist_quant_75", 0.1)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(BadData, match=r"0\.1000"):
        Segment().verify(automatic)
    Segment().repair(automatic)
    assert Segment().verify(automatic)["verified"]
