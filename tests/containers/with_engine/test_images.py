"""Every image as any user, read-only, without rights, network or home: version, labels, and the work of its stage."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest

from lsdflow_contract.experiment import BLOCK_STAGES, GPU_STAGES, STAGES, TRAININGS
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import read_manifest

if TYPE_CHECKING:
    from conftest import Bench, Made

REPOSITORY = Path(__file__).resolve().parents[3]
TMPFS = ("--tmpfs", "/tmp")
TRIAL = "0.0.0"
# Compressed, as they are stored and sent; the stand-in of the base is 290 MB of every image.
SIF_LIMIT_MB = {"cpu": 500, "torch": 1000}


def _labels(bench: Bench, image: str) -> dict[str, str]:
    return json.loads(bench.call("docker", "image", "inspect", "--format", "{{json .Config.Labels}}", image).stdout)


def _layers(bench: Bench, image: str) -> list[str]:
    return json.loads(bench.call("docker", "image", "inspect", "--format", "{{json .RootFS.Layers}}", image).stdout)


def _inside(bench: Bench, image: str, script: str) -> str:
    """What a script prints, run as root, who alone sees all folders."""
    words = ["docker", "run", "--rm", "--network=none", "--user=0", "--entrypoint=bash", image, "-c", script]
    done = bench.call(*words)
    return done.stdout + done.stderr


@pytest.mark.proves("CON-03")
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("extra", [(), TMPFS], ids=["no writable folder", "tmpfs on /tmp"])
def test_version_is_that_of_the_label_and_of_the_project(
    stage: str, extra: tuple[str, ...], made: dict[str, Made], bench: Bench, workspace: Path
) -> None:
    done = bench.docker(stage, workspace, "--version", extra=extra)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{stage} {bench.version_of(stage)} (contract {bench.version_of('_contract')})")
    assert done.stderr == ""
    assert _labels(bench, made[stage].image)["org.opencontainers.image.version"] == bench.image_version(stage)


@pytest.mark.parametrize("stage", STAGES)
def test_labels_name_stage_contract_revision_and_base(stage: str, made: dict[str, Made], bench: Bench) -> None:
    labels = _labels(bench, made[stage].image)
    assert labels["lsdflow.stage"] == stage
    assert labels["lsdflow.contract"] == bench.version_of("_contract")
    assert labels["org.opencontainers.image.revision"].removesuffix("-dirty") == made[stage].revision
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", labels["org.opencontainers.image.base.digest"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", labels["org.opencontainers.image.created"])
    assert labels.get("lsdflow.torch", "") == ("cpu" if stage in GPU_STAGES else "")


@pytest.mark.proves("CON-01")
@pytest.mark.parametrize("stage", STAGES)
def test_an_image_holds_its_locked_packages_complete_and_no_compiler(
    stage: str, made: dict[str, Made], bench: Bench
) -> None:
    output = _inside(
        bench,
        made[stage].image,
        "for c in gcc cc g++ c++ ld make; do command -v $c; done;"
        " find /root /home -type f ! -name '.*';"
        # The base's pip; the image's own environment has none.
        " /usr/local/bin/python3 -m pip --python /opt/lsdflow/bin/python check; ls /opt/lsdflow/bin/[a-z]*[a-z]",
    )
    # lsds requires Cython, which only its compiled module needs; the images do not have that module.
    lacks = "lsds 0.1.3 requires cython, which is not installed."
    assert output.splitlines()[0] == (lacks if stage in TRAININGS else "No broken requirements found.")
    assert f"/opt/lsdflow/bin/{stage}" in output.splitlines()


@pytest.mark.parametrize("stage", STAGES)
def test_what_the_dockerfile_removes_is_needed_by_no_package(stage: str, made: dict[str, Made], bench: Bench) -> None:
    """libarrow_substrait was removed once: `--version` worked, and every import of pyarrow failed."""
    code = (
        "import importlib.util as u; names = ('torch', 'torch.multiprocessing', 'pyarrow.parquet', 'pyarrow.dataset');"
    )
    code += "[__import__(name) for name in names if u.find_spec(name.split('.')[0])]"
    words = ("docker", "run", "--rm", "--network=none", "--entrypoint=/opt/lsdflow/bin/python", made[stage].image)
    done = bench.call(*words, "-c", code)
    assert done.returncode == 0, done.stderr


def test_a_second_build_from_nothing_has_the_same_files(engine: None, workspace: Path, bench: Bench) -> None:
    """Of a copy with a version of its own: other tests use the image, and a checkout may change under a long run.

    The layer of the locked packages is the same to the bit. That of our own packages is compared by its files: right
    after the first build of new sources its digest was seen to differ twice, with all files, modes and times (in
    seconds) the same.
    """
    copy = workspace / "copy"
    for part in ("containers", "stages", ".dockerignore"):
        source = REPOSITORY / part
        (shutil.copytree if source.is_dir() else shutil.copy2)(source, copy / part)
    project = copy / "stages" / "prepare" / "pyproject.toml"
    text = project.read_text().replace(f'version = "{bench.version_of("prepare")}"', f'version = "{TRIAL}"')
    project.write_text(text)
    layers, files = [], []
    try:
        for options in ("", "--no-cache"):
            words = [sys.executable, copy / "containers" / "images.py", "build", "prepare"]
            done = bench.call(*words, BUILD_ARGS=options, timeout_s=600)
            assert done.returncode == 0, done.stderr
            layers.append(_layers(bench, f"lsdflow/prepare:{TRIAL}"))
            files.append(_files(bench, f"lsdflow/prepare:{TRIAL}"))
    finally:
        bench.call("docker", "image", "rm", f"lsdflow/prepare:{TRIAL}")
    assert sorted(files[0] ^ files[1]) == []
    assert layers[0][:-1] == layers[1][:-1]


def test_a_change_of_another_stage_leaves_every_layer_as_it_is(engine: None, workspace: Path, bench: Bench) -> None:
    copy = workspace / "changed"
    for part in ("containers", "stages", ".dockerignore"):
        source = REPOSITORY / part
        (shutil.copytree if source.is_dir() else shutil.copy2)(source, copy / part)
    words = [sys.executable, copy / "containers" / "images.py", "build", "prepare"]
    image = f"lsdflow/prepare:{TRIAL}"
    project = copy / "stages" / "prepare" / "pyproject.toml"
    project.write_text(project.read_text().replace(f'"{bench.version_of("prepare")}"', f'"{TRIAL}"', 1))
    layers, repeated = [], []
    try:
        for changed in ("prepare", "segment", "_runtime"):
            # New at each run: an engine keeps its cache from run to run.
            (copy / "stages" / changed / "src" / "new.py").write_text(f"x = '{uuid.uuid4()}'\n")
            done = bench.call(*words, BUILD_ARGS="--progress=plain", timeout_s=600)
            assert done.returncode == 0, done.stderr
            layers.append(_layers(bench, image))
            # Steps that install packages: those of the lock (locked), and lsdflow's.
            steps = re.findall(r"^#(\d+) \[(locked|lsdflow) [^\n]*RUN", done.stderr, re.MULTILINE)
            cached = re.findall(r"^#(\d+) CACHED", done.stderr, re.MULTILINE)
            repeated.append({name for number, name in steps if number not in cached})
    finally:
        bench.call("docker", "image", "rm", image)
    assert repeated == [{"lsdflow"}, set(), {"lsdflow"}]
    assert layers[0] == layers[1]


def test_bake_makes_the_same_image(made: dict[str, Made], bench: Bench, workspace: Path) -> None:
    """`make bake` gives the bake file what `make image` gives the engine; all layers come from the cache."""
    before = json.loads(bench.call("docker", "image", "inspect", made["prepare"].image).stdout)[0]
    words = ("make", "--no-print-directory", "-C", REPOSITORY, "bake", "STAGE=prepare", "TORCH=cpu")
    done = bench.call(*words, f"PYTHON={sys.executable}", timeout_s=600)
    assert done.returncode == 0, done.stderr
    after = json.loads(bench.call("docker", "image", "inspect", made["prepare"].image).stdout)[0]
    assert (after["RootFS"], after["Config"]["Labels"]) == (before["RootFS"], before["Config"]["Labels"])


LISTING = """
import hashlib, os
for folder, _, names in os.walk("/opt"):
    for path in (folder, *(os.path.join(folder, name) for name in names)):
        status = os.lstat(path)
        content = hashlib.sha256(open(path, "rb").read()).hexdigest() if os.path.isfile(path) else ""
        target = os.readlink(path) if os.path.islink(path) else ""
        print(path, oct(status.st_mode), int(status.st_mtime), status.st_uid, status.st_gid, content, target)
