"""Names of the tables: the field's names never hide a table, and merge functions keep their full name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lsdflow_contract.errors import BadData, MissingInput
from lsdflow_contract.lut import Lut, legacy_lut_name, lut_name, write_lut
from lsdflow_segment import tables
from lsdflow_segment.components import ThresholdSweep
from lsdflow_segment.graph import InMemoryGraph, LutSlice, merge_functions_of
from lsdflow_segment.tables import TableFolders, legacy_owners, read_summary, write_lut_slices


def test_thresholds_that_share_the_fields_name_get_one_file_between_them() -> None:
    owners = legacy_owners("m", [number / 100 for number in range(101)])
    assert len(set(owners.values())) == len(owners) < 101
    assert 0.56 in owners
    assert 0.57 not in owners
    assert owners[0.56] == "seg_edges_m_56.npz"


def test_an_old_reader_never_gets_the_table_of_another_threshold() -> None:
    """The old reader asks for int(t * 100): it finds its own table or one of the same name."""
    owners = legacy_owners("m", [number / 50 for number in range(51)])
    for threshold, name in owners.items():
        assert legacy_lut_name("m", threshold) == name
    assert len(owners) == 51


@pytest.mark.parametrize("name", ["document", "edges_document", "ssegde", "hist_quant_75"])
def test_a_merge_function_made_of_the_letters_of_edges_keeps_its_name(name: str) -> None:
    """The lineage used strip('edges_'), which strips characters: 'edges_document' became nothing."""
    assert lut_name(name, 0.5) == f"lut_{name}_0.5000.npz"
    assert legacy_lut_name(name, 0.5) == f"seg_edges_{name}_50.npz"
    assert TableFolders(Path("luts"), "graph").summary(name).name == f"thresholds_{name}.json"


def test_merge_functions_are_read_from_either_form_of_the_config() -> None:
    assert merge_functions_of({"merge_function": "mean"}) == ("mean",)
    assert merge_functions_of({"merge_functions": ["mean", "hist_quant_75"]}) == ("mean", "hist_quant_75")
    with pytest.raises(BadData, match="no merge function"):
        merge_functions_of({})


def test_a_missing_or_damaged_summary_is_refused(tmp_path: Path) -> None:
    folders = TableFolders(tmp_path, "graph")
    with pytest.raises(MissingInput):
        read_summary(folders, "m")
    folders.tables.mkdir()
    folders.summary("m").write_text("[]")
    with pytest.raises(BadData, match="damaged"):
        read_summary(folders, "m")


@pytest.mark.parametrize("nodes", [1, 7, 50_000])
def test_a_table_in_slices_has_the_bytes_of_the_contracts_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: int
) -> None:
    monkeypatch.setattr(tables, "_COMPRESSED_IDS", 3000)
    ids = np.cumsum(np.random.default_rng(0).integers(1, 900, nodes)).astype(np.uint64)
    graph = InMemoryGraph(ids, ids, ThresholdSweep(ids, [0.5]), (0.5,), 0)
    ((one,),) = graph.luts()
    slices = [LutSlice(part, part, part.copy) for part in np.array_split(ids, 3)]
    write_lut(tmp_path / "a.npz", Lut(ids, one.segments), {"threshold": 0.5})
    write_lut_slices(tmp_path / "b.npz", slices, {"threshold": 0.5})
    for suffix in (".npz", ".json"):
        assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()
    before = (tmp_path / "b.npz").stat().st_mtime_ns
    write_lut_slices(tmp_path / "b.npz", slices, {"threshold": 0.5})
    assert (tmp_path / "b.npz").stat().st_mtime_ns == before
