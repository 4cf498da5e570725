"""The scripts that prepare a node: clean shell, one line in fstab however often, packages only with their sum."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def node(azure: Path, commands: Path):
    """Run a line of bash with node.sh loaded; `commands` come first on PATH."""
    library = azure / "specs" / "default" / "cluster-init" / "files" / "node.sh"

    def run(line: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        command = ["bash", "-euo", "pipefail", "-c", f'source "$0"; {line}', str(library), *map(str, arguments)]
        path = {**os.environ, "PATH": f"{commands}:{os.environ['PATH']}", "JETPACK": str(commands / "jetpack")}
        return subprocess.run(command, capture_output=True, text=True, env=path, check=False)

    return run


def _command(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/usr/bin/env bash\n{script}\n")
    (folder / name).chmod(0o755)


def test_every_shell_script_passes_shellcheck(azure: Path) -> None:
    beside_python = str(Path(sys.executable).parent)
    shellcheck = shutil.which("shellcheck", path=f"{beside_python}:{os.environ['PATH']}")
    assert shellcheck, "shellcheck is missing: it comes with the tests' environment"
    scripts = [str(p) for p in azure.rglob("*.sh")]
    assert len(scripts) >= 7
    done = subprocess.run([shellcheck, "--external-sources", *scripts], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_every_script_that_runs_stops_at_the_first_error(azure: Path) -> None:
    for path in azure.rglob("scripts/*.sh"):
        assert "set -euo pipefail" in path.read_text(), path
        assert os.access(path, os.X_OK), path


def test_fstab_holds_one_line_however_often_a_node_starts(node, tmp_path: Path) -> None:
    fstab = tmp_path / "fstab"
    before = "# made at install\nUUID=1 / ext4 defaults 0 1\n10.9.9.9:/old /data nfs rw 0 0\n# 10.1.1.1:/x /data nfs\n"
    fstab.write_text(before)
    for _ in range(2):
        done = node('write_fstab "$1" "$(fstab_line 10.0.2.4 /lsdflow /data netapp-nfs3)"', fstab)
        assert done.returncode == 0, done.stderr
    lines = fstab.read_text().splitlines()
    assert [line for line in lines if " /data " in line and line[0] != "#"] == [
        "10.0.2.4:/lsdflow /data nfs rw,hard,proto=tcp,_netdev,nofail,vers=3,sec=sys,rsize=262144,wsize=262144 0 0"
    ]
    assert lines[:2] == before.splitlines()[:2]
    assert fstab.stat().st_mode & 0o777 == 0o644
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith("fstab")] == ["fstab"]


def test_only_blob_storage_is_mounted_without_locks(node) -> None:
    options = {k: node(f"mount_options {k}").stdout for k in ("netapp-nfs3", "netapp-nfs41", "blob-nfs3")}
    assert {k: "nolock" in v for k, v in options.items()} == {
        "netapp-nfs3": False,
        "netapp-nfs41": False,
        "blob-nfs3": True,
    }
    assert "vers=4.1" in options["netapp-nfs41"]
    assert "hard" in options["blob-nfs3"]


@pytest.mark.parametrize(
    "words",
    [
        ("10.0.2.4", "/x", "/data", "cifs"),
        ("", "/x", "/data", "netapp-nfs3"),
        ("a b", "/x", "/data", "blob-nfs3"),
        ("10.0.2.4", "x", "/data", "netapp-nfs3"),
        ("10.0.2.4", "/x", "/da ta", "netapp-nfs3"),
        ("$(reboot)", "/x", "/data", "netapp-nfs3"),
    ],
)
def test_a_wrong_mount_is_refused_before_fstab_is_touched(node, tmp_path: Path, words: tuple[str, ...]) -> None:
    fstab = tmp_path / "fstab"
    fstab.write_text("here\n")
    done = node('line=$(fstab_line "$2" "$3" "$4" "$5"); write_fstab "$1" "$line"', fstab, *words)
    assert done.returncode != 0
    assert done.stderr.startswith("lsdflow: ")
    assert fstab.read_text() == "here\n"


def test_an_unset_or_empty_setting_stops_the_node(node, commands: Path) -> None:
    _command(commands, "jetpack", "case $2 in full) echo 10.0.2.4;; empty) echo;; none) echo None;; *) exit 1;; esac")
    assert node("setting full").stdout == "10.0.2.4\n"
    for name in ("empty", "none", "absent"):
        done = node(f"value=$(setting {name}); echo continued")
        assert done.returncode != 0
        assert name in done.stderr
        assert "continued" not in done.stdout


def test_a_package_is_installed_only_if_its_sum_is_the_written_one(node, commands: Path, tmp_path: Path) -> None:
    content = b"a package\n"
    _command(commands, "jetpack", '[[ $1 == download ]]; printf "a package\\n" >"${!#}"')
    _command(commands, "apt-get", f'echo "$*" >>{tmp_path}/installed')
    sums = tmp_path / "packages.sha256"
    for text in ("", f"{'0' * 64}  tool.deb\n"):
        sums.write_text(text)
        done = node('install_package tool.deb "$1"', sums)
        assert done.returncode != 0
        assert "tool.deb" in done.stderr
        assert not (tmp_path / "installed").exists()
    sums.write_text(f"{hashlib.sha256(content).hexdigest()}  tool.deb\n")
    assert node('install_package tool.deb "$1"', sums).returncode == 0
    assert "tool.deb" in (tmp_path / "installed").read_text()
