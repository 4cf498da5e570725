"""The server gives the volumes to who knows the token, and nothing else to anybody."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import webbrowser
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from served import Served, serving
from viewed_experiment import MERGE_FUNCTION, make_viewed_experiment

from lsdflow_contract.errors import UsageError
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_view.layers import open_viewer_layers
from lsdflow_view.server import NoSuchRange, Site, ViewServer, client_folder, wanted_range
from lsdflow_view.show import browser_on, position_of

SECRET = b"outside of every volume"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server on an experiment of its own, with a secret beside the volumes and links that lead to it."""
    root = tmp_path_factory.mktemp("served")
    make_viewed_experiment(root)
    raw = root / "data" / "target.zarr" / "volumes" / "raw"
    (root / "secret.txt").write_bytes(SECRET)
    (raw / "link.txt").symlink_to(root / "secret.txt")
    (raw / "folder").symlink_to(root)
    (raw / "inside.txt").symlink_to(raw / ".zarray")
    with serving(open_viewer_layers(load_experiment(root)), root) as found:
        yield found


def test_files_of_a_volume_are_those_of_the_disk(served: Served) -> None:
    status, headers, content = served.get("volumes/raw/.zarray")
    assert (status, content) == (200, (served.root / "data/target.zarr/volumes/raw/.zarray").read_bytes())
    assert headers["Cache-Control"] == "no-store"
    assert served.get("volumes/raw/inside.txt")[2] == content, "a link that stays inside is followed"


def test_a_volume_that_is_itself_a_link_to_other_storage_is_served(tmp_path: Path) -> None:
    root = tmp_path / "exp"
    make_viewed_experiment(root)
    shutil.move(root / "data" / "target.zarr", tmp_path / "storage.zarr")
    (root / "data" / "target.zarr").symlink_to(tmp_path / "storage.zarr")
    site = Site(open_viewer_layers(load_experiment(root)), client_folder())
    found = site.find(("volumes", "raw", ".zarray"), "http://127.0.0.1")
    assert found == (tmp_path / "storage.zarr/volumes/raw/.zarray").resolve()


@pytest.mark.parametrize(
    "path",
    [
        "volumes/raw/../../../../secret.txt",
        "volumes/raw/..%2f..%2f..%2f..%2fsecret.txt",
        "volumes/raw/%2e%2e/%2e%2e/%2e%2e/%2e%2e/secret.txt",
        "volumes/raw/link.txt",
        "volumes/raw/folder/secret.txt",
        "volumes/raw//etc/passwd",
        "volumes/raw/%2Fetc%2Fpasswd",
        "volumes/raw/..%5c..%5csecret.txt",
        "volumes/raw/.zarray%00.txt",
        "volumes/../secret.txt",
        "volumes/secret.txt",
        "volumes/raw/",
        "volumes/raw",
        "volumes/",
        "v/view/../../../../secret.txt",
        "v/view/..%2f..%2f__init__.py",
        "experiment.toml",
        "luts/thresholds.json",
        f"thresholds/{MERGE_FUNCTION}/c/0/0/0",
        f"thresholds/{MERGE_FUNCTION}/c/0/0/0/99",
        f"thresholds/{MERGE_FUNCTION}/c/3/0/0/0",
        f"thresholds/{MERGE_FUNCTION}/c/-1/0/0/0",
        f"thresholds/{MERGE_FUNCTION}/c/0/0/0/%D9%A3",
        "thresholds/other/zarr.json",
        "no%ffsuch",
        "meshes/../secret.txt",
        "meshes/",
        "meshes/1:0:1",
        "meshes/5",
        "meshes/-1:0",
        "meshes/%D9%A3",
        "meshes/99999999999999999999999",
    ],
)
def test_nothing_but_files_of_the_volumes_is_found(served: Served, path: str) -> None:
    status, _, content = served.get(path)
    assert status == 404
    assert SECRET not in content
    assert b"root:" not in content


