"""`lsdflow sync` with real rsync and rclone: all that the other place needs arrives there, and its results come back.

For HOST:PATH the real rsync runs at both ends; what stands for ssh gives the words of rsync to a shell, as sshd does.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from predicted_experiment import PREDICTIONS, make_predicted
from typer.testing import CliRunner, Result

from lsdflow_command.experiment_lock import experiment_lock
from lsdflow_contract.errors import UsageError
from lsdflow_contract.experiment import load_experiment
from lsdflow_launch.cli import app
from lsdflow_launch.sync import Place, copies
from lsdflow_watershed.cli import app as watershed

HERE = Path(__file__).resolve().parent
SSH = """#!/bin/sh
[ "$1" = -l ] && user=$2 && shift 2
echo "$user@$1" >>"$HOSTS"
shift
exec sh -c "$*"
"""


@pytest.fixture(scope="module", autouse=True)
def programs() -> None:
    done = subprocess.run([HERE / "install_rsync_rclone.sh"], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.fail(done.stderr, pytrace=False)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An experiment with a finished watershed, a file of secrets, an input outside of it, and a link to a volume."""
    from lsdflow_watershed.stage import Watershed

    folder = tmp_path_factory.mktemp("lab") / "my exp"
    Watershed().run(make_predicted(folder))
    shutil.copytree(folder / "volumes" / "target.zarr", folder.parent / "big.zarr")
    (folder / "linked.zarr").symlink_to("../big.zarr")
    (folder.parent / "mask.zarr").mkdir()
    (folder / "networks" / "fib-sem").mkdir(parents=True)
    (folder / "networks" / "fib-sem" / "weights.safetensors").write_bytes(b"weights")
    (folder / "compose.env").write_text("MONGO_PASSWORD=secret\n")
    (folder / "train").mkdir()
    (folder / "train" / "train-lsd").symlink_to("../results/watershed")
    (folder / "train" / "first").mkdir()
    with (folder / "experiment.toml").open("a") as file:
        file.write('[prepare.target]\nraw = "linked.zarr"\ntruth = "volumes/target.zarr"\nmask = "../mask.zarr"\n')
        file.write('[train-acrlsd]\ninitial_weights = "train/first"\n')
    return folder


@pytest.fixture
def lab(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made.parent, tmp_path / "lab", symlinks=True)
    return tmp_path / "lab" / made.name


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What rsync calls instead of ssh; it writes the host to the returned file."""
    (tmp_path / "ssh").write_text(SSH)
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("RSYNC_RSH", str(tmp_path / "ssh"))
    monkeypatch.setenv("HOSTS", str(tmp_path / "hosts"))
    return tmp_path / "hosts"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that is the remote `rclone:store:` of rclone, with its backend for local disks."""
    monkeypatch.setenv("RCLONE_CONFIG_STORE_TYPE", "alias")
    monkeypatch.setenv("RCLONE_CONFIG_STORE_REMOTE", str(tmp_path / "store"))
    monkeypatch.setenv("RCLONE_CONFIG", str(tmp_path / "rclone.conf"))
    return tmp_path / "store"


def sync(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["sync", *map(str, words)])


def files(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if not p.is_dir() or p.is_symlink()}


def verified(folder: Path) -> Result:
    return CliRunner().invoke(watershed, ["verify", "--experiment", str(folder)])


@pytest.mark.proves("DAT-15")
@pytest.mark.parametrize("kind", ["folder", "host", "remote"])
def test_settings_networks_and_volumes_go_there_and_results_come_back(
    lab: Path, tmp_path: Path, ssh: Path, store: Path, kind: str
) -> None:
    there = {"folder": tmp_path / "share" / "exp", "host": tmp_path / "its exp", "remote": store / "my exp"}[kind]
    address = {"folder": str(there), "host": f"ann@node:{there}", "remote": "rclone:store:my exp"}[kind]
    sent = sync(lab, address)
    assert sent.exit_code == 0, sent.output
    top = {path.split("/")[0] for path in files(there)}
    assert top == {"experiment.toml", "networks", "linked.zarr", "volumes"}
    assert not (there / "linked.zarr").is_symlink()
    assert files(there / "linked.zarr") == files(lab.parent / "big.zarr")
    assert load_experiment(there).tables == load_experiment(lab).tables
    assert f"{lab.parent / 'mask.zarr'} was not copied: it is outside" in sent.output
    assert "truth" not in sent.output
    # what the other place computes, and its locks, which are those of its processes
    for name in ("results", "store", "manifests", "runs", "train"):
        shutil.move(lab / name, there / name)
    (there / "runs" / "old").mkdir()
    (there / "runs" / "old" / "lock").write_text("{}")
    (there / "results" / "watershed" / "half.partial").write_text("")
    made = files(there)
    files_of_link = {path for path in made if path.startswith("linked.zarr/")}
    back = sync(address, lab, "--results")
    assert back.exit_code == 0, back.output
    assert "next: lsdflow verify " in back.output
    assert (lab / "train" / "train-lsd").readlink() == Path("../results/watershed")
    assert made - files(lab) - files_of_link == {"runs/old/lock", "results/watershed/half.partial"}
    assert not ssh.exists() if kind != "host" else set(ssh.read_text().split()) == {"ann@node"}


