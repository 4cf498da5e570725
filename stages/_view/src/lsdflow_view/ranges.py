"""The Range header of a request: one range of bytes, as readers of shards use it for chunks."""

from __future__ import annotations

import re

_ONE_RANGE = re.compile(r"^bytes=(\d{0,18})-(\d{0,18})$", re.ASCII)


class NoSuchRange(ValueError):
    """The range begins after the end of the file."""


def wanted_range(header: str | None, size: int) -> tuple[int, int] | None:
    """First and one past the last byte that `bytes=a-b`, `bytes=a-` or `bytes=-n` names in a file of `size` bytes.

    None for the whole file: no header, several ranges, or an unknown form (a server may then send the whole file).
    Raises NoSuchRange if the range holds no byte of the file.
    """
    match = _ONE_RANGE.match(header.strip()) if header else None
    if match is None or match.groups() == ("", ""):
        return None
    first, last = match.groups()
    begin = int(first) if first else max(0, size - int(last))
    end = min(size, int(last) + 1) if first and last else size
    if first and last and int(last) < int(first):
        return None
    if begin >= size:
        raise NoSuchRange(header)
    return begin, end
