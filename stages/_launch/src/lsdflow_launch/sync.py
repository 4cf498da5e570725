"""`lsdflow sync SOURCE TARGET`: an experiment goes to another place, and its results come back, by rsync or rclone.

    s3://BUCKET/PREFIX    object storage, by rclone; login and endpoint from its environment (AWS_*, RCLONE_S3_*)
    rclone:NAME:PATH      a remote of rclone's configuration
    HOST:PATH             another machine, by rsync over ssh; [USER@]HOST, or a name in the configuration of ssh
    anything else         a folder of this machine, such as a mounted share

Nothing is deleted in the target: results are written once, and other settings have a folder of their own.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from lsdflow_command.app import exit_codes
from lsdflow_command.completion import experiment_folders
from lsdflow_command.console import is_quiet
from lsdflow_command.experiment_lock import experiment_lock
from lsdflow_contract.errors import Interrupted, MissingInput, StorageFailure, StoreUnreachable, UsageError
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_contract.files import TEMPORARY_SUFFIX, storage_errors
from lsdflow_launch.commands import run_command
from lsdflow_launch.images.engines import inputs_of
from lsdflow_launch.options import Debug, Json
from lsdflow_launch.output import next_line, print_answer, stdout_for_json

SETTINGS = ("experiment.toml", "experiment.schema.json", "images.env", "prices.toml", "networks")
RESULTS = ("results", "train", "luts", "store", "manifests", "report", "runs")
# What belongs to one machine: locks, and files that a stage is writing.
NEVER = ("lock", "*.lock", f"*{TEMPORARY_SUFFIX}")
_HOST = re.compile(r"(?P<host>[A-Za-z0-9_][A-Za-z0-9_.@-]*):(?P<path>[^:].*)")
# Exit codes of rsync: reading or writing failed, some files failed, some vanished; then those of a signal.
_ERRORS = {**dict.fromkeys((11, 23, 24), StorageFailure), **dict.fromkeys((20, 130, 143), Interrupted)}
# Files get their name once they are complete.
_RSYNC = ("rsync", "--recursive", "--perms", "--times", "--protect-args", "--partial-dir=.rsync-partial")
PLACE = "folder, HOST:PATH, s3://BUCKET/PREFIX, or rclone:NAME:PATH"


@dataclass(frozen=True)
class Place:
    """One end of a copy. address: as its program takes it; host: empty for this machine and for object storage."""

    typed: str
    address: str
    host: str = ""
    path: str = ""
    program: str = "rsync"

    @classmethod
    def of(cls, typed: str) -> Place:
        """Take apart what was typed; UsageError (2) for an address of another kind."""
        if typed.startswith("s3://"):
            return cls(typed, f":s3,env_auth=true:{typed.removeprefix('s3://')}".rstrip("/"), program="rclone")
        if typed.startswith("rclone:"):
            return cls(typed, typed.removeprefix("rclone:").rstrip("/"), program="rclone")
        if found := _HOST.fullmatch(typed):
            if found["path"].startswith("//"):
                raise UsageError("no program for this address", where=typed, wanted=PLACE)
            return cls(typed, typed.rstrip("/"), found["host"], found["path"])
        return cls(typed, str(Path(typed).resolve()), path=str(Path(typed).resolve()))

    @property
    def here(self) -> bool:
        """True for a folder of this machine."""
        return self.program == "rsync" and not self.host

    def next_step(self, results: bool) -> str:
        """Return the command that says whether all arrived."""
        verb = "verify" if results else "validate"
        if self.here:
            return shlex.join(["lsdflow", verb, self.path])
        if self.host:
            return shlex.join(["ssh", self.host, shlex.join(["lsdflow", verb, self.path])])
        option = " --results" if results else ""
        return f"lsdflow sync {shlex.quote(self.typed)} DIR{option} && lsdflow {verb} DIR    # where it is needed"


def add_sync_verb(app: typer.Typer) -> None:
    """Add `sync`."""

    @app.command()
    def sync(
        source: Annotated[str, typer.Argument(help=PLACE, autocompletion=experiment_folders)],
        target: Annotated[str, typer.Argument(help=PLACE, autocompletion=experiment_folders)],
        results: Annotated[bool, typer.Option("--results", help="copy what the stages made, not the inputs")] = False,
        as_json: Json = False,
        debug: Debug = False,
    ) -> None:
        """Copy settings, networks and volumes of an experiment to another place, or its results (--results)."""
        with exit_codes(debug, as_json), ExitStack() as locks:
            ends = begin, end = Place.of(source), Place.of(target)
            commands, elsewhere = copies(begin, end, results)
            if results:
                for folder in sorted({place.path for place in ends if place.here}):
                    locks.enter_context(experiment_lock(load_experiment(Path(folder)).layout))
            with stdout_for_json(as_json):
                for command in commands:
                    _copy(command)
            if end.here:
                load_experiment(Path(end.path))
            lines = [f"{path} was not copied: {why}" for path, why in elsewhere.items()]
            step = end.next_step(results)
            facts = {"source": source, "target": target, "not_copied": elsewhere, "next": step}
            print_answer(facts, "\n".join([*lines, next_line(step)]), as_json)


def copies(begin: Place, end: Place, results: bool) -> tuple[list[list[str]], dict[str, str]]:
    """Return the command lines of a copy, and the inputs that are not copied, with the reason.

    Raises UsageError (2) if neither end is here, or both are the same folder, MissingInput (66) if the source is here
    and no experiment, or if the program is not installed.
    """
    if not (begin.here or end.here) or begin.address == end.address:
        raise UsageError(
            "the source or the target must be a folder here, and the other one another place", wanted=PLACE
        )
    program = "rclone" if "rclone" in (begin.program, end.program) else "rsync"
    if shutil.which(program) is None:
        raise MissingInput(
            f"{program} is not installed",
            where="PATH",
            fix=f"apt-get install {program}, or a module of the cluster; rsync is needed at both ends of HOST:PATH",
        )
    if end.here:
        with storage_errors(Path(end.path)):
            Path(end.path).mkdir(parents=True, exist_ok=True)
    if results or not begin.here:
        return [_by_rules(program, begin, end, results)], {}
    experiment = load_experiment(Path(begin.path))
    inside, elsewhere = _inputs(experiment)
    settings = [name for name in SETTINGS if (experiment.path.parent / name).exists()]
    return list(_by_names(program, begin, end, [*settings, *inside])), elsewhere


def _inputs(experiment: Experiment) -> tuple[list[str], dict[str, str]]:
    """Return the inputs in the folder of the experiment, relative to it; and the others, with the reason."""
    inside, elsewhere = [], {}
    for path in inputs_of(experiment):
        name = os.path.relpath(path, experiment.path.parent)
        top = name.split("/")[0]
        if top == "..":
            elsewhere[str(path)] = (
                "it is outside of the experiment; the other place needs it where experiment.toml says"
            )
        elif top in RESULTS:
            elsewhere[str(path)] = "it is a result; copy it with --results"
        elif top not in (".", *SETTINGS):
            inside.append(name)
    return list(dict.fromkeys(inside)), elsewhere


def _by_names(program: str, begin: Place, end: Place, names: Iterable[str]) -> Iterator[list[str]]:
    """Yield copies of these files and folders; of a link, what it points to, which the other place may not have."""
    if program == "rsync":
        # What follows /./ is the path in the target.
        sources = [f"{begin.path}/./{name}" for name in names]
        yield [*_RSYNC, *_progress("--info=progress2"), "--copy-links", "--relative", "--", *sources, f"{end.address}/"]
        return
    for name in names:
        ends = (f"{begin.path}/{name}", f"{end.address}/{name}")
        yield ["rclone", "copyto", "--copy-links", *_progress("--progress"), "--", *ends]


def _by_rules(program: str, begin: Place, end: Place, results: bool) -> list[str]:
    """Return the copy of all results, or of everything else. Links between results stay links."""
    if results:
        rules = [*(f"- {name}" for name in NEVER), *(f"+ /{name}/**" for name in RESULTS), "- *"]
    else:
        rules = [f"- /{name}/**" for name in RESULTS]
    links = "--links" if results else "--copy-links"
    if program == "rclone":
        options = [links, *_progress("--progress"), *(f"--filter={rule}" for rule in rules)]
        return ["rclone", "copy", *options, "--", begin.address, end.address]
    # rsync writes *** for a folder and all that is in it
    options = [links, *_progress("--info=progress2"), *(f"--filter={rule.replace('**', '***')}" for rule in rules)]
    return [*_RSYNC, *options, "--", f"{begin.address}/", f"{end.address}/"]


def _progress(option: str) -> list[str]:
    return [option] if os.isatty(1) and not is_quiet() else []


def _copy(command: Sequence[str]) -> None:
    """Run it, with its progress and messages on the screen. StageError if it fails: 69, 74, or 75 if interrupted."""
    if code := run_command(command):
        raise _ERRORS.get(code, StoreUnreachable)(
            f"{command[0]} did not copy everything",
            where=f"{command[-2]} -> {command[-1]}",
            found=f"exit code {code}; its message is above",
            fix="the same command again copies what is missing; the folder above the target must exist there",
        )
