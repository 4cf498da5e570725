"""SWEEP.toml: the base experiment, the axes of the grid, how runs are split over servers, and the means.

The README of this package shows one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from lsdflow_contract.errors import ConfigError, MissingInput
from lsdflow_contract.experiment import STAGES, Experiment, did_you_mean, load_experiment, validated
from lsdflow_contract.files import read_toml
from lsdflow_contract.model import StrictModel
from lsdflow_launch.init.template import toml_value
from lsdflow_launch.sweep.grid import At, Axis, label_of, settings_at

TABLES = ("experiment", "store", "compute", "cluster", *STAGES)
AVERAGED_ENDINGS = ("seed", "fold")


class SweepTables(StrictModel):
    """The whole sweep file."""

    base: str = Field(description="the experiment that all runs are derived from: its folder or file")
    metric: str = Field(default="voi", description="score that decides which mean is the best; lower is better")
    axes: dict[str, Any] = Field(description="for each key a list of values, or a name for several sets of keys")
    split: dict[Literal["by"], tuple[str, ...]] = Field(
        default={}, description="by: axes; runs with the same values on these axes are done by the same server"
    )
    means: dict[Literal["over"], tuple[str, ...]] = Field(
        default={}, description="over: axes over which the mean is taken (default: names that end in seed or fold)"
    )


@dataclass(frozen=True)
class Sweep:
    """A sweep file that was read and checked, except for the checks of the stages."""

    path: Path
    base: Experiment
    axes: tuple[Axis, ...]
    metric: str = "voi"
    split_by: tuple[str, ...] = ()
    means_over: tuple[str, ...] = ()

    @property
    def default_folder(self) -> Path:
        """The default folder of the runs: beside the sweep file, with its name."""
        return self.path.with_suffix("")

    def experiment_at(self, at: At, begun: Sequence[Axis] | None = None) -> Experiment:
        """Return the base with the settings of a point of the grid, on the axes `begun` only (default: all).

        Raises ConfigError (78) for an unknown table, or a wrong value of a table that belongs to no stage.
        """
        settings = settings_at(self.axes if begun is None else begun, at)
        return load_experiment(self.base.path, [f"{key}={toml_value(value)}" for key, value in settings.items()])


def load_sweep(path: Path) -> Sweep:
    """Read SWEEP.toml. Raises MissingInput (66) or ConfigError (78) with one message."""
    if not path.is_file():
        raise MissingInput("no sweep file", where=path, fix="README of _launch shows one")
    tables = validated(SweepTables, read_toml(path), "sweep", path)
    axes = tuple(_axes(tables.axes, path))
    if not axes:
        raise ConfigError("[axes] is empty", where=path, fix='name a key: "experiment.seed" = [0, 1, 2]')
    _refuse_shared_keys(axes, path)
    names = [axis.name for axis in axes]
    averaged = [name for name in names if name.endswith(AVERAGED_ENDINGS)]
    return Sweep(
        path=path.resolve(),
        base=load_experiment(path.parent / tables.base),
        axes=axes,
        metric=tables.metric,
        split_by=_known_axes(tables.split.get("by"), names, names, f"{path}: split.by"),
        means_over=_known_axes(tables.means.get("over"), averaged, names, f"{path}: means.over"),
    )


def _axes(tables: Mapping[str, Any], path: Path) -> Iterator[Axis]:
    for name, value in tables.items():
        of_keys = isinstance(value, Mapping) and name not in TABLES
        for key, points in [(name, value)] if of_keys else _dotted(name, value):
            where = f"{path}: axes, {key}"
            if points in ([], {}):
                raise ConfigError("the axis is empty", where=where, fix="give it values, or take the axis out")
            try:
                yield Axis(key, _named_points(name, points, where) if of_keys else _plain_points(key, points, where))
            except TypeError as error:  # of toml_value: a date
                wanted = "text, number, true or false"
                raise ConfigError("no value of a setting", where=where, wanted=wanted, found=points) from error


def _dotted(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield key and value of nested tables: TOML parses an unquoted dotted key as tables in tables."""
    if not isinstance(value, Mapping):
        yield name, value
        return
    for key, inner in value.items():
        yield from _dotted(f"{name}.{key}", inner)


def _plain_points(key: str, values: Any, where: str) -> dict[str, dict[str, Any]]:
    if not isinstance(values, list):
        raise ConfigError("an axis is a list of values", where=where, wanted=f"[{label_of(values)}, ...]", found=values)
    points = {label_of(value): {key: value} for value in values}
    if len(points) < len(values):
        raise ConfigError("a value occurs twice on the axis", where=where, found=toml_value(values))
    return points


def _named_points(name: str, points: Mapping[str, Any], where: str) -> dict[str, dict[str, Any]]:
    for label, settings in points.items():
        if not isinstance(settings, Mapping) or not settings:
            tables = did_you_mean(name, TABLES)
            wanted = f'{label} = {{ "table.key" = value, ... }}, or an axis that is a key ({tables})'
            raise ConfigError("a point of this axis sets no keys", where=where, wanted=wanted, found=repr(settings))
        toml_value(settings)
    if len({frozenset(settings) for settings in points.values()}) > 1:
        raise ConfigError("the points of one axis set different keys", where=where, fix="set all keys in each point")
    return {label: dict(settings) for label, settings in points.items()}


def _refuse_shared_keys(axes: Sequence[Axis], path: Path) -> None:
    """Raise ConfigError (78) if two axes set the same key: the last one would silently overwrite the first."""
    for axis, other in itertools.combinations(axes, 2):
        for a, b in itertools.product(axis.keys, other.keys):
            if f"{a}.".startswith(f"{b}.") or f"{b}.".startswith(f"{a}."):
                raise ConfigError(f"two axes set {max(a, b, key=len)}", where=path, found=f"{axis.name}, {other.name}")


def _known_axes(
    wanted: Sequence[str] | None, default: Sequence[str], names: Sequence[str], where: str
) -> tuple[str, ...]:
    """Return the wanted axes in the order of `names`. Raises ConfigError (78) for an unknown one."""
    chosen = default if wanted is None else wanted
    for name in chosen:
        if name not in names:
            raise ConfigError(f"no axis {name!r}", where=where, fix=did_you_mean(name, names))
    return tuple(name for name in names if name in chosen)
