"""Let a program built against a later glibc load on Debian 12 (glibc 2.36), when all it needs are renamed functions.

Since glibc 2.38, `strtol` and its kin compile to `__isoc23_strtol` of version GLIBC_2.38; the plain functions are still
there. Three edits in the file, none of which moves a byte, point back to them: the symbol's name is taken a few letters
later in the string table ("__isoc23_strtol" -> "strtol"), and the needed version's name and hash become those of
GLIBC_2.2.5, the first of x86-64. Anything else that is too new is refused and the file is left alone.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PREFIX = b"__isoc23_"
NEWEST = (2, 36)
BASE_VERSION = b"GLIBC_2.2.5"


class CannotMap(Exception):
    """The file needs something that an older glibc does not have under any name."""


@dataclass(frozen=True)
class Section:
    """The place of a section in the file: offset and size in bytes, and its count of entries where it has one."""

    offset: int
    size: int
    entries: int


@dataclass(frozen=True)
class NeededVersion:
    """One entry of .gnu.version_r: its offset in the file and its name."""

    offset: int
    name: bytes


def mapped(elf: bytes) -> tuple[bytes, list[str]]:
    """The file's bytes with too-new functions mapped to their old names, and these functions' names.

    Raises CannotMap where a too-new symbol has no old name.
    """
    sections = _sections(elf)
    strings = sections[".dynstr"]
    too_new = {
        index: version
        for index, version in _needed_versions(elf, sections[".gnu.version_r"], strings)
        if _is_too_new(version.name)
    }
    if not too_new:
        return elf, []
    base_name = _string_offset(elf, strings, BASE_VERSION)
    out, names = bytearray(elf), []
    for symbol, index in _symbols_with_versions(elf, sections):
        if index not in too_new:
            continue
        (name_offset,) = struct.unpack_from("<I", elf, symbol)
        name = _string(elf, strings.offset + name_offset)
        if not name.startswith(PREFIX):
            raise CannotMap(f"{name.decode()} needs {too_new[index].name.decode()} and has no older name")
        struct.pack_into("<I", out, symbol, name_offset + len(PREFIX))
        names.append(name.decode())
    for version in too_new.values():
        struct.pack_into("<I", out, version.offset, elf_hash(BASE_VERSION))
        struct.pack_into("<I", out, version.offset + 8, base_name)
    return bytes(out), names


def elf_hash(name: bytes) -> int:
    """The hash of a version's name, as the System V ABI defines it."""
    value = 0
    for letter in name:
        value = (value << 4) + letter
        high = value & 0xF0000000
        value = (value ^ (high >> 24)) & ~high & 0xFFFFFFFF
    return value


def _is_too_new(version: bytes) -> bool:
    family, _, number = version.partition(b"_")
    if family != b"GLIBC" or not number[:1].isdigit():
        return False
    return tuple(int(part) for part in number.split(b".")[:2]) > NEWEST


def _sections(elf: bytes) -> dict[str, Section]:
    if elf[:6] != b"\x7fELF\x02\x01":
        raise CannotMap("not a 64-bit little-endian ELF file")
    (table,) = struct.unpack_from("<Q", elf, 40)
    size, count, names_index = struct.unpack_from("<HHH", elf, 58)
    headers = [struct.unpack_from("<IIQQQQII", elf, table + i * size) for i in range(count)]
    names = headers[names_index][4]
    found = {_string(elf, names + h[0]).decode(): Section(h[4], h[5], h[7]) for h in headers}
    if not {".dynsym", ".dynstr", ".gnu.version", ".gnu.version_r"} <= set(found):
        raise CannotMap("not dynamically linked with symbol versions")
    return found


def _needed_versions(elf: bytes, section: Section, strings: Section) -> Iterator[tuple[int, NeededVersion]]:
    """Version index -> entry, over all libraries that the file needs."""
    library = section.offset
    for _ in range(section.entries):
        _, count, _, first, to_next_library = struct.unpack_from("<HHIII", elf, library)
        entry = library + first
        for _ in range(count):
            _, _, index, name, to_next = struct.unpack_from("<IHHII", elf, entry)
            yield index, NeededVersion(entry, _string(elf, strings.offset + name))
            entry += to_next
        library += to_next_library


def _symbols_with_versions(elf: bytes, sections: dict[str, Section]) -> Iterator[tuple[int, int]]:
    """Offset of every dynamic symbol and its version's index; the top bit only says that it is hidden."""
    symbols, versions = sections[".dynsym"], sections[".gnu.version"]
    for i in range(symbols.size // 24):
        (index,) = struct.unpack_from("<H", elf, versions.offset + 2 * i)
        yield symbols.offset + 24 * i, index & 0x7FFF


def _string(elf: bytes, offset: int) -> bytes:
    return elf[offset : elf.index(b"\0", offset)]


def _string_offset(elf: bytes, strings: Section, wanted: bytes) -> int:
    table = elf[strings.offset : strings.offset + strings.size]
    at = table.find(wanted + b"\0")
    if at < 0:
        raise CannotMap(f"needs nothing of {wanted.decode()}, so that name is not in the file")
    return at


def main(paths: list[str]) -> int:
    """Map each file in place (written beside it, then renamed); 1 at the first that cannot be."""
    for path in map(Path, paths):
        try:
            elf, names = mapped(path.read_bytes())
        except CannotMap as problem:
            sys.stderr.write(f"{path}: {problem}\n")
            return 1
        if names:
            beside = path.with_name(path.name + ".mapped")
            beside.write_bytes(elf)
            beside.chmod(path.stat().st_mode)
            beside.replace(path)
        sys.stderr.write(f"{path}: {', '.join(names) or 'nothing'} mapped to older names\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
