"""The experiment file: one TOML table per stage and common tables; `--set table.key=value` overrides a value."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field, ValidationError, field_validator

from lsdflow_contract.checkpoint import Mode
from lsdflow_contract.errors import ConfigError, MissingInput, PermissionDenied
from lsdflow_contract.files import DEEPEST, parse_toml, read_toml
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.model import StrictModel
from lsdflow_contract.no_experiment import first_step

# What stages.toml says of each stage, in the order of the chain.
_DECLARED: dict[str, dict[str, Any]] = read_toml(Path(__file__).with_name("stages.toml"))
STAGES = tuple(_DECLARED)
BLOCK_STAGES = tuple(stage for stage in STAGES if _DECLARED[stage].get("blocks"))
GPU_STAGES = tuple(stage for stage in STAGES if _DECLARED[stage].get("gpu"))
TRAININGS = tuple(stage for stage in STAGES if _DECLARED[stage]["environment"] == "training")

# A message shows a wrong value, not the whole table that contains it.
LONGEST_VALUE = 200

Profile = Literal["tiny", "tiny-anisotropic", "general", "general-anisotropic", "standard", "snemi3d"]
Config = TypeVar("Config", bound=StrictModel)
# pydantic appends the kind of value that it tried to the location of an error.
_BRANCH = re.compile(r"^(literal\[.*|int|float|str|bool|constrained-\w+|function-.*|nullable.*)$")
# How our validators report an unknown word.
_UNKNOWN = re.compile(r"unknown [a-z ]* (\w+)[^;]*; known: (.*)")
# User and password of an address; a password may hold an @ that should have been written %40.
_LOGIN = re.compile(r"(?<=://)\S*@")


class ExperimentTable(StrictModel):
    """[experiment]: name, mode and profile of the experiment."""

    name: str = Field(
        default="experiment", pattern=r"^[A-Za-z0-9_.-]+$", description="name of the experiment, shown in reports"
    )
    mode: Mode = Field(
        default="acrlsd",
        description="acrlsd: one network predicts LSDs, a second one affinities from raw and LSDs; mtlsd: one network "
        "predicts both; affinities: no LSDs, for comparison",
    )
    profile: Profile = Field(
        default="standard",
        description="size of the networks and of the training. tiny: minutes on two CPU cores; general: minutes on a "
        "GPU, a day on a CPU; standard: as published; tiny-anisotropic, general-anisotropic, snemi3d: the same for "
        "thick sections",
    )
    seed: int = Field(default=0, ge=0, description="random seed of the initial weights and of the sampling")


class StoreTable(StrictModel):
    """[store]: where done marks and the graph are stored."""

    engine: Literal["files", "mongo"] = Field(
        default="files",
        description="where marks of finished blocks and the graph are stored. files: in this folder, one Parquet file "
        "per block; mongo: on a MongoDB server",
    )
    uri_file: str | None = Field(
        default=None,
        description="mongo: file (mode 0600) that contains the mongodb:// URI (default: the file named by "
        "$MONGO_URI_FILE)",
    )
    database: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9_-]{1,63}$",
        description="mongo: name of the database (default: the name of the experiment)",
    )
    retry_s: float = Field(
        default=120.0,
        ge=0,
        le=1e7,
        description="mongo: how long to wait for a server that does not answer, seconds; then exit code 69",
    )

    @field_validator("uri_file")
    @classmethod
    def _is_no_uri(cls, value: str | None) -> str | None:
        if value is not None and "://" in value:
            msg = "this is the URI itself: write it into a file of mode 0600 and name that file here"
            raise ValueError(msg)
        return value


class ComputeTable(StrictModel):
    """[compute]: how blocks are processed."""

    runner: Literal["daisy", "serial", "cluster"] = Field(
        default="daisy",
        description="daisy: several worker processes; serial: one block after another in one process; cluster: workers"
        " are other jobs (set by the SLURM wrappers)",
    )
    workers: int = Field(default=2, ge=1, le=1024, description="number of worker processes")
    threads_per_worker: int = Field(default=1, ge=1, le=1024, description="CPU threads of each worker")
    block_timeout_s: float = Field(
        default=900.0, gt=0, le=1e7, description="reassign a block to another worker after this many seconds"
    )
    failed_blocks: Literal["stop", "accept"] = Field(
        default="stop",
        description="when blocks still fail after all attempts. stop: the stage ends with exit code 79; accept: "
        "predict, watershed, agglomerate and segment finish without them, and every later manifest, the report and the "
        "viewer list the holes",
    )
    max_failed: int = Field(
        default=10,
        ge=0,
        description='failed_blocks = "accept": most failed blocks of a stage that are accepted; with more it ends with '
        "exit code 79",
    )
    join_wait_s: float = Field(
        default=1800.0,
        gt=0,
        le=1e7,
        description="cluster: how long a worker waits for its coordinator, seconds; then exit code 75",
    )
    # To read all of 10^12 voxels back after each stage takes as long as writing them.
    verify_fraction: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="fraction of the blocks that `verify` re-reads, evenly distributed; 1 = all",
    )
    device: str = Field(
        default="auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$", description="where networks run: auto, cpu, cuda or cuda:N"
    )
    metrics_every_s: float = Field(
        default=10.0,
        ge=0,
        le=1e7,
        description="seconds between updates of the Prometheus metrics of a running stage, in "
        "metrics/<stage>-<host>-<pid>.prom; 0 = never",
    )
    metrics_address: str | None = Field(
        default=None,
        pattern=r"^([^\s:/]+:)?\d{1,5}$",
        coerce_numbers_to_str=True,
        description="PORT (this machine only) or INTERFACE:PORT at which a running stage serves its metrics by HTTP; "
        "port 0 = any free port, shown in the log (default: $LSDFLOW_METRICS_ADDRESS, or no server)",
    )
    log_format: Literal["text", "json"] | None = Field(
        default=None,
        description="text: log lines for people; json: one JSON object per line (default: $LSDFLOW_LOG, or text)",
    )


@dataclass(frozen=True)
class Experiment:
    """A loaded experiment file: its folder layout, common tables, and the raw tables of the stages.

    descriptions: folder that replaces the experiment's own while a chain is planned before it has run; its arrays hold
    no voxels.
    """

    path: Path
    overrides: tuple[str, ...]
    tables: dict[str, Any]
    common: ExperimentTable
    store: StoreTable
    compute: ComputeTable
    descriptions: Path | None = None

    @property
    def layout(self) -> ExperimentLayout:
        """Paths of the artefacts."""
        return ExperimentLayout(self.descriptions or self.path.parent)

    def table(self, stage: str, model: type[Config]) -> Config:
        """The stage's table as its config model. ConfigError (78) naming the key, with did-you-mean."""
        return validated(model, self.tables.get(stage, {}), stage, self.path)

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages that it needs, in order: those of its mode, without the training of a network that is given.

        A network is given if [predict] names its folder, outside of the trainings of this experiment. If train-acrlsd
        is needed, so is train-lsd, whose network it reads.
        """
        table = self.tables.get("predict", {})
        given: tuple[str, ...] = ()
        if self._is_from_elsewhere(table.get("checkpoint")):
            lsds_too = self._is_from_elsewhere(table.get("lsd_checkpoint"))
            given = ("train-lsd", "train-acrlsd") if lsds_too else ("train-acrlsd",)
        return tuple(stage for stage in stages_of_mode(self.common.mode) if stage not in given)

    def _is_from_elsewhere(self, checkpoint: object) -> bool:
        if not isinstance(checkpoint, str) or checkpoint in ("best", "trained_with") or checkpoint.isdigit():
            return False
        # The folder of one training may be a link, for example to a larger disk.
        written = Path(os.path.normpath(self.path.parent / checkpoint))
        own = [self.path.parent / name for name in ("results", "train")]
        folders = [*own, *(folder.resolve() for folder in own)]
        return not any(path.is_relative_to(f) for path in (written, self.resolve(checkpoint)) for f in folders)

    @property
    def uses_cluster(self) -> bool:
        """True if [cluster] sets anything; cluster jobs may have GPUs that this machine lacks."""
        return any(value != {} for value in self.tables.get("cluster", {}).values())

    @property
    def database(self) -> str:
        """Name of the MongoDB database: the configured one, or the experiment's name with "_" for each dot."""
        return self.store.database or self.common.name.replace(".", "_")

    def resolve(self, path: str) -> Path:
        """A path of the experiment file: absolute, or relative to the file.

        Raises PermissionDenied (77) for a folder that may not be read, ConfigError (78) for an invalid path.
        """
        try:
            found = (self.path.parent / Path(path).expanduser()).resolve()
            found.exists()  # raises OSError for a name that is too long
        except PermissionError as error:
            raise PermissionDenied("no permission to read this folder", where=path, found=error) from error
        except (OSError, RuntimeError, ValueError) as error:
            fix = "correct the path: a link that leads to itself, a name that is too long, or a character of no name"
            raise ConfigError(
                "the path cannot be used", where=self.path, found=f"{path!r}: {error}", fix=fix
            ) from error
        return found