@pytest.mark.parametrize("token", ["", "x", "TOKEN", "%00", "v"])
def test_without_the_token_nothing_is_found(served: Served, token: str) -> None:
    for path in ("", "state.json", "volumes/raw/.zarray", "v/view/index.html"):
        assert served.ask(f"/{token}/{path}")[0] == 404
    assert served.ask(f"/{served.server.check.token[:-1]}/state.json")[0] == 404
    assert served.ask(served.server.check.token)[0] == 404
    assert len(served.server.check.token) >= 32


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "evil.example:80", "[::", "", "127.0.0.1:x"]
)
def test_a_page_of_another_site_that_resolves_to_us_is_refused(served: Served, host: str) -> None:
    assert served.get("state.json", Host=host)[0] == 403


def test_no_other_origin_is_let_in(served: Served) -> None:
    for path in ("state.json", "volumes/raw/.zarray", "meshes/info"):
        status, headers, _ = served.get(path, Origin="http://evil.example")
        assert status == 200
        assert not [name for name in headers if name.lower().startswith("access-control")]
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert headers["Referrer-Policy"] == "no-referrer"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_it_only_reads(served: Served, method: str) -> None:
    assert served.ask(f"/{served.server.check.token}/volumes/raw/.zarray", method)[0] == 501
    assert (served.root / "data/target.zarr/volumes/raw/.zarray").is_file()


def test_it_listens_on_loopback_alone_unless_an_interface_is_named(served: Served) -> None:
    assert served.server.server_address[0] == "127.0.0.1"
    everywhere = ".".join("0000")
    for host in (everywhere, "0", "0x0", "", "no.such.host.invalid"):
        with pytest.raises(UsageError):
            ViewServer(served.server.site, host)
    with pytest.raises(UsageError, match="cannot listen"):
        ViewServer(served.server.site, "127.0.0.1", served.server.server_address[1])


def test_the_start_leads_to_the_packaged_client_and_the_state(served: Served) -> None:
    status, headers, _ = served.get("", Host="localhost:9999")
    base = f"http://localhost:9999/{served.server.check.token}"
    assert (status, headers["Location"]) == (302, f"{base}/v/view/#!{base}/state.json")
    page = served.get("v/view/")[2].decode()
    script = page.partition('src="main.')[2].partition('"')[0]
    status, headers, _ = served.get(f"v/view/main.{script}")
    assert (status, headers["Content-Type"]) == (200, "text/javascript")
    state = json.loads(served.get("state.json", Host="localhost:9999")[2])
    urls = [source["url"] if isinstance(source := layer["source"], dict) else source for layer in state["layers"]]
    assert [url for url in urls if not url.startswith(f"zarr://{base}/")] == [f"precomputed://{base}/meshes"]


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        (None, None),
        ("bytes=0-9", (0, 10)),
        ("bytes=90-", (90, 100)),
        ("bytes=-8", (92, 100)),
        ("bytes=-800", (0, 100)),
        ("bytes=95-400", (95, 100)),
        ("bytes=9-3", None),
        ("bytes=1-2,5-6", None),
        ("bytes=-", None),
        ("lines=1-2", None),
        ("bytes=²-3", None),
    ],
)
def test_ranges_mean_what_http_says(header: str | None, wanted: tuple[int, int] | None) -> None:
    assert wanted_range(header, 100) == wanted


def test_ranges_of_shards_are_sent_and_ranges_behind_the_end_refused(served: Served) -> None:
    shard = served.root / "fragments.zarr/volumes/fragments/c/0/0/0"
    content = shard.read_bytes()
    status, headers, part = served.get("volumes/fragments/c/0/0/0", Range="bytes=-20")
    assert (status, part) == (206, content[-20:])
    assert headers["Content-Range"] == f"bytes {len(content) - 20}-{len(content) - 1}/{len(content)}"
    assert served.get("volumes/fragments/c/0/0/0", Range="bytes=3-7")[2] == content[3:8]
    assert served.get("volumes/fragments/c/0/0/0", Range=f"bytes={len(content)}-")[0] == 416
    with pytest.raises(NoSuchRange):
        wanted_range("bytes=-0", 100)
    status, headers, nothing = served.ask(f"/{served.server.check.token}/volumes/fragments/c/0/0/0", "HEAD")
    assert (status, headers["Content-Length"], nothing) == (200, str(len(content)), b"")


