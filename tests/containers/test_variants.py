"""Variants of an image (torch for CPU or CUDA, tensorflow) have versions, locks, pins, SIFs and bills of their own.

Engine, Apptainer and the tool for bills of materials are stand-ins; at work: with_engine/test_tensorflow_variant.py.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from lsdflow_launch.images.pins import read_pins

REPOSITORY = Path(__file__).resolve().parents[2]
CONTAINERS = REPOSITORY / "containers"
ID = "sha256:" + "a" * 64
# Notes how it was called; labels and ids of every image but those named in $MISSING.
ENGINE = r"""#!/usr/bin/env bash
echo "$*" >>"$CALLS"
case "$*" in
  *inspect*lsdflow/*) if [[ -n ${MISSING:-} && $* == *$MISSING* ]]; then echo "No such image" >&2; exit 1; fi ;;&
  *'image.version'*) stage=${*: -1}; echo "${stage#*:}" ;;
  *.Size*) echo 1000000 ;;
  *.Id*) echo "$IMAGE_ID " ;;
esac
"""


class Bench:
    """The programs of containers/, with stand-ins for what they call."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, text in (("engine", ENGINE), ("apptainer", "#!/usr/bin/env bash\nexit 70\n")):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)

    def call(self, name: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """A command of images.py, or inventory.py; BACKEND and TORCH are those given, not the caller's."""
        kept = {key: value for key, value in os.environ.items() if key not in ("BACKEND", "TORCH", "IMAGE")}
        tools = {"CONTAINER_TOOL": str(self.folder / "engine"), "CALLS": str(self.folder / "calls"), "IMAGE_ID": ID}
        path = {"PATH": f"{self.folder}:{os.environ['PATH']}"}
        program = [name] if name.endswith(".py") else ["images.py", name]
        command = [sys.executable, str(CONTAINERS / program[0]), *program[1:], *words]
        env = {**kept, **tools, **path, **environment}
        return subprocess.run(command, env=env, check=False, capture_output=True, text=True)

    @property
    def builds(self) -> list[str]:
        """The builds that were asked of the engine."""
        calls = self.folder / "calls"
        return [c for c in calls.read_text().splitlines() if c.startswith("build")] if calls.exists() else []


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """Stand-ins in a folder of their own."""
    return Bench(tmp_path)


def _version(stage: str) -> str:
    text = (REPOSITORY / "stages" / stage / "pyproject.toml").read_text()
    return str(tomllib.loads(text)["project"]["version"])


@pytest.mark.parametrize(("torch", "variant"), [("cpu", "tensorflow"), ("cuda", "cuda-tensorflow")])
@pytest.mark.parametrize("stage", ["train-lsd", "train-acrlsd"])
def test_the_variant_is_built_from_the_same_dockerfile_under_a_version_of_its_own(
    stage: str, torch: str, variant: str, bench: Bench
) -> None:
    done = bench.call("build", stage, BACKEND="tensorflow", TORCH=torch)
    assert done.returncode == 0, done.stderr
    (build,) = bench.builds
    assert f"--tag lsdflow/{stage}:{_version(stage)}-{variant} " in build
    assert f"--build-arg VERSION={_version(stage)}-{variant} " in build
    assert f"--build-arg STAGE={stage} --build-arg TORCH={torch} --build-arg BACKEND=tensorflow " in build


@pytest.mark.proves("NEW-07")
@pytest.mark.parametrize("torch", ["cpu", "cuda", "cuda12"])
def test_the_images_of_a_stage_for_cpu_and_for_cuda_do_not_replace_each_other(torch: str, bench: Bench) -> None:
    """Tag, label, pin and SIF name the variant; an image without torch has none."""
    version = f"{_version('predict')}-{torch}"
    for stage in ("predict", "watershed"):
        assert bench.call("build", stage, TORCH=torch).returncode == 0
    predict, watershed = bench.builds
    assert f"--tag lsdflow/predict:{version} " in predict
    assert f"--build-arg VERSION={version} " in predict
    assert f"--tag lsdflow/watershed:{_version('watershed')} " in watershed
    path = bench.folder / "images.env"
    assert bench.call("pins", str(path), "predict", "watershed", TORCH=torch).returncode == 0
    pins = read_pins(path)
    assert str(pins["PREDICT_IMAGE"]) == f"lsdflow/predict:{version}@{ID}"
    assert pins["PREDICT_IMAGE"].make_option == f" TORCH={torch}"
    assert str(pins["WATERSHED_IMAGE"]) == f"lsdflow/watershed:{_version('watershed')}@{ID}"
    sif = bench.folder / f"predict_{version}_{'a' * 12}.sif"
    sif.write_text("x")
    assert str(sif) in bench.call("convert", "predict", TORCH=torch, SIF_DIR=str(bench.folder)).stdout


def test_a_variant_of_torch_that_there_is_not_is_a_usage_error(bench: Bench) -> None:
    for program, words in (("build", ["predict"]), ("pins", [str(bench.folder / "images.env"), "predict"])):
        done = bench.call(program, *words, TORCH="rocm")
        assert done.returncode == 2, program
        assert "no such variant of torch: rocm" in done.stderr
    done = bench.call("build", "train-lsd", BACKEND="tensorflow", TORCH="cuda12")
    assert done.returncode == 2
    assert "TORCH=cuda is for CUDA 12" in done.stderr
    assert bench.builds == []


@pytest.mark.parametrize("stage", ["predict", "train-lsd", "train-acrlsd"])
def test_the_locks_for_two_cudas_differ_in_torch_and_cuda_alone(stage: str) -> None:
    newer, older = _pins(f"{stage}/cuda.lock"), _pins(f"{stage}/cuda12.lock")
    of_torch = re.compile(r"(torch|triton|nvidia-[a-z-]+(12|13)?|cuda-[a-z]+|setuptools)==")
    assert not [pin for pin in newer ^ older if not of_torch.match(pin)]
    assert [pin for pin in older if re.match(r"nvidia-cuda-runtime-cu12==12[.]", pin)]


def test_a_build_with_torch_alone_is_the_same_build_however_it_is_named(bench: Bench) -> None:
    """An argument with another value, even an empty one, would be another key of the layer's cache."""
    for backend in ("", "torch"):
        assert bench.call("build", "train-lsd", BACKEND=backend, TORCH="cpu").returncode == 0
    first, second = bench.builds
    assert first == second
    assert "--build-arg TORCH=cpu --build-arg BACKEND=torch " in first
    assert f"--tag lsdflow/train-lsd:{_version('train-lsd')}-cpu " in first
    assert bench.call("build", "watershed", TORCH="cpu").returncode == 0
    assert "--build-arg TORCH= --build-arg BACKEND= " in bench.builds[2]


@pytest.mark.parametrize(
    ("program", "stage", "backend"),
    [
        ("build", "watershed", "tensorflow"),
        ("build", "train-lsd", "jax"),
        ("convert", "predict", "tensorflow"),
        ("pins", "predict", "tensorflow"),
        ("pins", "train-lsd", "jax"),
    ],
)
def test_what_is_no_variant_is_a_usage_error(program: str, stage: str, backend: str, bench: Bench) -> None:
    words = [str(bench.folder / "images.env")] if program == "pins" else []
    done = bench.call(program, *words, stage, BACKEND=backend, TORCH="cpu")
    assert done.returncode == 2
    assert ("no variant with tensorflow" if backend == "tensorflow" else "no such backend: jax") in done.stderr
    assert bench.builds == []
    assert not (bench.folder / "images.env").exists()


def _pins(lock: str) -> set[str]:
    return set(re.findall(r"^([^ =]+==[^ ]+)", (REPOSITORY / "stages" / lock).read_text(), re.MULTILINE))


@pytest.mark.parametrize("lock", ["cpu.lock", "cuda.lock"])
def test_tensorflows_lock_holds_every_package_that_the_stage_has_without_it(lock: str) -> None:
    """With CUDA too torch is that for CPUs: its own cuDNN and NCCL would overwrite the files of tensorflow's."""
    plain = _pins("train-lsd/cpu.lock") | _pins("train-acrlsd/cpu.lock")
    assert plain < _pins(f"_tensorflow/{lock}")
    assert not any(pin.startswith("tensorflow") for pin in plain)


def test_tensorflows_two_locks_differ_in_tensorflow_and_cuda_alone() -> None:
    cpu, cuda = _pins("_tensorflow/cpu.lock"), _pins("_tensorflow/cuda.lock")
    (tensorflow_cpu,) = cpu - cuda
    version = tensorflow_cpu.removeprefix("tensorflow-cpu==")
    added = {pin for pin in cuda - cpu if not re.match(r"nvidia-[a-z-]+-cu12==", pin)}
    assert added == {f"tensorflow=={version}"}
    assert {pin.partition("==")[0] for pin in cuda} >= {"nvidia-cudnn-cu12", "nvidia-cuda-nvcc-cu12"}


@pytest.mark.parametrize(("torch", "variant"), [("cpu", "tensorflow"), ("cuda", "cuda-tensorflow")])
def test_the_pin_of_a_variant_is_one_that_lsdflow_reads(torch: str, variant: str, bench: Bench) -> None:
    path = bench.folder / "images.env"
    done = bench.call("pins", str(path), "train-lsd", BACKEND="tensorflow", TORCH=torch)
    assert done.returncode == 0, done.stderr
    (pin,) = read_pins(path).values()
    assert str(pin) == f"lsdflow/train-lsd:{_version('train-lsd')}-{variant}@{ID}"
    assert pin.make_option == f" BACKEND=tensorflow TORCH={torch}"


def test_pins_of_all_stages_take_the_variant_where_there_is_one(bench: Bench) -> None:
    path = bench.folder / "images.env"
    assert bench.call("pins", str(path), BACKEND="tensorflow").returncode == 0
    versions = {key: pin.version for key, pin in read_pins(path).items()}
    assert {key for key, version in versions.items() if version.endswith("-tensorflow")} == {
        "TRAIN_LSD_IMAGE",
        "TRAIN_ACRLSD_IMAGE",
    }
    assert len(versions) == 8


def test_a_variant_that_is_not_here_says_how_to_build_it(bench: Bench) -> None:
    for torch in ("cpu", "cuda"):
        for program, words in (("pins", [str(bench.folder / "images.env")]), ("convert", [])):
            done = bench.call(program, *words, "train-lsd", BACKEND="tensorflow", TORCH=torch, MISSING="-tensorflow")
            assert done.returncode == 66, program
            assert f"make image STAGE=train-lsd BACKEND=tensorflow TORCH={torch}" in done.stderr, program


def test_the_sif_of_a_variant_is_named_by_its_version(bench: Bench) -> None:
    name = f"train-lsd_{_version('train-lsd')}-tensorflow_{'a' * 12}.sif"
    (bench.folder / name).write_text("x")
    done = bench.call("convert", "train-lsd", BACKEND="tensorflow", TORCH="cpu", SIF_DIR=str(bench.folder))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"{bench.folder / name} exists"


@pytest.mark.parametrize(
    ("version", "digest", "option"),
    [
        ("0.1.0", "aaaaaaaaaaaa", ""),
        ("0.1.0-tensorflow", "bbbbbbbbbbbb", " BACKEND=tensorflow TORCH=cpu"),
        ("0.1.0-cuda-tensorflow", "eeeeeeeeeeee", " BACKEND=tensorflow TORCH=cuda"),
        ("0.1.0-cpu", "cccccccccccc", " TORCH=cpu"),
        ("0.1.0-cuda", "dddddddddddd", " TORCH=cuda"),
        ("0.1.0-cuda12", "ffffffffffff", " TORCH=cuda12"),
    ],
)
def test_a_pin_without_digest_finds_its_own_variant_among_the_sifs(
    version: str, digest: str, option: str, tmp_path: Path
) -> None:
    for name in (
        "0.1.0_aaaaaaaaaaaa",
        "0.1.0-tensorflow_bbbbbbbbbbbb",
        "0.1.0-cuda-tensorflow_eeeeeeeeeeee",
        "0.1.0-cpu_cccccccccccc",
        "0.1.0-cuda_dddddddddddd",
        "0.1.0-cuda12_ffffffffffff",
    ):
        (tmp_path / f"train-lsd_{name}.sif").write_text("x")
    (tmp_path / "images.env").write_text(f"TRAIN_LSD_IMAGE=lsdflow/train-lsd:{version}\n")
    script = 'source "$1"; SETTING[IMAGES]=$2; read_pin train-lsd "$2/images.env"; find_sif train-lsd; '
    script += 'echo "$SIF"; sif_order train-lsd'
    words = ["bash", "-euc", script, "bash", str(REPOSITORY / "slurm_wrappers" / "_common.sh"), str(tmp_path)]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    sif, order = done.stdout.splitlines()
    assert Path(sif).name == f"train-lsd_{version}_{digest}.sif"
    assert order == "make sif STAGE=train-lsd" + option


def test_the_ledger_knows_what_a_variant_is_made_of() -> None:
    """A change of tensorflow's package spoils no published image without it, and one of its lock spoils the variant."""
    contents = {}
    for backend, torch, variant in (("torch", "cuda", "-cuda"), ("tensorflow", "cpu", "-tensorflow")):
        code = "import facts; print(*facts.content_of('train-acrlsd'), facts.image_version('train-acrlsd'))"
        words = [sys.executable, "-c", code]
        env = {**os.environ, "BACKEND": backend, "TORCH": torch, "PYTHONPATH": str(CONTAINERS)}
        done = subprocess.run(words, check=True, capture_output=True, text=True, env=env)
        *contents[backend], version = done.stdout.split()
        assert version == _version("train-acrlsd") + variant
        assert not any("$" in path for path in contents[backend])
    assert set(contents["tensorflow"]) - set(contents["torch"]) == {"stages/_tensorflow/cpu.lock", "stages/_tensorflow"}
    assert set(contents["torch"]) - set(contents["tensorflow"]) == {"stages/train-acrlsd/cuda.lock"}


def test_the_bills_of_materials_of_a_training_include_its_variant(tmp_path: Path, bench: Bench) -> None:
    tool = tmp_path / "bin" / "cyclonedx-py"
    tool.parent.mkdir()
    tool.write_text('#!/usr/bin/env bash\nwhile [[ $1 != --output-file ]]; do shift; done\necho "$3" >"$2"\n')
    tool.chmod(0o755)
    done = bench.call("inventory.py", "sbom", str(tmp_path), str(tmp_path / "out"), "train-lsd", "watershed")
    assert done.returncode == 0, done.stderr
    found = {path.name: path.read_text().strip() for path in (tmp_path / "out").iterdir()}
    assert found == {
        "train-lsd-cpu.cdx.json": str(REPOSITORY / "stages/train-lsd/cpu.lock"),
        "train-lsd-cuda.cdx.json": str(REPOSITORY / "stages/train-lsd/cuda.lock"),
        "train-lsd-cuda12.cdx.json": str(REPOSITORY / "stages/train-lsd/cuda12.lock"),
        "train-lsd-tensorflow-cpu.cdx.json": str(REPOSITORY / "stages/_tensorflow/cpu.lock"),
        "train-lsd-tensorflow-cuda.cdx.json": str(REPOSITORY / "stages/_tensorflow/cuda.lock"),
        "train-lsd-lsds.cdx.json": str(REPOSITORY / "stages/_training/lsds.lock"),
        "watershed.cdx.json": str(REPOSITORY / "stages/watershed/requirements.lock"),
    }
