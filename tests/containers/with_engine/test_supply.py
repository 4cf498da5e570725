"""`make sbom` with the real tool: the bill of materials of a stage holds what its lock holds, no more and no less."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conftest import Bench

REPOSITORY = Path(__file__).resolve().parents[3]


def test_the_bill_of_materials_of_a_stage_is_its_lock(tmp_path: Path, bench: Bench) -> None:
    words = ["sbom", "STAGE=predict", f"SBOM_DIR={tmp_path}", f"PYTHON={sys.executable}"]
    done = bench.call("make", "--no-print-directory", "-C", REPOSITORY, *words)
    assert done.returncode == 0, done.stderr
    for variant in ("cpu", "cuda"):
        bill = json.loads((tmp_path / f"predict-{variant}.cdx.json").read_text())
        assert bill["bomFormat"] == "CycloneDX"
        root = bill["metadata"]["component"]
        assert (root["name"], root["version"]) == ("lsdflow-predict", bench.version_of("predict"))
        lock = (REPOSITORY / "stages" / "predict" / f"{variant}.lock").read_text()
        pins = re.findall(r"^([^ =]+)==([^ ]+)", lock, re.MULTILINE)
        assert sorted((c["name"], c["version"]) for c in bill["components"]) == sorted(pins)
        assert len(pins) > 30
