"""Nothing listens on all addresses; nothing is installed without its hash; versions with known holes are out.

What compose, images, SIFs and the Azure files do beyond this is tested where they are: see docs/security.md.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from lsdflow_runtime.store.mongo_connection import address_in, open_client

REPOSITORY = Path(__file__).resolve().parents[2]
EVERYWHERE = re.compile(r"(?<![\d.])0\.0\.0\.0(?![\d.])|\[::\]|bind_?ip_?all|INADDR_ANY|in6addr_any", re.IGNORECASE)
BINDING_CALLS = {"bind", "create_server", "start_server", "HTTPServer", "ThreadingHTTPServer", "TCPServer"}
# These name such addresses to forbid them.
FORBIDDERS = {"tests/azure/test_template.py", "tests/security/test_servers_and_locks.py"}
INSTALL = re.compile(r"\bpip(?:3)?\b(?: --python \S+)? (?:install|download|sync)\b[^&|\n]*")


def name_of(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


def texts_of(tracked: list[Path]) -> dict[str, str]:
    found = {name_of(p): p.read_bytes().decode(errors="replace") for p in tracked if p.suffix not in {".png", ".gz"}}
    assert len(found) > 300
    return found


def test_no_file_names_the_address_of_all_interfaces(tracked: list[Path]) -> None:
    found = [name for name, text in texts_of(tracked).items() if EVERYWHERE.search(text) and name not in FORBIDDERS]
    assert found == []


@pytest.mark.parametrize("text", ["host='0.0.0.0'", "bindIpAll: true", "--bind_ip_all", "http://[::]:80"])
def test_the_scan_knows_the_address_however_it_is_written(text: str) -> None:
    assert EVERYWHERE.search(text)


def bound_everywhere(text: str) -> list[int]:
    """Lines of calls that bind to an empty or computed-from-nothing host: ("", port)."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and getattr(node.func, "attr", getattr(node.func, "id", "")) in BINDING_CALLS
        and any(isinstance(p, ast.Constant) and p.value in ("", None, "::") for a in node.args for p in ast.walk(a))
    ]


def test_no_python_file_binds_without_an_address(tracked: list[Path]) -> None:
    assert bound_everywhere("s.bind(('', 80))") == [1]
    assert bound_everywhere("HTTPServer(('127.0.0.1', 80), h)") == []
    for path in tracked:
        if path.suffix == ".py" and name_of(path) not in FORBIDDERS:
            assert bound_everywhere(path.read_text()) == [], path


def test_every_install_wants_hashes_or_takes_nothing_from_an_index(tracked: list[Path]) -> None:
    calls = 0
    for name, text in texts_of(tracked).items():
        if name.endswith((".py", ".md", ".lock")):
            continue
        for call in INSTALL.findall(text.replace("\\\n", " ")):
            calls += 1
            assert "--require-hashes" in call or "--no-deps --no-build-isolation" in call or "--no-index" in call, name
    assert calls > 20


def test_every_pin_of_every_lock_has_a_hash(tracked: list[Path]) -> None:
    locks = [path for path in tracked if path.suffix == ".lock"]
    assert len(locks) > 15
    for lock in locks:
        lines = lock.read_text().splitlines()
        pins = [number for number, line in enumerate(lines) if re.match(r"[A-Za-z0-9]", line)]
        for number, after in zip(pins, [*pins[1:], len(lines)], strict=True):
            assert "==" in lines[number], f"{lock}: {lines[number]}"
            assert any("--hash=sha256:" in line for line in lines[number:after]), f"{lock}: {lines[number]}"


def test_torch_of_every_lock_is_one_without_known_ways_to_run_code_from_a_checkpoint(tracked: list[Path]) -> None:
    versions = [
        tuple(map(int, found.groups()))
        for path in tracked
        if path.suffix == ".lock"
        for found in re.finditer(r"^torch==(\d+)\.(\d+)", path.read_text(), re.MULTILINE)
    ]
    assert len(versions) >= 6
    assert min(versions) >= (2, 10)


def test_the_connection_to_the_store_is_not_compressed_even_if_the_uri_wants_it(tmp_path: Path) -> None:
    file = tmp_path / "uri"
    file.touch(mode=0o600)
    file.write_text("mongodb://127.0.0.1:9/graph?compressors=zlib")
    address = address_in(file)
    assert address.options["compressors"] == ["zlib"]
    with open_client(address, address.uri) as client:
        settings = client.options.pool_options._compression_settings
        assert settings is None or settings.compressors == []
