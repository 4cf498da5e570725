"""SWEEP.toml: the base experiment, the axes of the grid, how runs are split over servers, and the means.

base = "exp"                                    # an experiment's folder, or its file

[axes]
"agglomerate.merge_functions" = [["mean"], ["hist_quant_75"]]
"experiment.seed" = [0, 1, 2]

[axes.dataset]                                  # several keys that change together: a name for each set of values
cremi_a = { "prepare.target.raw" = "a.hdf", "prepare.target.truth" = "a.hdf" }

[split]
by = ["dataset"]                                # runs with the same dataset stay on one server

[means]
over = ["experiment.seed"]
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from lsdflow_contract.errors import ConfigError, MissingInput
from lsdflow_contract.experiment import STAGES, Experiment, did_you_mean, load_experiment
from lsdflow_contract.files import read_toml
from lsdflow_contract.model import StrictModel
from lsdflow_launch.sweep.grid import Axis, Point, Run, grid_of, grid_size, label_of

TABLES = ("experiment", "store", "compute", "cluster", *STAGES)
AVERAGED_ENDINGS = ("seed", "fold")
LARGEST_GRID = 100_000


class SplitTable(StrictModel):
    """[split]: which runs stay together."""

    by: tuple[str, ...] | None = Field(
        default=None, description="axes; runs with the same values on these axes are done by the same server"
    )


class MeansTable(StrictModel):
    """[means]: the axes that are averaged."""

    over: tuple[str, ...] | None = Field(
        default=None, description="axes over which the mean is taken (default: those whose names end in seed or fold)"
    )


class SweepTables(StrictModel):
    """The whole sweep file."""

    base: str = Field(description="the experiment that all runs are derived from: its folder or file")
    metric: str = Field(
        default="voi", description="score that is plotted and by which the table is sorted; lower is better"
    )
    axes: dict[str, Any] = Field(description="for each key a list of values, or a name for several sets of keys")
    split: SplitTable = SplitTable()
    means: MeansTable = MeansTable()


@dataclass(frozen=True)
class Sweep:
    """A sweep file that was read and checked, except for the checks of the stages."""

    path: Path
    base: Experiment
    metric: str
    axes: tuple[Axis, ...]
    split_by: tuple[str, ...]
    means_over: tuple[str, ...]

    @property
    def runs(self) -> tuple[Run, ...]:
        """All runs of the grid."""
        return grid_of(self.axes)

    @property
    def default_folder(self) -> Path:
        """The default folder of the runs: beside the sweep file, with its name."""
        return self.path.with_suffix("")


def load_sweep(path: Path) -> Sweep:
    """Read SWEEP.toml. Raises MissingInput (66) or ConfigError (78) with one message."""
    if not path.is_file():
        raise MissingInput("no sweep file", where=path, fix="README of _launch shows one")
    try:
        tables = SweepTables.model_validate(read_toml(path))
    except ValidationError as error:
        raise _config_error(error, path) from error
    axes = tuple(_axes(tables.axes, path))
    _refuse_shared_keys(axes, path)
    names = [axis.name for axis in axes]
    if grid_size(axes) > LARGEST_GRID:
        raise ConfigError("the grid is too large", where=path, wanted=f"<= {LARGEST_GRID}", found=grid_size(axes))
    split = _known_axes(tables.split.by, names, "split.by", path)
    means = _known_axes(tables.means.over, names, "means.over", path)
    return Sweep(
        path=path.resolve(),
        base=load_experiment(path.parent / tables.base),
        metric=tables.metric,
        axes=axes,
        split_by=tuple(names) if split is None else split,
        means_over=tuple(n for n in names if n.endswith(AVERAGED_ENDINGS)) if means is None else means,
    )


def _axes(tables: Mapping[str, Any], path: Path) -> Iterator[Axis]:
    if not tables:
        raise ConfigError("[axes] is empty", where=path, fix='name a key: "experiment.seed" = [0, 1, 2]')
    for name, value in tables.items():
        if isinstance(value, Mapping) and name not in TABLES:
            yield _named_axis(name, value, path)
            continue
        for key, values in _dotted(name, value):
            yield _plain_axis(key, values, path)


def _dotted(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield key and value of nested tables: TOML parses an unquoted dotted key as tables in tables."""
    if not isinstance(value, Mapping):
        yield name, value
        return
    for key, inner in value.items():
        yield from _dotted(f"{name}.{key}", inner)


