"""Every experiment runs the images that it pins, and no others."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from desk import Desk, copy_of_clone, labels_of, timed
from experiments import identities, manifest, write_volumes
from submission import Submission

STAGE = "prepare"
OTHER_VERSION = "0.1.999"


@dataclass(frozen=True)
class Other:
    """Another version of the stage: its SIF and its pin."""

    sif: Path
    pin: str

    @property
    def digest(self) -> str:
        """Of the image that the SIF was made from."""
        return self.pin.partition("@")[2]


@pytest.fixture(scope="module")
def other(desk: Desk, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Other]:
    """The next version of a stage, built from a copy of the clone in which only the version is another one."""
    clone = copy_of_clone(tmp_path_factory.mktemp("other") / "clone")
    project = clone / "stages" / STAGE / "pyproject.toml"
    version = desk.images.pins[STAGE].partition("@")[0].rpartition(":")[2]
    project.write_text(project.read_text().replace(f'version = "{version}"', f'version = "{OTHER_VERSION}"', 1))
    folder = desk.cluster.sif_folder
    environment = {**os.environ, "SIF_DIR": str(folder), "TORCH": "cpu"}
    for left in folder.glob(f"{STAGE}_{OTHER_VERSION}_*.sif"):
        left.unlink()
    with timed(f"image and SIF of another version of {STAGE}"):
        for command in ("build", "convert"):
            words = [sys.executable, clone / "containers" / "images.py", command, STAGE]
            subprocess.run(words, check=True, env=environment, cwd=clone)
    (sif,) = folder.glob(f"{STAGE}_{OTHER_VERSION}_*.sif")
    yield Other(sif, f"lsdflow/{STAGE}:{OTHER_VERSION}@{labels_of(sif)['lsdflow.image.digest']}")
    sif.unlink()


def _untouched(folder: Path) -> dict[str, bytes]:
    """All files but those of the submission itself (runs/)."""
    files = (path for path in folder.rglob("*") if path.is_file() and "runs" not in path.relative_to(folder).parts)
    return {str(path): path.read_bytes() for path in files}


def test_two_versions_of_a_stage_run_side_by_side_and_both_are_named(
    desk: Desk, other: Other, whole: Submission
) -> None:
    first, second = desk.write("pinned-here"), desk.write("pinned-there")
    for folder in (first, second):  # with their times, which prepare's identity knows the volumes by
        shutil.copytree(whole.experiment / "input", folder / "input")
    (second / "images.env").write_text(desk.images.env(**{STAGE: other.pin}))
    with timed(f"two versions of {STAGE} side by side"):
        submissions = [desk.submit(folder, "--to", STAGE) for folder in (first, second)]
        for submission in submissions:
            submission.assert_completed(seconds=1500)
    writers = [manifest(folder, STAGE)["writer"] for folder in (first, second)]
    assert writers[0] == manifest(whole.experiment, STAGE)["writer"]
    assert writers[1]["version"] == OTHER_VERSION
    assert writers[1]["image_digest"] == other.digest != writers[0]["image_digest"]
    assert str(other.sif) in submissions[1].log(STAGE, "run")
    assert str(other.sif) not in submissions[0].log(STAGE, "run")
    assert identities(first, [STAGE]) == identities(second, [STAGE]) == identities(whole.experiment, [STAGE])


@pytest.fixture
def stand_in(desk: Desk, request: pytest.FixtureRequest) -> Callable[[Path], None]:
    """Put another SIF where the pinned one is expected; the folder of SIFs itself is left alone."""
    folder = desk.cluster.shared / f"sifs-{len(list(desk.cluster.shared.glob('sifs-*')))}"
    folder.mkdir()
    for sif in desk.images.sifs.values():
        (folder / sif.name).symlink_to(sif)
    request.node.sif_folder = folder

    def put(sif: Path) -> None:
        expected = folder / desk.images.sifs[STAGE].name
        expected.unlink()
        expected.symlink_to(sif)

    return put


@pytest.mark.parametrize("which", ["of another stage", "of another version"])
def test_a_wrong_sif_is_refused_with_76_before_anything_is_written(
    desk: Desk, other: Other, stand_in: Callable[[Path], None], request: pytest.FixtureRequest, which: str
) -> None:
    wrong = other.sif if which == "of another version" else desk.images.sifs["segment"]
    settings = {"images": str(request.node.sif_folder), "options": ["--hold"]}
    folder = desk.write(f"wrong-{which.rsplit(maxsplit=1)[-1]}", cluster=settings)
    write_volumes(folder)
    submission = desk.submit(folder, "--to", STAGE)
    stand_in(wrong)
    before = _untouched(folder)
    desk.cluster.run("scontrol", "release", *(number for _, _, number in submission.rows()))
    states = submission.wait_for_end(seconds=300)
    assert states == {(STAGE, "run"): {"FAILED"}, (STAGE, "verify"): {"CANCELLED"}}
    assert submission.exit_code(STAGE, "run") == 76
    log = submission.log(STAGE, "run")
    assert "another image than the pinned one" in log
    assert desk.images.pins[STAGE].partition("@")[2] in log
    assert _untouched(folder) == before

    refused = desk.cluster.run(desk.lsdflow, "submit", folder, "--to", STAGE, check=False)
    assert refused.returncode == 76, refused.stderr
    assert submission.folder == Submission.of(desk.cluster, folder).folder, "something was submitted"


def test_a_pin_without_its_sif_is_refused_at_once(desk: Desk) -> None:
    folder = desk.write("no-such-image")
    write_volumes(folder)
    (folder / "images.env").write_text(desk.images.env(**{STAGE: f"lsdflow/{STAGE}:9.9.9@sha256:{'0' * 64}"}))
    desk.give(folder)
    refused = desk.cluster.run(desk.lsdflow, "submit", folder, "--to", STAGE, check=False)
    assert refused.returncode == 66, refused.stderr
    assert f"{STAGE}_9.9.9_000000000000.sif" in refused.stderr
    assert not (folder / "runs" / "submit").exists()
