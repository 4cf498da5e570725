"""How many GPUs there are is asked of torch only where there may be one."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from lsdflow_contract.errors import ConfigError
from lsdflow_network.devices import gpu_count, require_gpu, torch_facts

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


TOO_OLD = "The NVIDIA driver on your system is too old (found version 12080). Please update your GPU driver\nby ..."


def break_cuda(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """torch is built for CUDA 13, whose start fails with this text."""

    def init() -> None:
        raise RuntimeError(text)

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", init)


def test_a_driver_that_is_too_old_is_an_error_that_names_the_one_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    break_cuda(monkeypatch, TOO_OLD)
    with pytest.raises(ConfigError) as caught:
        gpu_count()
    needs = f"torch {torch.__version__} for CUDA 13.0 needs 580 or newer"
    assert caught.value.what == f"the driver of the GPU is too old: {needs}"
    assert "update the driver" in caught.value.fix
    facts = torch_facts()
    assert (facts["driver"], facts["cuda_problem"]) == ("580", caught.value.what)


def test_a_machine_without_a_driver_has_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    break_cuda(monkeypatch, "Found no NVIDIA driver on your system.")
    assert gpu_count() == 0
    assert torch_facts()["cuda_problem"] == "Found no NVIDIA driver on your system."


@pytest.mark.proves("TRB-12")
@pytest.mark.parametrize(("given", "refused"), [("0", True), ("GPU-5c1", True), ("", False), ("NoDevFiles", False)])
def test_a_job_with_gpus_does_not_silently_take_the_cpu(
    monkeypatch: pytest.MonkeyPatch, given: str, refused: bool
) -> None:
    """For example `singularity exec --nv` where the driver of the node is broken."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    with pytest.raises(ConfigError, match="was given GPUs") if refused else nullcontext():
        require_gpu("auto", 0)
    require_gpu("auto", 1)
    require_gpu("cpu", 0)


def test_a_gpu_that_is_named_must_be_there() -> None:
    for wanted in ("cpu", "auto", "cuda", "cuda:1"):
        require_gpu(wanted, 2)
    for wanted, count in (("cuda", 0), ("cuda:2", 2)):
        with pytest.raises(ConfigError, match="no such GPU"):
            require_gpu(wanted, count)
