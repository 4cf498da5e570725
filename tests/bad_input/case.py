"""A bad input: what a user did, which command meets it, and what the command must answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bad_input.asking import Answer, ask
from bad_input.lab import Lab, Laboratory

Spoil = Callable[[Lab], None]


@dataclass(frozen=True)
class Case:
    """One row of the matrix.

    wrong      what the user did, as the table of the documentation says it
    spoil      does it to a good experiment
    exit_code  that the command must return
    says       words that the answer must hold: the file, the field, the fix
    command    words of the command; the experiment is added, and is DIR in the other words
    after      last step of the chain that is done
    training   the training stages answer too
    unprivileged  as a user for whom permissions count
    """

    wrong: str
    spoil: Spoil
    exit_code: int
    says: tuple[str, ...]
    command: tuple[str, ...] = ("lsdflow", "validate")
    after: str = "init"
    training: bool = False
    unprivileged: bool = False

    def call(self, lab: Lab) -> list[str]:
        """The command as it is called."""
        where = [str(lab.toml.parent)] if self.command[0] == "lsdflow" else ["--experiment", str(lab.toml)]
        name, verb, *more = self.command
        return [name, verb, *where, *(word.replace("DIR", str(lab.toml.parent)) for word in more)]


def answer_of(case: Case, laboratory: Laboratory) -> tuple[Answer, Lab]:
    """Spoil a good experiment and ask."""
    lab = laboratory.lab(case.after)
    case.spoil(lab)
    return ask(case.call(lab), lab.root, training=case.training, unprivileged=case.unprivileged), lab


def setting(table: str, **keys: Any) -> Spoil:
    """The user set these keys of a table."""
    return lambda lab: lab.set(table, **keys)


def training_volume(**keys: Any) -> Spoil:
    """The user set these keys of the training volume."""
    return lambda lab: lab.set_training(**keys)


def target(**keys: Any) -> Spoil:
    """The user set these keys of the target volume."""
    return lambda lab: lab.set_target(**keys)
