"""install.sh, which installs the lock of an image: where packages come from, with local wheels and without.

pip and uv are stand-ins that note how they were called.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "containers" / "install.sh"
# Lists the settings of pip that it gets.
PYTHON = r"""#!/usr/bin/env bash
case "$*" in
  '-m pip config list') cat "$SETTINGS" ;;
  '-m pip install '* | '-m pip --python '*) echo "PYTHONPATH=${PYTHONPATH:-} pip $*" >>"$CALLS" ;;
  *) exec python3.11 "$@" ;;
esac
"""
UV = '#!/usr/bin/env bash\nprintf "%s\\n" "$@" >"$CALLS.uv"\n'


def _words(folder: Path, torch: str = "", lsds: str = "", **pip: str) -> list[str]:
    """The words of uv's call in a build; `torch`: its version in the lock; `pip`: settings of the base image's pip."""
    settings = folder / "settings"
    settings.write_text("".join(f"global.{name.replace('_', '-')}={value!r}\n" for name, value in pip.items()))
    for name, text in (("python3", PYTHON), ("uv", UV)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    script = folder / "install.sh"
    text = SCRIPT.read_text().replace("/build/bin/uv", str(folder / "uv")).replace("/opt/lsdflow", str(folder))
    script.write_text(text.replace("/build/", f"{folder}/build/"))
    (folder / "locked.txt").write_text("numpy==2.4.6\n" + (f"torch=={torch} \\\n" if torch else ""))
    if lsds:
        (folder / "lsds.txt").write_text(lsds)
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "UV_", "SSL_"))}
    env = {**kept, "PATH": f"{folder}:{kept['PATH']}", "CALLS": str(folder / "calls"), "SETTINGS": str(settings)}
    words = ["bash", str(script), str(folder / "locked.txt"), str(folder / "lsds.txt")]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--require-hashes" in (folder / "calls").read_text()
    return (folder / "calls.uv").read_text().splitlines()


def test_a_strangers_build_for_cpus_asks_pytorchs_own_index_for_torch(tmp_path: Path) -> None:
    words = _words(tmp_path, torch="2.13.0+cpu")
    assert words[words.index("--torch-backend") + 1] == "cpu"
    assert "--find-links" not in words
    assert {"--require-hashes", "--only-binary"} <= set(words)
    assert words[-1] == str(tmp_path / "locked.txt")


@pytest.mark.parametrize(
    ("torch", "wheel", "asks"), [("2.13.0+cpu", True, False), ("2.13.0+cpu", False, True), ("2.13.0", True, False)]
)
def test_a_local_cpu_wheel_of_torch_is_taken_instead(tmp_path: Path, torch: str, wheel: bool, asks: bool) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (wheels / f"{'torch' if wheel else 'other'}-2.13.0+cpu-cp311-cp311-linux_x86_64.whl").touch()
    words = _words(tmp_path, torch=torch, find_links=str(wheels))
    assert words[words.index("--find-links") + 1] == str(wheels)
    assert ("--torch-backend" in words) == asks


def test_an_image_without_torch_asks_for_no_backend(tmp_path: Path) -> None:
    assert "--torch-backend" not in _words(tmp_path)


def test_indexes_of_the_base_images_pip_are_handed_on(tmp_path: Path) -> None:
    words = _words(
        tmp_path, index_url="https://a.example/simple", extra_index_url="https://b.example\nhttps://c.example"
    )
    assert words[words.index("--default-index") + 1] == "https://a.example/simple"
    assert [words[i + 1] for i, word in enumerate(words) if word == "--index"] == [
        "https://b.example",
        "https://c.example",
    ]


@pytest.mark.parametrize("lsds", ["", "lsds==0.1.3\n"])
def test_lsds_is_built_from_its_locked_source_without_other_packages(lsds: str, tmp_path: Path) -> None:
    _words(tmp_path, lsds=lsds)
    _, *more = (tmp_path / "calls").read_text().splitlines()
    assert len(more) == bool(lsds)
    for call in more:
        assert {"--no-deps", "--no-build-isolation", "--require-hashes"} <= set(call.split())
        assert call.startswith(
            f"PYTHONPATH={tmp_path}/without_cython pip -m pip --python {tmp_path}/bin/python install "
        )
        assert "--no-binary :all:" in call
        assert call.endswith(f"-r {tmp_path}/lsds.txt")
