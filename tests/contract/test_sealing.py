"""Sealed files: whatever bit is flipped, the reader reports it, or the content is what was written."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lsdflow_contract.checkpoint import BestCheckpoint, Calibration, read_best, write_best
from lsdflow_contract.errors import BadData, ContractMismatch
from lsdflow_contract.files import write_json
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.lut import Lut, find_luts, lut_name, read_lut, write_lut
from lsdflow_contract.manifest import Manifest, Writer, read_manifest
from lsdflow_contract.sealing import read_sealed, write_sealed

NAME = lut_name("mean", 0.5)


def manifest(**changes: object) -> Manifest:
    fields = {"writer": Writer(stage="agglomerate", version="0.1.0"), "key": "k", "config": {}, "inputs": {}}
    return Manifest.model_validate({**fields, "outputs": {}, "facts": {"blocks": 8}, "identity": "i", **changes})


def flips(path: Path, every: int = 1) -> Iterator[str]:
    """Flip one bit after another (every one, or every n-th by chance); the file is put right at the end."""
    content, chance = path.read_bytes(), random.Random(0)
    for bit in range(8 * len(content)):
        if chance.randrange(every) == 0:
            changed = bytearray(content)
            changed[bit // 8] ^= 1 << bit % 8
            path.write_bytes(changed)
            yield f"bit {bit}"
    path.write_bytes(content)


def write_tables(folder: Path) -> None:
    fragments = np.arange(1, 200, dtype=np.uint64)
    for threshold in (0.5, 0.6):
        facts = {"merge_function": "mean", "threshold": threshold, "fragments_fingerprint": "these"}
        write_lut(folder / lut_name("mean", threshold), Lut(fragments, fragments // np.uint64(3)), facts)


def test_no_flipped_bit_of_a_manifest_changes_what_the_next_stage_reads(tmp_path: Path) -> None:
    layout = ExperimentLayout(tmp_path)
    manifest().write(layout)
    refused = 0
    for where in flips(layout.manifest("agglomerate"), every=5):
        try:
            assert read_manifest(layout, "agglomerate") == manifest(), where
        except (BadData, ContractMismatch):
            refused += 1
    assert refused > 200


def test_a_changed_manifest_says_what_to_run(tmp_path: Path) -> None:
    layout = ExperimentLayout(tmp_path)
    manifest().write(layout)
    path = layout.manifest("agglomerate")
    path.write_text(path.read_text().replace('"blocks": 8', '"blocks": 0'))
    with pytest.raises(BadData, match=r"agglomerate\.json") as caught:
        read_manifest(layout, "agglomerate")
    assert "agglomerate run" in caught.value.fix
    assert "lsdflow repair" in caught.value.fix


def test_no_flipped_bit_of_a_side_car_gives_another_table_or_drops_one(tmp_path: Path) -> None:
    write_tables(tmp_path)
    known, refused = find_luts(tmp_path, "these"), 0
    for where in flips((tmp_path / NAME).with_suffix(".json"), every=8):
        try:
            found = find_luts(tmp_path, "these")
        except BadData:
            refused += 1
        else:
            assert [(t.merge_function, t.threshold, t.path) for t in found] == [
                (t.merge_function, t.threshold, t.path) for t in known
            ], where
    assert refused > 200


def test_a_lut_with_a_flipped_bit_or_cut_short_is_bad_data(tmp_path: Path) -> None:
    write_tables(tmp_path)
    path = tmp_path / NAME
    for where in flips(path, every=60):
        with pytest.raises(BadData):
            read_lut(path)
        assert where
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(BadData, match="sha256"):
        read_lut(path)


def test_a_damaged_lut_of_another_program_is_bad_data_or_read_as_it_was(tmp_path: Path) -> None:
    write_tables(tmp_path)
    path = tmp_path / NAME
    path.with_suffix(".json").unlink()
    wanted = read_lut(path)
    for where in flips(path, every=60):
        try:
            found = read_lut(path)
        except BadData:
            continue
        assert np.array_equal(found.segments, wanted.segments), where


def test_no_flipped_bit_of_best_json_changes_what_was_chosen(tmp_path: Path) -> None:
    calibration = Calibration(thresholds={"hist_quant_75": 0.64}, voxels=1000, on="held out: a")
    best = BestCheckpoint(iteration=1000, weights_sha256="ab" * 32, voi=0.25, calibration=calibration)
    write_best(tmp_path / "best.json", best)
    for where in flips(tmp_path / "best.json"):
        try:
            found = read_best(tmp_path / "best.json")
        except BadData:
            continue
        assert found == best, where


def test_a_file_that_has_lost_its_seal_is_refused(tmp_path: Path) -> None:
    layout = ExperimentLayout(tmp_path)
    write_json(layout.manifest("agglomerate"), manifest().model_dump())
    with pytest.raises(BadData, match="lost its seal"):
        read_manifest(layout, "agglomerate")
    write_json(tmp_path / "a.json", {"a": 1})
    with pytest.raises(BadData, match="lost its seal"):
        read_sealed(tmp_path / "a.json", "")


def test_what_is_sealed_is_read_back_and_a_rewrite_touches_nothing(tmp_path: Path) -> None:
    value = {"numbers": (1, 2.5, None), "names": {"ä": [True]}, "3": 4}
    write_sealed(tmp_path / "a.json", value)
    before = (tmp_path / "a.json").stat().st_mtime_ns
    assert read_sealed(tmp_path / "a.json", "") == json.loads(json.dumps(value))
    write_sealed(tmp_path / "a.json", value)
    assert (tmp_path / "a.json").stat().st_mtime_ns == before


def test_what_is_no_object_or_no_json_names_the_file_and_the_remedy(tmp_path: Path) -> None:
    for text in ("[1]", "{", '{"a": NaN, "seal": "0"}', "1" * 5000):
        (tmp_path / "a.json").write_text(text)
        with pytest.raises(BadData, match=r"a\.json") as caught:
            read_sealed(tmp_path / "a.json", "run it again")
        assert caught.value.fix == "run it again"