@pytest.mark.proves("DAT-15")
def test_verify_at_the_other_end_says_whether_all_arrived(lab: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    assert sync(lab, there).exit_code == sync(lab, there, "--results").exit_code == 0
    shutil.copytree(lab / PREDICTIONS, there / PREDICTIONS)  # the volumes of the fixture are not among the results
    whole = verified(there)
    assert whole.exit_code == 0, whole.output
    chunk = next(there.glob("results/watershed/*/fragments.zarr/volumes/fragments/c/0/0/0"))
    chunk.unlink()
    assert verified(there).exit_code != 0
    assert sync(lab, there, "--results", "--json").exit_code == 0
    assert verified(there).exit_code == 0


@pytest.mark.proves("SWP-08")
def test_a_copy_in_object_storage_serves_a_third_machine(lab: Path, tmp_path: Path, store: Path) -> None:
    """Settings and volumes through the storage to a node; then its results through the storage to the lab."""
    node, remote = tmp_path / "node", "rclone:store:lab/exp"
    assert sync(lab, remote).exit_code == sync(lab, remote, "--results").exit_code == 0
    first = sync(remote, node)
    assert first.exit_code == 0, first.output
    assert {path.name for path in node.iterdir()} == {"experiment.toml", "networks", "linked.zarr", "volumes"}
    assert f"next: lsdflow validate {node}" in first.output
    assert sync(remote, node, "--results").exit_code == 0
    assert (node / "train" / "train-lsd").is_symlink()
    assert files(node / "results") == files(lab / "results")


def test_a_copy_does_not_mix_with_a_run(lab: Path, tmp_path: Path) -> None:
    assert sync(lab, tmp_path / "there").exit_code == 0
    with experiment_lock(load_experiment(lab).layout):
        assert sync(lab, tmp_path / "there", "--results").exit_code == 73
        assert sync(tmp_path / "there", lab, "--results").exit_code == 73


@pytest.mark.parametrize("program", ["rsync", "rclone"])
def test_a_program_that_is_missing_is_named(lab: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    done = sync(lab, "node:exp" if program == "rsync" else "s3://bucket/exp")
    assert done.exit_code == 66
    assert f"{program} is not installed" in done.output
    assert f"apt-get install {program}" in done.output


def test_a_copy_that_fails_says_so_and_nothing_is_next(
    lab: Path, ssh: Path, tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = sync(lab, f"node:{tmp_path}/no/such/folder")
    assert missing.exit_code == 74, missing.output
    (tmp_path / "ssh").write_text("#!/bin/sh\nexit 255\n")
    unreachable = sync(f"node:{lab}", tmp_path / "there", "--results")
    assert unreachable.exit_code == 66, "results need an experiment that they belong to"
    unreachable = sync(f"node:{lab}", tmp_path / "there")
    assert unreachable.exit_code == 69
    monkeypatch.setenv("RCLONE_RETRIES", "1")
    store.write_text("no folder")
    assert sync(lab, "rclone:store:exp").exit_code == 69
    assert "next:" not in missing.output + unreachable.output


def test_an_address_says_which_program_copies() -> None:
    s3, remote = Place.of("s3://bucket/a/"), Place.of("rclone:lab:bucket/a")
    assert (s3.program, s3.address) == ("rclone", ":s3,env_auth=true:bucket/a")
    assert (remote.program, remote.address) == ("rclone", "lab:bucket/a")
    host, folder = Place.of("ann@node-1:data/my exp"), Place.of("share/exp")
    assert (host.program, host.host, host.path, host.here) == ("rsync", "ann@node-1", "data/my exp", False)
    assert (folder.program, folder.address, folder.here) == ("rsync", str(Path("share/exp").absolute()), True)
    assert host.next_step(True) == "ssh ann@node-1 'lsdflow verify '\"'\"'data/my exp'\"'\"''"
    assert Place.of("node:/exp").next_step(False) == "ssh node 'lsdflow validate /exp'"
    assert "lsdflow sync s3://bucket/a/ DIR --results && lsdflow verify DIR" in s3.next_step(True)
    with pytest.raises(UsageError, match="no program"):
        Place.of("ftp://node/exp")


def test_two_other_places_or_one_place_twice_are_refused(lab: Path) -> None:
    for source, target in (("node:exp", "s3://bucket/exp"), (lab, lab), ("node:exp", "other:exp")):
        with pytest.raises(UsageError, match="must be a folder here"):
            copies(Place.of(str(source)), Place.of(str(target)), results=False)


def test_no_option_of_ssh_and_no_secret_gets_into_a_command_line(lab: Path) -> None:
    assert Place.of("-oProxyCommand=sh:exp").here
    commands, _ = copies(Place.of(str(lab)), Place.of("s3://bucket/exp"), results=False)
    words = [word for command in commands for word in command]
    assert not [word for word in words if "key" in word.lower() or "secret" in word.lower()]
    assert all("--" in command for command in commands)


def test_json_names_what_was_not_copied(lab: Path, tmp_path: Path) -> None:
    facts = json.loads(sync(lab, tmp_path / "there", "--json").stdout)
    assert {path: why.split(";")[0] for path, why in facts["not_copied"].items()} == {
        str(lab.parent / "mask.zarr"): "it is outside of the experiment",
        str(lab / "train" / "first"): "it is a result",
    }
    assert facts["next"] == f"lsdflow validate {tmp_path / 'there'}"
