"""The wrappers on a machine without SLURM and Apptainer: stand-ins on PATH that note how they were called."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from lsdflow_contract.experiment import STAGES

REPOSITORY = Path(__file__).resolve().parents[2]
WRAPPERS = REPOSITORY / "slurm_wrappers"
ADDRESS = "10.1.2.3"
DIGEST = "sha256:" + "ab12" * 16
# Notes its arguments; answers from the file answer-<name> (output) and code-<name> (exit code), if they are there.
STAND_IN = """#!{python}
import json, os, signal, sys, time
from pathlib import Path
here, name = Path({folder!r}), Path(sys.argv[0]).name
with (here / "calls").open("a") as calls:
    calls.write(json.dumps([name, *sys.argv[1:]]) + "\\n")
def answer(kind):
    path = here / (kind + "-" + name)
    return path.read_text() if path.exists() else ""
if name == "sbatch":
    count = here / "jobs"
    job = int(count.read_text()) + 1 if count.exists() else 101
    count.write_text(str(job))
    print(answer("answer") or job)
elif name == "singularity" and sys.argv[1] == "inspect":
    print(Path(sys.argv[-1]).read_text())
elif name == "singularity" and (here / "sleeps").exists():
    def stop(*_):
        time.sleep(1)
        (here / "stopped").touch()
        sys.exit(75)
    signal.signal(signal.SIGTERM, stop)
    (here / "up").touch()
    time.sleep(60)
elif name == "singularity":
    sys.exit(int((here / "code-exec").read_text()) if (here / "code-exec").exists() else 0)
else:
    print(answer("answer"), end="")
sys.exit(int(answer("code") or 0))
"""


@dataclass(frozen=True)
class Cluster:
    """The stand-ins and what they were called with."""

    folder: Path

    def module(self, path: Path) -> dict[str, str]:
        """Variables of a shell with the command `module`, which notes its words; `load singularity` adds a PATH."""
        note = f'echo "$*" >>{str(self.folder / "modules")!r}'
        return {"BASH_FUNC_module%%": f"() {{ {note}; [[ $2 == singularity ]] && PATH={str(path)!r}:$PATH; }}"}

    def answer(self, name: str, text: str = "", code: int = 0) -> None:
        """What a stand-in says from now on."""
        (self.folder / f"answer-{name}").write_text(text)
        (self.folder / f"code-{name}").write_text(str(code))

    def calls(self, name: str) -> list[list[str]]:
        """Arguments of all calls of a program."""
        path = self.folder / "calls"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [line[1:] for line in lines if line[0] == name]

    def environment(self, **more: str) -> dict[str, str]:
        """With the stand-ins first on PATH and nothing of a real job."""
        plain = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "LSDFLOW", "MONGO", "CUDA"))}
        return {**plain, "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", **more}

    def start(self, command: list[str | Path], **more: str) -> subprocess.Popen[str]:
        """Start a script among the stand-ins, and do not wait."""
        return subprocess.Popen(
            [str(c) for c in command], stderr=subprocess.PIPE, text=True, env=self.environment(**more)
        )

    def wait_for(self, name: str) -> None:
        """Wait until a stand-in has left a file."""
        deadline = time.monotonic() + 600
        while not (self.folder / name).exists():
            assert time.monotonic() < deadline, f"{name} did not come"
            time.sleep(0.05)

    def run(self, command: list[str | Path], cwd: Path | None = None, **more: str) -> subprocess.CompletedProcess[str]:
        """Run a script among the stand-ins."""
        return subprocess.run(
            [str(c) for c in command],
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
            env=self.environment(**more),
            cwd=cwd,
        )


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    """Programs of SLURM, singularity, and those that print a node's name and addresses."""
    folder = tmp_path / "stand-ins"
    (folder / "bin").mkdir(parents=True)
    for name in ("sbatch", "squeue", "scancel", "scontrol", "sinfo", "srun", "singularity", "hostname", "ip"):
        path = folder / "bin" / name
        path.write_text(STAND_IN.format(python=sys.executable, folder=str(folder)))
        path.chmod(0o755)
    stand_ins = Cluster(folder)
    stand_ins.answer("hostname", f"127.0.0.1 {ADDRESS} fd00::1 \n")
    return stand_ins


def write_sif(images: Path, stage: str, version: str = "0.1.0", digest: str = DIGEST, name: str = "") -> Path:
    """A file that the stand-in takes for a SIF: its labels."""
    images.mkdir(exist_ok=True)
    path = images / (name or f"{stage}_{version}_{digest[7:19]}.sif")
    labels = {"lsdflow.stage": stage, "org.opencontainers.image.version": version, "lsdflow.image.digest": digest}
    path.write_text("".join(f"{k}: {v}\n" for k, v in labels.items()))
    return path


def pins(version: str = "0.1.0", digest: str = DIGEST) -> str:
    """Text of images.env."""
    keys = ((s, s.upper().replace("-", "_")) for s in STAGES)
    return "".join(f"{key}_IMAGE=lsdflow/{stage}:{version}@{digest}\n" for stage, key in keys)


@pytest.fixture(params=["plain", "with a space"])
def experiment(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """An experiment's folder, its path with and without a space."""
    folder = tmp_path / request.param / "exp"
    folder.mkdir(parents=True)
    (folder / "experiment.toml").write_text("[experiment]\n")
    (folder / "images.env").write_text(pins())
    return folder


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    """Settings as in the example, with SIFs of all stages."""
    text = (WRAPPERS / "example.settings.env").read_text().replace("/shared/images", str(tmp_path / "images"))
    for stage in STAGES:
        write_sif(tmp_path / "images", stage)
    path = tmp_path / "settings.env"
    path.write_text(text.replace("BIND_RO='/data/volumes'\n", ""))
    return path


@pytest.fixture
def submission(experiment: Path, settings: Path) -> Path:
    """A submission's folder as pipeline.sh makes it."""
    folder = experiment / "runs" / "submit" / "20260101T000000-1"
    folder.mkdir(parents=True)
    for source in (*WRAPPERS.glob("*.sbatch"), WRAPPERS / "_common.sh", experiment / "images.env"):
        shutil.copy(source, folder)
    (folder / "settings.env").write_text(f"EXPERIMENT='{experiment}'\n" + settings.read_text())
    (folder / "jobs.tsv").write_text("watershed\tcoordinator\t101\tnow\nwatershed\tworkers\t102\tnow\n")
    return folder
