"""Where a training can die, put into its process from outside: the product has no hooks for this.

A place is "<scope>/<call>", a call of the operating system inside one function of the product: `checkpoint/rename` is
the moment before the rename inside save_checkpoint, `checkpoint/half write 2` the moment in which half of its second
file is written, `checkpoint/end` the moment after it. `step/...` are moments of one training step. Every scope counts
its calls from 1, so a place is met once in each save.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from lsdflow_contract.manifest import Manifest
from lsdflow_training import checkpoints, step, trainer
from lsdflow_training.curves import Curves

SCOPES: dict[str, tuple[Any, str]] = {
    "checkpoint": (checkpoints, "save_checkpoint"),
    "best": (checkpoints, "write_best"),
    "old": (checkpoints, "remove_old"),
    "curves": (Curves, "flush"),
    "snapshot": (trainer, "write_snapshot"),
    "beginning": (trainer.Trainer, "_resume"),
    "manifest": (Manifest, "write"),
}
STEP: dict[str, tuple[Any, str]] = {
    "step/begin": (trainer, "train_step"),
    "step/loss": (step, "total_loss"),
    "step/backward": (torch.Tensor, "backward"),
    "step/optimizer": (torch.optim.Adam, "step"),
    "step/log": (trainer.Trainer, "_log"),
}
CALLS = ("mkdir", "rename", "replace", "unlink", "rmdir", "fsync")


@dataclass
class Death:
    """Dies at the `count`-th time a place is met (place "" = never), `seconds` later if given."""

    place: str = ""
    count: int = 1
    seconds: float | None = None
    met: Counter[str] = field(default_factory=Counter)
    open_scopes: list[tuple[str, Counter[str]]] = field(default_factory=list)
    places: Path | None = None

    def reach(self, place: str) -> None:
        """The process is at this place: note it, or die."""
        self.met[place] += 1
        if self.places is not None:
            with self.places.open("a") as file:
                file.write(place + "\n")
        if place == self.place and self.met[place] == self.count:
            if self.seconds is None:
                os.kill(os.getpid(), signal.SIGKILL)
            threading.Timer(self.seconds or 0, os.kill, (os.getpid(), signal.SIGKILL)).start()

    def call(self, name: str) -> None:
        """A call of the operating system; counts inside a scope only."""
        if self.open_scopes:
            scope, calls = self.open_scopes[-1]
            calls[name] += 1
            self.reach(f"{scope}/{name} {calls[name]}")

    def inside(self, scope: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, with its calls counted."""

        @functools.wraps(function)
        def scoped(*args: Any, **kwargs: Any) -> Any:
            self.open_scopes.append((scope, Counter()))
            try:
                return function(*args, **kwargs)
            finally:
                self.open_scopes.pop()
                self.reach(f"{scope}/end")

        return scoped

    def before(self, act: Callable[[], None], function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, with `act` before it."""

        @functools.wraps(function)
        def later(*args: Any, **kwargs: Any) -> Any:
            act()
            return function(*args, **kwargs)

        return later

    def install(self) -> None:
        """Replace the functions in this process."""
        for scope, (owner, name) in SCOPES.items():
            setattr(owner, name, self.inside(scope, getattr(owner, name)))
        for place, (owner, name) in STEP.items():
            setattr(owner, name, self.before(functools.partial(self.reach, place), getattr(owner, name)))
        for name in CALLS:
            setattr(os, name, self.before(functools.partial(self.call, name), getattr(os, name)))
        io.open = self._opened(io.open)

    def _opened(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            handle = function(file, mode, *args, **kwargs)
            return _Torn(handle, self) if self.open_scopes and mode == "wb" else handle

        return opened


class _Torn:
    """A file whose first write can be cut in the middle."""

    def __init__(self, handle: Any, death: Death) -> None:
        self._handle, self._death = handle, death

    def __enter__(self) -> _Torn:
        return self

    def __exit__(self, *_: object) -> None:
        self._handle.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)

    def write(self, content: bytes) -> int:
        middle = len(content) // 2
        self._handle.write(content[:middle])
        self._handle.flush()
        self._death.call("half write")
        self._handle.write(content[middle:])
        return len(content)


def note_steps(steps: Path) -> None:
    """Append a line for every resume and every step: its losses and a digest of the weights, to the last bit."""
    take_step, resume = trainer.Trainer._step, trainer.Trainer._resume

    def noted_step(self: trainer.Trainer, *taken: Any) -> Any:
        result = take_step(self, *taken)
        losses = {name: float(value).hex() for name, value in result.losses.items()}
        line = {"iteration": self.iteration, "losses": losses, "weights": digest(self.trained.state_dict())}
        _append(steps, line)
        return result

    def noted_resume(self: trainer.Trainer) -> None:
        resume(self)
        _append(steps, {"resumed": self.iteration})

    trainer.Trainer._step, trainer.Trainer._resume = noted_step, noted_resume


def digest(tensors: dict[str, torch.Tensor]) -> str:
    """sha256 over names and bytes."""
    total = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        total.update(name.encode() + value.detach().contiguous().numpy().tobytes())
    return total.hexdigest()


def _append(path: Path, line: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
