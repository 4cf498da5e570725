"""The grid of a sweep: its axes, its runs and their names, and the split over servers. Reads and writes no files."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lsdflow_contract.errors import UsageError
from lsdflow_contract.experiment import did_you_mean
from lsdflow_contract.hashing import hash_of
from lsdflow_launch.init.template import toml_value

LONGEST_NAME = 80
_HASH_CHARACTERS = 8
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._+-]+")


@dataclass(frozen=True)
class Point:
    """One value of an axis: its label, and the keys (table.key) that it sets."""

    label: str
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Axis:
    """One axis of the grid: a key of the experiment file, or a name for several keys that change together."""

    name: str
    points: tuple[Point, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """All keys that the points set."""
        return tuple(dict.fromkeys(key for point in self.points for key in point.settings))


@dataclass(frozen=True)
class Run:
    """One point of the grid: its number from 1, its unique name, its labels by axis, and all keys that it sets."""

    number: int
    name: str
    at: Mapping[str, str]
    settings: Mapping[str, Any]


def label_of(value: Any) -> str:
    """Return the label of a value in tables and names: 0.001, true, mean, mean+hist_quant_75, or its TOML text."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(isinstance(part, str | int | float) for part in value):
        return "+".join(label_of(part) for part in value)
    return toml_value(value)


def grid_of(axes: Sequence[Axis]) -> tuple[Run, ...]:
    """Return all runs with unique names; the last axis changes fastest."""
    combinations = list(itertools.product(*(axis.points for axis in axes)))
    settings = [merged_settings(points) for points in combinations]
    names = unique_names(axes, combinations)
    return tuple(
        Run(number, name, {axis.name: point.label for axis, point in zip(axes, points, strict=True)}, keys)
        for number, (name, points, keys) in enumerate(zip(names, combinations, settings, strict=True), 1)
    )


def merged_settings(points: Iterable[Point]) -> dict[str, Any]:
    """Return the keys of several points in one mapping."""
    return {key: value for point in points for key, value in point.settings.items()}


def unique_names(axes: Sequence[Axis], combinations: Sequence[Sequence[Point]]) -> list[str]:
    """Return a name for each combination: key-value pairs, with a hash if text was lost or two names would be equal.

    A name depends only on the combination's own values and the names of the axes, so a grid that grows keeps its names.
    """
    shorts = _short_names([axis.name for axis in axes])
    plain = ["_".join(f"{s}-{p.label}" for s, p in zip(shorts, points, strict=True)) for points in combinations]
    counts = Counter(_in_folder_names(text).casefold() for text in plain)
    names = []
    for text, points in zip(plain, combinations, strict=True):
        name = _in_folder_names(text)
        if name != text or len(name) > LONGEST_NAME or counts[name.casefold()] > 1:
            name = f"{name[: LONGEST_NAME - _HASH_CHARACTERS - 1]}-{_hash_of(points)}"
        names.append(name)
    return names


def groups_of(runs: Sequence[Run], by: Sequence[str]) -> list[list[Run]]:
    """Return the runs that stay together: those with the same values on the axes `by`, in the order of the grid."""
    groups: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(tuple(run.at[axis] for axis in by), []).append(run)
    return list(groups.values())


def part_of(runs: Sequence[Run], by: Sequence[str], number: int, parts: int) -> list[Run]:
    """Return the runs of server `number` (from 1) of `parts`: every parts-th group. UsageError (2) if out of range."""
    if not 1 <= number <= parts:
        raise UsageError("no such part", wanted=f"1/{parts} to {parts}/{parts}", found=f"{number}/{parts}")
    return [run for group in groups_of(runs, by)[number - 1 :: parts] for run in group]


def runs_where(runs: Sequence[Run], conditions: Sequence[str]) -> list[Run]:
    """Return the runs that match `axis=value` conditions: any value of one axis, and all named axes.

    Raises UsageError (2) for an axis or value that is not in the grid.
    """
    wanted: dict[str, set[str]] = {}
    for condition in conditions:
        axis, _, label = (text.strip() for text in condition.partition("="))
        known = list(dict.fromkeys(run.at[axis] for run in runs)) if runs and axis in runs[0].at else None
        if known is None:
            axes = list(runs[0].at) if runs else []
            raise UsageError(f"no axis {axis!r}", where="--where", found=condition, fix=did_you_mean(axis, axes))
        if label not in known:
            raise UsageError(f"{axis} has no value {label!r}", where="--where", fix=did_you_mean(label, known))
        wanted.setdefault(axis, set()).add(label)
    return [run for run in runs if all(run.at[axis] in labels for axis, labels in wanted.items())]


def grid_size(axes: Sequence[Axis]) -> int:
    """Return the number of runs, without creating them."""
    return math.prod(len(axis.points) for axis in axes)


def _short_names(names: Sequence[str]) -> list[str]:
    """Return the last word of each axis, or the whole name if two axes end in the same word."""
    ends = Counter(name.rpartition(".")[2] for name in names)
    return [end if ends[end := name.rpartition(".")[2]] == 1 else name for name in names]


def _in_folder_names(text: str) -> str:
    """Replace characters that are special to a shell, container engine or file system."""
    return _NOT_IN_NAMES.sub("-", text).lstrip(".-") or "run"


def _hash_of(points: Sequence[Point]) -> str:
    return hash_of(merged_settings(points))[:_HASH_CHARACTERS]
