"""The grid of a sweep: its axes, the names of its runs, and the split over servers. Reads and writes no files."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from lsdflow_contract.errors import UsageError
from lsdflow_contract.experiment import did_you_mean
from lsdflow_contract.hashing import hash_of
from lsdflow_contract.model import StrictModel
from lsdflow_launch.init.template import toml_value

RUNS, SHARED = "runs/", "shared/"
LONGEST_NAME = 80
_HASH_CHARACTERS = 8
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._+-]+")
# One point of the grid: the label of its value on each axis.
At = Mapping[str, str]


@dataclass(frozen=True)
class Axis:
    """One axis: a key of the experiment file, or a name for several. points: the keys that each label sets."""

    name: str
    points: Mapping[str, Mapping[str, Any]]

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that every point sets."""
        return tuple(next(iter(self.points.values())))


class Node(StrictModel):
    """An experiment folder of the sweep, and the stages that are computed in it."""

    folder: str = Field(description="relative to the sweep's folder")
    stages: tuple[str, ...]

    @property
    def is_base(self) -> bool:
        """True for the base experiment, which does not belong to the sweep."""
        return not self.folder.startswith((SHARED, RUNS))


class Run(StrictModel):
    """A run: its number from 1, its unique name, its labels by axis, and its folders, the base first, its own last."""

    number: int
    name: str
    at: dict[str, str]
    nodes: tuple[Node, ...]

    def links(self) -> Iterator[tuple[Node, Node, tuple[str, ...]]]:
        """Yield each folder but the last, the next one, and the stages whose results are linked from it to the next."""
        for number, (node, after) in enumerate(itertools.pairwise(self.nodes), 1):
            yield node, after, tuple(stage for earlier in self.nodes[:number] for stage in earlier.stages)


def label_of(value: Any) -> str:
    """Return the label of a value in tables and names: 0.001, true, mean, mean+hist_quant_75, or its TOML text."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(isinstance(part, str | int | float) for part in value):
        return "+".join(label_of(part) for part in value)
    return toml_value(value)


def grid_of(axes: Sequence[Axis]) -> list[dict[str, str]]:
    """Return all points of the grid; the last axis changes fastest."""
    names = [axis.name for axis in axes]
    return [dict(zip(names, labels, strict=True)) for labels in itertools.product(*(axis.points for axis in axes))]


def settings_at(axes: Sequence[Axis], at: At) -> dict[str, Any]:
    """Return the keys that a point of the grid sets."""
    return {key: value for axis in axes for key, value in axis.points[at[axis.name]].items()}


def unique_names(axes: Sequence[Axis]) -> list[str]:
    """Return a name for each point: key-value pairs, with a hash if text was lost or two names would be equal.

    A name depends only on the point's own values and the names of the axes, so a grid that grows keeps its names.
    """
    ends = Counter(axis.name.rpartition(".")[2] for axis in axes)
    shorts = {a.name: end if ends[end := a.name.rpartition(".")[2]] == 1 else a.name for a in axes}
    grid = grid_of(axes)
    texts = ["_".join(f"{shorts[name]}-{label}" for name, label in at.items()) for at in grid]
    # Characters that are special to a shell, container engine or file system are replaced.
    plain = [_NOT_IN_NAMES.sub("-", text).lstrip(".-") or "run" for text in texts]
    counts = Counter(name.casefold() for name in plain)
    names = []
    for at, text, name in zip(grid, texts, plain, strict=True):
        is_own = name == text and len(name) <= LONGEST_NAME and counts[name.casefold()] == 1
        suffix = hash_of(settings_at(axes, at))[:_HASH_CHARACTERS]
        names.append(name if is_own else f"{name[: LONGEST_NAME - _HASH_CHARACTERS - 1]}-{suffix}")
    return names


def part_of(runs: Sequence[Run], by: Sequence[str], number: int, parts: int) -> list[Run]:
    """Return the runs of server `number` (from 1) of `parts`; runs with the same labels on the axes `by` stay together.

    Raises UsageError (2) if there is no such part.
    """
    if not 1 <= number <= parts:
        raise UsageError("no such part", wanted=f"1/{parts} to {parts}/{parts}", found=f"{number}/{parts}")
    groups: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(tuple(run.at[axis] for axis in by), []).append(run)
    return [run for group in list(groups.values())[number - 1 :: parts] for run in group]


def runs_where(runs: Sequence[Run], axes: Mapping[str, Sequence[str]], conditions: Sequence[str]) -> list[Run]:
    """Return the runs that match `axis=value` conditions: any value of one axis, and all named axes.

    axes: the labels of each axis. Raises UsageError (2) for an axis or value that is not in the grid.
    """
    wanted: dict[str, set[str]] = {}
    for condition in conditions:
        axis, _, label = (text.strip() for text in condition.partition("="))
        if axis not in axes:
            raise UsageError(f"no axis {axis!r}", where="--where", found=condition, fix=did_you_mean(axis, list(axes)))
        if label not in axes[axis]:
            raise UsageError(f"{axis} has no value {label!r}", where="--where", fix=did_you_mean(label, axes[axis]))
        wanted.setdefault(axis, set()).add(label)
    return [run for run in runs if all(run.at[axis] in labels for axis, labels in wanted.items())]