def test_a_damaged_chunk_is_reported_and_is_no_zeros(tmp_path: Path) -> None:
    make_viewed_experiment(tmp_path)
    shard = tmp_path / "fragments.zarr/volumes/fragments/c/0/0/0"
    with shard.open("r+b") as file:
        file.seek(200)
        file.write(b"\xff" * 64)
    with serving(open_viewer_layers(load_experiment(tmp_path)), tmp_path) as served:
        answers = [served.get(f"thresholds/{MERGE_FUNCTION}/c/1/0/0/{x}") for x in (0, 1)]
    broken = [content for status, _, content in answers if status == 500]
    assert broken
    assert b"a chunk cannot be read" in broken[0]


def test_the_position_is_in_nm_or_the_middle_of_a_voxel_of_the_target(viewed_experiment: Experiment) -> None:
    gallery = open_viewer_layers(viewed_experiment)
    voxel, offset = gallery.volumes["raw"].geometry.voxel_size_nm, gallery.volumes["raw"].geometry.offset_nm
    assert position_of(gallery, "480, 800.5,1e3") == (480.0, 800.5, 1000.0)
    middle = [o + (n + 0.5) * v for o, n, v in zip(offset, (4, 5, 6), voxel, strict=True)]
    assert position_of(gallery, "4, 5, 6 vox") == pytest.approx(middle)
    assert position_of(gallery, "1, 2, 3 um") == (1000.0, 2000.0, 3000.0)
    assert position_of(gallery, None) is None
    for wrong in ("", "1,2", "here", "1,2,3 parsec", "nan,1,2"):
        with pytest.raises(UsageError, match="--at"):
            position_of(gallery, wrong)
    state = replace(gallery, position_nm=(480.0, 800.0, 1000.0)).state("http://127.0.0.1")
    assert np.array(state["position"][:3]) * voxel[::-1] == pytest.approx([1000.0, 800.0, 480.0])


def test_the_token_is_in_no_argument_of_the_browser_and_in_no_file_of_others(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, str, int]] = []

    def open_page(address: str) -> None:
        page = Path(address.removeprefix("file://"))
        seen.append((address, page.read_text(), page.parent.stat().st_mode & 0o777))

    monkeypatch.setattr(webbrowser, "open", open_page)
    monkeypatch.setenv("DISPLAY", ":0")
    with browser_on(served.server.url):
        ((address, content, mode),) = seen
        assert served.server.check.token not in address
        assert served.server.url in content
        assert mode == 0o700
    assert not Path(address.removeprefix("file://")).exists()
    monkeypatch.delenv("DISPLAY")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    with browser_on(served.server.url), browser_on(None):
        assert len(seen) == 1, "no screen, no browser"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_prints_its_address_and_ends_cleanly(viewed_experiment: Experiment, number: int) -> None:
    command = [Path(sys.executable).parent / "lsdflow-view", "show", viewed_experiment.path.parent, "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as viewer:
        address = viewer.stdout.readline().strip() if viewer.stdout else ""
        host, port = address.removeprefix("http://").partition("/")[0].split(":")
        with socket.create_connection((host, int(port))):  # a browser that stays connected holds up nothing
            os.kill(viewer.pid, number)
            try:
                output = viewer.communicate(timeout=600)[1]
            finally:
                viewer.kill()  # nothing, if it has ended
    assert viewer.returncode == 0
    assert output.splitlines()[-1] == "the viewer has ended"
    assert "Traceback" not in output
