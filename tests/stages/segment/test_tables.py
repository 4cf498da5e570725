"""Names of the tables: the field's names never hide a table, and merge functions keep their full name."""

from __future__ import annotations

from pathlib import Path

import pytest

from lsdflow_contract.errors import BadData, MissingInput
from lsdflow_contract.lut import legacy_lut_name, lut_name
from lsdflow_segment.graph import merge_functions_of
from lsdflow_segment.tables import legacy_owners, read_summary, summary_path
from lsdflow_segment.thresholds import threshold_range


def test_thresholds_that_share_the_fields_name_get_one_file_between_them() -> None:
    owners = legacy_owners("m", threshold_range((0.0, 1.0), 0.01))
    assert len(set(owners.values())) == len(owners) < 101
    assert 0.56 in owners
    assert 0.57 not in owners
    assert owners[0.56] == "seg_edges_m_56.npz"


def test_an_old_reader_never_gets_the_table_of_another_threshold() -> None:
    """The old reader asks for int(t * 100): it finds its own table or one of the same name."""
    owners = legacy_owners("m", threshold_range((0.0, 1.0), 0.02))
    for threshold, name in owners.items():
        assert legacy_lut_name("m", threshold) == name
    assert len(owners) == 51


@pytest.mark.parametrize("name", ["document", "edges_document", "ssegde", "hist_quant_75"])
def test_a_merge_function_made_of_the_letters_of_edges_keeps_its_name(name: str) -> None:
    """The lineage used strip('edges_'), which strips characters: 'edges_document' became nothing."""
    assert lut_name(name, 0.5) == f"lut_{name}_0.5000.npz"
    assert legacy_lut_name(name, 0.5) == f"seg_edges_{name}_50.npz"
    assert summary_path(Path("luts"), name).name == f"thresholds_{name}.json"


def test_merge_functions_are_read_from_either_form_of_the_config() -> None:
    assert merge_functions_of({"merge_function": "mean"}) == ("mean",)
    assert merge_functions_of({"merge_functions": ["mean", "hist_quant_75"]}) == ("mean", "hist_quant_75")
    with pytest.raises(BadData, match="no merge function"):
        merge_functions_of({})


def test_a_missing_or_damaged_summary_is_said(tmp_path: Path) -> None:
    with pytest.raises(MissingInput):
        read_summary(tmp_path, "m")
    summary_path(tmp_path, "m").write_text("[]")
    with pytest.raises(BadData, match="damaged"):
        read_summary(tmp_path, "m")
