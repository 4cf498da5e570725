"""Mapping of too-new glibc functions in a program, on small ELF files made here."""

from __future__ import annotations

import importlib.util
import struct
import sys
from pathlib import Path
from types import ModuleType

import pytest

BED = Path(__file__).parent / "bed"


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"bed_{name}", BED / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


glibc = _load("glibc_symbols")


class Strings:
    """A string table that hands out offsets."""

    def __init__(self) -> None:
        self.table = b"\0"

    def at(self, text: str) -> int:
        offset = len(self.table)
        self.table += text.encode() + b"\0"
        return offset


def _elf(symbols: list[tuple[str, str]], library: str = "libc.so.6") -> bytes:
    """The smallest ELF that needs these (symbol, version): dynamic symbols, their versions, the needed versions."""
    strings = Strings()
    versions = list(dict.fromkeys(version for _, version in symbols))
    index = {version: 2 + i for i, version in enumerate(versions)}
    names = {version: strings.at(version) for version in versions}
    need = struct.pack("<HHIII", 1, len(versions), strings.at(library), 16, 0)
    for i, version in enumerate(versions):
        follow = 16 if i + 1 < len(versions) else 0
        need += struct.pack("<IHHII", glibc.elf_hash(version.encode()), 0, index[version], names[version], follow)
    dynsym, versym = bytes(24), struct.pack("<H", 0)
    for symbol, version in symbols:
        dynsym += struct.pack("<IBBHQQ", strings.at(symbol), 0x12, 0, 0, 0, 0)
        versym += struct.pack("<H", index[version])
    parts = [
        (".dynsym", dynsym, 0),
        (".dynstr", strings.table, 0),
        (".gnu.version", versym, 0),
        (".gnu.version_r", need, 1),
    ]
    section_names = Strings()
    body, headers = b"", bytes(64)
    for name, data, info in parts:
        headers += struct.pack("<IIQQQQIIQQ", section_names.at(name), 1, 0, 0, 64 + len(body), len(data), 0, info, 1, 0)
        body += data
    own = section_names.at(".shstrtab")
    headers += struct.pack("<IIQQQQIIQQ", own, 3, 0, 0, 64 + len(body), len(section_names.table), 0, 0, 1, 0)
    body += section_names.table
    head = b"\x7fELF\x02\x01\x01" + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, 64 + len(body), 0, 64, 0, 0, 64, 6, 5)
    return head + body + headers


def _needs(elf: bytes) -> list[tuple[str, str, bool]]:
    """(symbol, version, the version's hash is right), read independently of the sections' order."""
    sections = glibc._sections(elf)
    strings = sections[".dynstr"]
    versions = dict(glibc._needed_versions(elf, sections[".gnu.version_r"], strings))
    out = []
    for symbol, index in glibc._symbols_with_versions(elf, sections):
        if index:
            name = glibc._string(elf, strings.offset + struct.unpack_from("<I", elf, symbol)[0])
            (found,) = struct.unpack_from("<I", elf, versions[index].offset)
            version = versions[index].name
            out.append((name.decode(), version.decode(), found == glibc.elf_hash(version)))
    return out


def test_renamed_functions_of_a_later_glibc_get_their_old_name_and_version() -> None:
    elf = _elf([("puts", "GLIBC_2.2.5"), ("__isoc23_strtol", "GLIBC_2.38"), ("__isoc23_strtoul", "GLIBC_2.38")])
    out, names = glibc.mapped(elf)
    assert names == ["__isoc23_strtol", "__isoc23_strtoul"]
    assert len(out) == len(elf)
    assert _needs(out) == [
        ("puts", "GLIBC_2.2.5", True),
        ("strtol", "GLIBC_2.2.5", True),
        ("strtoul", "GLIBC_2.2.5", True),
    ]


def test_a_program_that_needs_nothing_new_is_left_as_it_is() -> None:
    elf = _elf([("puts", "GLIBC_2.2.5"), ("fstat", "GLIBC_2.33"), ("arc4random", "GLIBC_2.36")])
    assert glibc.mapped(elf) == (elf, [])


def test_mapping_twice_changes_nothing_more() -> None:
    once, _ = glibc.mapped(_elf([("puts", "GLIBC_2.2.5"), ("__isoc23_strtol", "GLIBC_2.38")]))
    assert glibc.mapped(once) == (once, [])


@pytest.mark.parametrize(
    ("symbols", "message"),
    [
        ([("puts", "GLIBC_2.2.5"), ("strlcpy", "GLIBC_2.38")], "strlcpy needs GLIBC_2.38"),
        ([("__isoc23_strtol", "GLIBC_2.38")], "GLIBC_2.2.5"),
    ],
)
def test_a_program_that_cannot_be_mapped_is_refused_and_left_as_it_is(
    symbols: list[tuple[str, str]], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "program"
    program.write_bytes(_elf(symbols))
    before = program.read_bytes()
    assert glibc.main([str(program)]) == 1
    assert message in capsys.readouterr().err
    assert program.read_bytes() == before


def test_a_file_that_is_no_program_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\n")
    assert glibc.main([str(script)]) == 1


def test_a_mapped_program_keeps_its_mode(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(_elf([("puts", "GLIBC_2.2.5"), ("__isoc23_strtol", "GLIBC_2.38")]))
    program.chmod(0o4755)
    assert glibc.main([str(program)]) == 0
    assert program.stat().st_mode & 0o7777 == 0o4755
    assert b"__isoc23_strtol" in program.read_bytes()
    assert list(tmp_path.iterdir()) == [program]
