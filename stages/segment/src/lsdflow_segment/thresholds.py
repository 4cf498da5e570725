"""Thresholds as exact decimals: whole numbers of 1/10000, so that 0.28 and 0.29 never become one.

The field names its tables int(threshold * 100); in binary floating point 0.29 * 100 is 28.999999999999996, so the
table of 0.29 was written over the one of 0.28. Here a threshold is counted in ten-thousandths and its file name
shows all four decimals.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation

from lsdflow_contract.errors import ConfigError, MissingInput

_PARTS = 10_000


def ten_thousandths(value: float, field: str) -> int:
    """A threshold in whole ten-thousandths. ConfigError naming `field` if it has more decimals or is not in [0, 1]."""
    try:
        exact = Decimal(str(value)) * _PARTS
        whole = int(exact)
    except (InvalidOperation, ValueError, OverflowError) as error:
        raise ConfigError(f"{field} is not a number", found=repr(value)) from error
    if exact != whole:
        raise ConfigError(f"{field} has more than four decimals", wanted="a multiple of 0.0001", found=str(value))
    if not 0 <= whole <= _PARTS:
        raise ConfigError(f"{field} lies outside the scores", wanted="0 to 1 (score = 1 - affinity)", found=str(value))
    return whole


def threshold_range(minmax: tuple[float, float], step: float) -> tuple[float, ...]:
    """All thresholds from min to max, both included where the step meets them; ascending and distinct.

    Raises ConfigError if max < min, the step is not positive, or a value has more than four decimals.
    """
    first = ten_thousandths(minmax[0], "segment.thresholds_minmax")
    last = ten_thousandths(minmax[1], "segment.thresholds_minmax")
    stride = ten_thousandths(step, "segment.thresholds_step")
    if last < first:
        raise ConfigError("segment.thresholds_minmax goes down", wanted="[smaller, larger]", found=str(list(minmax)))
    if stride == 0:
        raise ConfigError("segment.thresholds_step must be positive", wanted="0.0001 or more", found=str(step))
    return tuple(part / _PARTS for part in range(first, last + 1, stride))


def with_extra(thresholds: Sequence[float], extra: Sequence[float], field: str) -> tuple[float, ...]:
    """The thresholds and the `extra` ones of config key `field`, ascending, each once."""
    parts = {ten_thousandths(t, "thresholds") for t in thresholds} | {ten_thousandths(t, field) for t in extra}
    return tuple(part / _PARTS for part in sorted(parts))


def require_computed(threshold: float, computed: Sequence[float], merge_function: str) -> float:
    """The threshold itself if it was computed, else MissingInput that lists those that exist."""
    wanted = ten_thousandths(threshold, "segment.threshold")
    if wanted not in {ten_thousandths(t, "thresholds") for t in computed}:
        raise MissingInput(
            f"no table for threshold {threshold:.4f} of {merge_function}",
            wanted=f"threshold {threshold:.4f}",
            found=", ".join(f"{t:.4f}" for t in computed) or "none",
            fix="choose one of these, or widen thresholds_minmax / thresholds_step and run segment again",
        )
    return wanted / _PARTS
