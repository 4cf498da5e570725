"""pip's settings of this machine as image builds get them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

SOURCE = Path(__file__).parent / "bed" / "pip_for_images.py"
spec = importlib.util.spec_from_file_location("bed_pip_for_images", SOURCE)
assert spec is not None
assert spec.loader is not None
pip = importlib.util.module_from_spec(spec)
spec.loader.exec_module(pip)

SERVER = "http://192.0.2.1:8099"


def _for_images(lines: list[str], served: Path) -> dict[str, str]:
    return pip.for_images(pip.settings(lines), SERVER, served, "/inside/ca.crt")


def test_local_folders_become_addresses_and_are_served(tmp_path: Path) -> None:
    wheels, index = tmp_path / "wheels", tmp_path / "more" / "simple"
    wheels.mkdir()
    index.mkdir(parents=True)
    (wheels / "a.whl").write_text("a")
    (index / "index.html").write_text("b")
    served = tmp_path / "served"
    out = _for_images(
        [f"global.find-links='{wheels}'", f"global.extra-index-url='file://{index} https://example.org/simple'"], served
    )
    assert out["find-links"] == f"{SERVER}{wheels}"
    assert out["extra-index-url"] == f"{SERVER}{index} https://example.org/simple"
    assert out["trusted-host"] == "192.0.2.1"
    for file in (wheels / "a.whl", index / "index.html"):
        assert (served / file.relative_to("/")).read_text() == file.read_text()


def test_settings_without_local_folders_pass_unchanged_and_nothing_is_served(tmp_path: Path) -> None:
    out = _for_images(["global.index-url='https://example.org/simple'", "global.timeout='60'"], tmp_path / "served")
    assert out == {"index-url": "https://example.org/simple", "timeout": "60"}
    assert not (tmp_path / "served").exists()


def test_certificates_are_those_inside_the_image(tmp_path: Path) -> None:
    assert _for_images(["global.cert='/etc/mine.crt'"], tmp_path / "served") == {"cert": "/inside/ca.crt"}


def test_the_environment_comes_over_the_files_of_pip(tmp_path: Path) -> None:
    lines = [":env:.timeout='180'", "global.timeout='60'", "user.timeout='70'"]
    assert _for_images(lines, tmp_path / "served")["timeout"] == "180"


def test_files_of_this_machine_that_a_build_does_not_have_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "constraints.txt").write_text("numpy<2\n")
    lines = [f":env:.constraint='{tmp_path / 'constraints.txt'}'", "global.log='/var/log/pip.log'", "user.retries='9'"]
    assert _for_images(lines, tmp_path / "served") == {"retries": "9"}


def test_serving_twice_is_harmless(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    lines = [f"global.find-links='{tmp_path / 'wheels'}'"]
    assert _for_images(lines, tmp_path / "served") == _for_images(lines, tmp_path / "served")
