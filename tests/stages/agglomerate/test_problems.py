"""What is wrong with the settings of agglomerate, before there are fragments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lsdflow_agglomerate.config import AgglomerateConfig
from lsdflow_agglomerate.problems import problems_before_fragments
from lsdflow_contract.layout import ExperimentLayout


@pytest.mark.parametrize(("predict", "refused"), [({}, True), ({"store_lsds": True}, False)])
def test_scores_from_lsds_need_lsds_that_predict_will_store(
    tmp_path: Path, predict: dict[str, Any], refused: bool
) -> None:
    config = AgglomerateConfig(scored_from="lsds")
    problems = problems_before_fragments(ExperimentLayout(tmp_path), {"predict": predict}, config, real=True)
    assert [problem.where for problem in problems] == ["agglomerate.scored_from"] * refused
