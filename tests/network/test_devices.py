"""How many GPUs there are is asked of torch only where there may be one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import sys
from pathlib import Path
from lsdflow_network.devices import gpu_count
print(gpu_count(Path(sys.argv[1])), "torch" in sys.modules)
"""


@pytest.mark.parametrize(
    ("there", "asked"), [("null", False), ("nvme0n1", False), ("nvidiactl", True), ("dxg", True), ("nvhost-gpu", True)]
)
def test_torch_is_asked_where_a_driver_is(tmp_path: Path, there: str, asked: bool) -> None:
    (tmp_path / there).touch()
    command = [sys.executable, "-c", CODE, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={"CUDA_VISIBLE_DEVICES": ""})
    assert done.stdout.split() == ["0", str(asked)]