"""


def _files(bench: Bench, image: str) -> set[str]:
    """A line for each file below /opt of an image: differences between two builds are named."""
    done = bench.call("docker", "run", "--rm", "--entrypoint", "/opt/lsdflow/bin/python", image, "-c", LISTING)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines())


def test_prepare_and_both_trainings_run_as_any_user(
    fresh: Path, reference: Path, made: dict[str, Made], bench: Bench
) -> None:
    for stage in ("prepare", "train-lsd", "train-acrlsd"):
        for verb in ("validate", "run"):
            done = bench.docker(stage, fresh, verb, *bench.options("/experiment"), extra=TMPFS)
            assert done.returncode == 0, f"{stage} {verb}: {done.stdout}{done.stderr}"
    computed, expected = (read_manifest(ExperimentLayout(f), "prepare") for f in (fresh, reference))
    assert computed.identity == expected.identity
    assert computed.writer.revision == _labels(bench, made["prepare"].image)["org.opencontainers.image.revision"]


def test_the_package_lsds_in_the_image_computes_the_targets_of_a_training(
    trained: Path, made: dict[str, Made], bench: Bench
) -> None:
    """The clone trained on the same patches with lsdflow's own targets. The tolerances are those of tests/training."""
    layout = ExperimentLayout(trained)
    before = read_manifest(layout, "train-lsd")
    options = bench.options("/experiment", 'train-lsd.lsd_engine="lsds"')
    done = bench.docker("train-lsd", trained, "run", *options, extra=TMPFS)
    assert done.returncode == 0, done.stdout + done.stderr
    after = read_manifest(layout, "train-lsd")
    assert (before.config["lsd_engine"], after.config["lsd_engine"]) == ("lsdflow", "lsds")
    assert after.facts["iteration"] == 2
    assert "lsds" in after.facts["libraries"]
    own, published = (_first_batch(layout.results / "train-lsd" / made.key[:8]) for made in (before, after))
    for name in ("volumes/raw", "volumes/labels/neuron_ids", "volumes/lsds_weight"):
        assert np.array_equal(own[name], published[name]), name
    found, wanted = own["volumes/gt_embedding"], published["volumes/gt_embedding"]
    assert not np.array_equal(found, wanted), "the package did not compute them"
    assert found.any(axis=(1, 2, 3)).all()
    sizes_and_offsets = [0, 1, 2, 3, 4, 5, 9]
    np.testing.assert_allclose(found[sizes_and_offsets], wanted[sizes_and_offsets], atol=1e-4, rtol=0)
    # Pearson coefficients of thin objects are the rounding of float32 in the package.
    compact = (wanted[3:6] > 0.1).all(axis=0)
    assert compact.any()
    np.testing.assert_allclose(found[6:9, compact], wanted[6:9, compact], atol=1e-4, rtol=0)