def stages_of_mode(mode: str) -> tuple[str, ...]:
    """The stages of a mode, in order: train-lsd is needed for acrlsd alone."""
    return tuple(stage for stage in STAGES if _DECLARED[stage].get("mode", mode) == mode)


def load_experiment(path: Path, overrides: Sequence[str] = ()) -> Experiment:
    """Read experiment.toml and apply `table.key=value` overrides.

    Raises MissingInput (66) if the file is absent, ConfigError (78) for wrong TOML, unknown tables or values.
    """
    path = path / "experiment.toml" if path.is_dir() else path
    if not path.is_file():
        folder = path.parent if path.suffix == ".toml" else path
        raise MissingInput("no experiment file", where=path, fix=first_step(folder))
    tables = read_toml(path)
    for override in overrides:
        _apply_override(tables, override)
    _refuse_unknown_tables(tables, path)
    return Experiment(
        path=path.resolve(),
        overrides=tuple(overrides),
        tables=tables,
        common=validated(ExperimentTable, tables.get("experiment", {}), "experiment", path),
        store=validated(StoreTable, tables.get("store", {}), "store", path),
        compute=validated(ComputeTable, tables.get("compute", {}), "compute", path),
    )


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """A fix for a misspelt word: the nearest known one, or the list of all known ones."""
    return nearest(word, known) or f"known: {', '.join(known)}"


