"""Numbers as text: 1.2 GB, 3 h 05, 40 s."""

from __future__ import annotations

UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def size(count: float) -> str:
    """Return bytes as text, in powers of 1000."""
    for unit in UNITS[:-1]:
        if abs(count) < 999.5:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} {UNITS[-1]}"


def duration(seconds: float) -> str:
    """Return a duration in seconds, minutes, hours or days."""
    if seconds < 10:
        return f"{seconds:.2g} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d}" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def hours(value: float) -> str:
    """Return hours of cores or GPUs; less than one hour in minutes or seconds."""
    if 0 < value < 1:
        return duration(3600 * value)
    return f"{value:.3g} h" if value < 999.5 else f"{value:.0f} h"


def money(value: float) -> str:
    """Return an amount with two decimals; "< 0.01" for a smaller one."""
    return "< 0.01" if 0 < value < 0.005 else f"{value:.2f}"


def count(value: float) -> str:
    """Return a count as text."""
    return f"{value:.0f}" if value < 1e6 else f"{value:.3g}"