def _first_batch(result: Path) -> dict[str, np.ndarray]:
    """The arrays of a training's first snapshot, by name."""
    names = ("volumes/raw", "volumes/labels/neuron_ids", "volumes/lsds_weight", "volumes/gt_embedding")
    with h5py.File(result / "snapshots" / "batch_1.hdf") as file:
        return {name: file[name][:] for name in names}


@pytest.mark.proves("CON-01")
def test_block_stages_without_any_writable_folder_leave_the_bits_of_the_clone(
    trained: Path, reference: Path, made: dict[str, Made], bench: Bench
) -> None:
    """The clone ran them by the serial runner in another folder; the images use daisy and two workers."""
    digest = "sha256:" + "5" * 64
    for stage in BLOCK_STAGES:
        for verb in ("validate", "run"):
            options = bench.options("/experiment", "compute.runner=daisy", "compute.workers=2")
            done = bench.docker(stage, trained, verb, *options, extra=("--env", f"LSDFLOW_IMAGE_DIGEST={digest}"))
            assert done.returncode == 0, f"{stage} {verb}: {done.stdout}{done.stderr}"
    for stage in BLOCK_STAGES:
        computed, expected = (read_manifest(ExperimentLayout(f), stage) for f in (trained, reference))
        assert computed.identity == expected.identity, stage
        assert computed.writer.image_digest == digest
    assert (trained / "report" / "index.html").stat().st_size > 0
    owners = {path.stat().st_uid for path in (trained / "runs").rglob("outcome.json")}
    assert 23456 in owners


