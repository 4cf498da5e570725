"""oci_layout.py: archives of engines old and new become a layout whose blobs are what their digests say."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "containers" / "oci_layout.py"
CONFIG = json.dumps({"config": {"Labels": {"lsdflow.stage": "watershed"}}}).encode()


def _layer(**files: bytes) -> bytes:
    """A layer: the tar of some files."""
    return _tar(files)


def _tar(files: dict[str, bytes], links: dict[str, str] | None = None, kind: bytes = tarfile.SYMTYPE) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        for name, target in (links or {}).items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, target
            tar.addfile(member)
    return out.getvalue()


def _manifest(*layers: str, config: str = "config.json") -> bytes:
    return json.dumps([{"Config": config, "RepoTags": ["lsdflow/watershed:0.1.0"], "Layers": layers}]).encode()


def _convert(archive: bytes, folder: Path) -> subprocess.CompletedProcess[bytes]:
    """By a pipe, as images.py does, which cannot be read twice."""
    return subprocess.run([sys.executable, str(PROGRAM), str(folder)], input=archive, capture_output=True, check=False)


def _blob(folder: Path, described: dict) -> bytes:
    algorithm, digest = described["digest"].split(":")
    data = (folder / "blobs" / algorithm / digest).read_bytes()
    assert hashlib.sha256(data).hexdigest() == digest
    assert len(data) == described["size"]
    return data


def _layers(archive: bytes, folder: Path) -> list[bytes]:
    """The layers of the converted archive as tars, all digests checked."""
    done = _convert(archive, folder)
    assert done.returncode == 0, done.stderr
    assert json.loads((folder / "oci-layout").read_text()) == {"imageLayoutVersion": "1.0.0"}
    (described,) = json.loads((folder / "index.json").read_text())["manifests"]
    manifest = json.loads(_blob(folder, described))
    assert _blob(folder, manifest["config"]) == CONFIG
    assert {layer["mediaType"] for layer in manifest["layers"]} == {"application/vnd.oci.image.layer.v1.tar+gzip"}
    return [gzip.decompress(_blob(folder, layer)) for layer in manifest["layers"]]


BASE = _layer(base=b"b" * 3000)
CODE = _layer(code=b"print('x')")
BIG = _layer(big=bytes(range(256)) * 8192)


def test_plain_layers_of_an_old_engine_are_kept_in_their_order(tmp_path: Path) -> None:
    files = {"b/layer.tar": CODE, "a/layer.tar": BASE, "c/layer.tar": BIG, "config.json": CONFIG}
    files["manifest.json"] = _manifest("a/layer.tar", "b/layer.tar", "c/layer.tar")
    assert _layers(_tar(files), tmp_path / "oci") == [BASE, CODE, BIG]


def test_layers_without_an_ending_are_known_by_the_manifest_however_small(tmp_path: Path) -> None:
    files = {"blobs/sha256/aa": BASE, "blobs/sha256/bb": BIG, "blobs/sha256/cc": CONFIG, "index.json": b"{}"}
    files["manifest.json"] = _manifest("blobs/sha256/aa", "blobs/sha256/bb", config="blobs/sha256/cc")
    assert _layers(_tar(files), tmp_path / "oci") == [BASE, BIG]


def test_gzipped_layers_stay_the_bytes_they_are(tmp_path: Path) -> None:
    packed = gzip.compress(BASE, mtime=0)
    files = {"a.tar": packed, "blobs/small": gzip.compress(CODE, mtime=0), "config.json": CONFIG}
    files["manifest.json"] = _manifest("a.tar", "blobs/small")
    assert _layers(_tar(files), tmp_path / "oci") == [BASE, CODE]
    assert (tmp_path / "oci" / "blobs" / "sha256" / hashlib.sha256(packed).hexdigest()).read_bytes() == packed


@pytest.mark.parametrize(
    ("kind", "target"), [(tarfile.SYMTYPE, "../a/layer.tar"), (tarfile.LNKTYPE, "a/layer.tar")], ids=["soft", "hard"]
)
def test_equal_layers_that_are_links_are_one_blob(kind: bytes, target: str, tmp_path: Path) -> None:
    files = {"a/layer.tar": BASE, "config.json": CONFIG, "manifest.json": _manifest("a/layer.tar", "b/layer.tar")}
    assert _layers(_tar(files, {"b/layer.tar": target}, kind), tmp_path / "oci") == [BASE, BASE]
    assert len(list((tmp_path / "oci" / "blobs" / "sha256").iterdir())) == 3


def test_the_same_archive_gives_the_same_layout(tmp_path: Path) -> None:
    archive = _tar({"a.tar": BASE, "config.json": CONFIG, "manifest.json": _manifest("a.tar")})
    _layers(archive, tmp_path / "one")
    _layers(archive, tmp_path / "two")
    assert (tmp_path / "one" / "index.json").read_bytes() == (tmp_path / "two" / "index.json").read_bytes()


WRONG = {
    "no archive": b"error: no such image",
    "nothing": b"",
    "cut off": _tar({"a.tar": BIG, "config.json": CONFIG})[:1_500_000],
    "no manifest": _tar({"a.tar": BASE}),
    "two images": _tar({"manifest.json": json.dumps([*json.loads(_manifest("a.tar")) * 2]).encode()}),
    "no image": _tar({"manifest.json": b"[]"}),
    "another manifest": _tar({"manifest.json": b"[3]"}),
    "no config": _tar({"a.tar": BASE, "manifest.json": _manifest("a.tar")}),
    "a layer missing": _tar({"config.json": CONFIG, "manifest.json": _manifest("a.tar")}),
    "a link to nowhere": _tar({"config.json": CONFIG, "manifest.json": _manifest("a.tar")}, {"a.tar": "b.tar"}),
    "zstd": _tar(
        {"a.tar": b"\x28\xb5\x2f\xfd" + b"x" * 99, "config.json": CONFIG, "manifest.json": _manifest("a.tar")}
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_not_the_archive_of_one_image_is_refused(case: str, tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("oci_layout", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["oci_layout"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    with pytest.raises(ValueError, match="not the archive of one image"):
        module.write_layout(io.BytesIO(WRONG[case]), tmp_path / "oci")
    assert not (tmp_path / "oci" / "index.json").exists()


def test_the_command_reports_a_wrong_archive_by_code_65_and_without_a_traceback(tmp_path: Path) -> None:
    done = _convert(b"error: no such image", tmp_path / "oci")
    assert done.returncode == 65
    assert done.stderr.startswith(b"error: not the archive of one image")
    assert b"Traceback" not in done.stderr