def _plain_axis(key: str, values: Any, path: Path) -> Axis:
    where = f"{path}: axes, {key}"
    if not isinstance(values, list):
        raise ConfigError("an axis is a list of values", where=where, wanted=f"[{label_of(values)}, ...]", found=values)
    if not values:
        raise ConfigError("the axis is empty", where=where, fix="give it values, or take the axis out")
    for value in values:
        _require_plain(value, where)
    return Axis(key, _distinct([Point(label_of(value), {key: value}) for value in values], where))


def _named_axis(name: str, points: Mapping[str, Any], path: Path) -> Axis:
    where = f"{path}: axes.{name}"
    if not points:
        raise ConfigError("the axis is empty", where=where, fix="give it values, or take the axis out")
    found = []
    for label, settings in points.items():
        if not isinstance(settings, Mapping) or not settings:
            tables = did_you_mean(name, TABLES)
            wanted = f'{label} = {{ "table.key" = value, ... }}, or an axis that is a key ({tables})'
            raise ConfigError("a point of this axis sets no keys", where=where, wanted=wanted, found=repr(settings))
        _require_plain(dict(settings), where)
        found.append(Point(label, dict(settings)))
    if any(set(point.settings) != set(found[0].settings) for point in found):
        raise ConfigError("the points of one axis set different keys", where=where, fix="set all keys in each point")
    return Axis(name, _distinct(found, where))


def _distinct(points: Sequence[Point], where: str) -> tuple[Point, ...]:
    for number, point in enumerate(points):
        for other in points[:number]:
            if point.settings == other.settings and _kinds(point.settings) == _kinds(other.settings):
                raise ConfigError("a value occurs twice on the axis", where=where, found=point.label)
    labels = [point.label for point in points]
    if len(set(labels)) < len(labels):
        return tuple(Point(f"{p.label} ({n})", p.settings) for n, p in enumerate(points, 1))
    return tuple(points)


def _kinds(value: Any) -> Any:
    """Return the type information of a value: for settings 1 equals 1.0, but not true."""
    if isinstance(value, Mapping):
        return {key: _kinds(part) for key, part in value.items()}
    return [_kinds(part) for part in value] if isinstance(value, list) else isinstance(value, bool)


def _require_plain(value: Any, where: str) -> None:
    if isinstance(value, Mapping | list):
        for part in value.values() if isinstance(value, Mapping) else value:
            _require_plain(part, where)
    elif not isinstance(value, str | bool | int | float) or (isinstance(value, float) and not math.isfinite(value)):
        raise ConfigError("no value of a setting", where=where, wanted="text, number, true or false", found=value)


def _refuse_shared_keys(axes: Sequence[Axis], path: Path) -> None:
    """Raise ConfigError (78) if two axes set the same key: the last one would silently overwrite the first."""
    owners: dict[str, str] = {}
    for axis in axes:
        if axis.name in owners.values():
            raise ConfigError(f"the axis {axis.name} occurs twice", where=path)
        for key in axis.keys:
            for other, owner in owners.items():
                if key == other or key.startswith(f"{other}.") or other.startswith(f"{key}."):
                    raise ConfigError(f"two axes set {key}", where=path, found=f"{owner} and {axis.name}")
        owners |= dict.fromkeys(axis.keys, axis.name)


def _known_axes(wanted: Sequence[str] | None, names: Sequence[str], key: str, path: Path) -> tuple[str, ...] | None:
    if wanted is None:
        return None
    for name in wanted:
        if name not in names:
            raise ConfigError(f"{key}: no axis {name!r}", where=path, fix=did_you_mean(name, names))
    return tuple(name for name in names if name in wanted)


def _config_error(error: ValidationError, path: Path) -> ConfigError:
    first = error.errors()[0]
    dotted = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        models: dict[str, type[StrictModel]] = {"split": SplitTable, "means": MeansTable}
        model = models.get(str(first["loc"][0]), SweepTables) if len(first["loc"]) > 1 else SweepTables
        fix = did_you_mean(str(first["loc"][-1]), list(model.model_fields))
        return ConfigError(f"unknown key {dotted}", where=path, found=repr(first["input"]), fix=fix)
    if first["type"] == "missing":
        return ConfigError(f"{dotted} is missing", where=path, wanted=SweepTables.model_fields[dotted].description)
    return ConfigError(f"{dotted}: {first['msg']}", where=path, found=repr(first["input"]))