@pytest.mark.parametrize(
    ("stage", "setting"),
    [
        ("train-acrlsd", "train-acrlsd.max_iteration=100000"),
        ("predict", "predict.block_shape=4 vox"),
    ],
)
def test_docker_stop_ends_a_run_as_interrupted_before_it_is_killed(
    stage: str, setting: str, trained: Path, made: dict[str, Made], bench: Bench
) -> None:
    folder = trained
    # A training that resumed the finished one would have nothing to do.
    if stage == "train-acrlsd":
        trained_files = [folder / "results" / stage, folder / "train" / stage, folder / "manifests" / f"{stage}.json"]
        bench.call("rm", "-r", *trained_files)
    before = set((folder / "runs" / stage).glob("*/log.txt"))
    # With the serial runner of the demo, or with whole cores, these blocks are finished before the signal comes.
    options = bench.options("/experiment", setting, "compute.runner=daisy")
    slow = ("--cpus", "0.5") if stage == "predict" else ()
    command = bench.docker_command(stage, folder, "run", *options, extra=("--detach", *slow))
    container = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    try:
        log = _log_of_work(folder / "runs" / stage, before, "blocks already done" if stage == "predict" else "")
        # Workers that load torch on half a core of a busy machine end when they have: a minute was not always enough.
        bench.call("docker", "stop", "-t", "240", container)
        state = bench.call("docker", "inspect", "--format", "{{.State.ExitCode}}", container)
        assert state.stdout.strip() == "75", bench.call("docker", "logs", container).stderr[-2000:]
        assert not re.search(r"\b(\d+)/\1 blocks", log.read_text()), "it continued to the end"
    finally:
        bench.call("docker", "rm", "--force", container)


def _log_of_work(runs: Path, before: set[Path], begun: str, timeout_s: float = 60) -> Path:
    """The log of the new run, once it says so and two seconds more."""
    end = time.monotonic() + timeout_s
    while True:
        new = [log for log in set(runs.glob("*/log.txt")) - before if begun in log.read_text()]
        if new:
            time.sleep(2)
            return new[0]
        assert time.monotonic() < end, "the run did not begin"
        time.sleep(0.2)


def test_sizes_are_within_their_limits(made: dict[str, Made], bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[dict[str, Any]] = []
    for stage, item in made.items():
        size = int(bench.call("docker", "image", "inspect", "--format", "{{.Size}}", item.image).stdout)
        limit = SIF_LIMIT_MB["torch" if stage in GPU_STAGES else "cpu"]
        rows.append({"stage": stage, "image": size // 10**6, "sif": item.sif.stat().st_size // 10**6, "limit": limit})
    with capsys.disabled():
        print(f"\n{'stage':14}{'image MB':>10}{'SIF MB':>8}{'limit':>7}{'build s':>9}{'convert s':>11}")
        for row in rows:
            item = made[row["stage"]]
            sizes = f"{row['stage']:14}{row['image']:10}{row['sif']:8}{row['limit']:7}"
            print(f"{sizes}{item.build_s:9.0f}{item.convert_s:11.0f}")
    assert [row for row in rows if row["sif"] > row["limit"]] == []