def nearest(word: str, known: Sequence[str]) -> str:
    """A fix for a misspelt word if a known one is similar, else an empty text."""
    near = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {near[0]!r}?" if near else ""


def with_its_table(override: str, keys: Mapping[str, Collection[str]]) -> str:
    """A fix for `key=value` without a table: the tables whose `keys` have it; empty if there is none."""
    key = override.partition("=")[0].strip()
    tables = [table for table, known in keys.items() if key and key in known]
    return f"did you mean {' or '.join(f'{table}.{override.strip()}' for table in tables)}?" if tables else ""


def _apply_override(tables: dict[str, Any], override: str) -> None:
    dotted, equals, text = override.partition("=")
    table, dot, rest = dotted.strip().partition(".")
    if not (equals and dot and table and rest):
        common: dict[str, type[StrictModel]] = {
            "experiment": ExperimentTable,
            "store": StoreTable,
            "compute": ComputeTable,
        }
        keys = {name: set(given) for name, given in tables.items() if isinstance(given, Mapping)}
        keys |= {name: set(model.model_fields) for name, model in common.items()}
        raise ConfigError(
            "an override is table.key=value", where="--set", found=override, fix=with_its_table(override, keys)
        )
    value = override_value(dotted, text)
    node = tables.setdefault(table, {})
    *parents, key = rest.split(".")
    for parent in parents:
        node = node.setdefault(parent, {}) if isinstance(node, dict) else None
    if not isinstance(node, dict) or len(parents) > DEEPEST:
        raise ConfigError("the override names a value, not a table", where="--set", found=_short(override))
    node[key] = value


def override_value(key: str, text: str) -> Any:
    """The value of an override: as TOML, else as text. ConfigError (78) for an extreme one (`refuse_extremes`)."""
    try:
        return parse_toml(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()
    except ValueError as error:
        raise ConfigError("the value cannot be used", where=f"--set {key[:LONGEST_VALUE]}", found=error) from error


def _refuse_unknown_tables(tables: dict[str, Any], path: Path) -> None:
    known = ("experiment", "store", "compute", "cluster", *STAGES)
    for name, value in tables.items():
        if name not in known:
            raise ConfigError(f"unknown table [{name}]", where=path, fix=did_you_mean(name, known))
        if not isinstance(value, dict):
            raise ConfigError(f"{name} must be a table", where=path, wanted=f"[{name}]", found=repr(value))


def validated(model: type[Config], table: dict[str, Any], name: str, path: Path) -> Config:
    """A table of a file as its model. ConfigError (78) naming the key, with did-you-mean; `name`: of the table."""
    try:
        return model.model_validate(table)
    except ValidationError as error:
        raise _config_error(error, model, name, path) from error


def _config_error(error: ValidationError, model: type[StrictModel], table: str, path: Path) -> ConfigError:
    # With a misspelt key, pydantic also reports the correct key as missing: report the misspelt one.
    first, *more = sorted(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
    dotted = _dotted(table, first["loc"])
    others = dict.fromkeys(_dotted(table, e["loc"]) for e in more)
    others.pop(dotted, None)
    fixes = [_nearest_word(first), f"also wrong: {', '.join(others)}" if others else ""]
    fix = "; ".join(filter(None, fixes))
    found = _short(_LOGIN.sub("***@", repr(first["input"])))
    if first["type"] == "extra_forbidden":
        fix = did_you_mean(str(first["loc"][-1]), _keys_of(model, nested=len(first["loc"]) > 1))
        return ConfigError(f"unknown key {dotted}", where=path, found=found, fix=fix)
    said = dict.fromkeys(e["msg"] for e in (first, *more) if _dotted(table, e["loc"]) == dotted)
    text = " or ".join(said).removeprefix("Value error, ")
    return ConfigError(f"{dotted}: {text}", where=path, found=found, fix=fix)


def _dotted(table: str, location: Sequence[int | str]) -> str:
    """The key of an error, without the kind of value that a branch of a union expected."""
    parts = [str(part) for part in (table, *location)]
    while len(parts) > 2 and _BRANCH.match(parts[-1]):
        parts.pop()
    return ".".join(parts)


def _nearest_word(error: Mapping[str, Any]) -> str:
    """A did-you-mean fix for a word that is not allowed."""
    if error["type"] == "literal_error":
        return nearest(str(error["input"]), re.findall(r"'([^']*)'", error["ctx"]["expected"]))
    unknown = _UNKNOWN.search(error["msg"])
    return nearest(unknown[1], unknown[2].split(", ")) if unknown else ""


def _keys_of(model: type[StrictModel], *, nested: bool) -> list[str]:
    """Keys of a table, or of the tables in it."""
    if not nested:
        return sorted(f.alias or n for n, f in model.model_fields.items())
    tables = model.model_json_schema().get("$defs", {}).values()
    return sorted({key for table in tables for key in table.get("properties", {})})


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]} ..."
