"""How a training ends before its time: signals, too little memory, losses and weights that are not finite.

SIGTERM, SIGINT, SIGHUP and SIGUSR2: finish the step, write a checkpoint, then stop.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from lsdflow_command.interruption import end_if_asked, heard
from lsdflow_contract.errors import BadData, ConfigError
from lsdflow_training.settings import TrainingSettings

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2)
# Used when the weights are not finite although the loss was.
TOO_LARGE = "the loss was finite, its gradient was too large for these numbers"


class StopRequest:
    """Stores the name of the signal that requested a stop; false until one arrives."""

    def __init__(self) -> None:
        self.name = ""

    def __bool__(self) -> bool:
        return bool(self.name)


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """In the context, a signal is stored instead of ending the process; a second one ends it as usual.

    Raises Interrupted at once if a signal arrived earlier and was lost (see `end_if_asked`).
    """
    request = StopRequest()
    before = {number: signal.getsignal(number) for number in heard(SIGNALS)}

    def remember(number: int, _frame: FrameType | None) -> None:
        """Store the first signal, and restore its handler, so that a second one ends the process."""
        request.name = signal.Signals(number).name
        signal.signal(number, before[signal.Signals(number)])

    for number in before:
        signal.signal(number, remember)
    try:
        for handler in before.values():
            end_if_asked(handler)
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def memory_errors(settings: TrainingSettings) -> Iterator[None]:
    """Replace an error for lack of memory by a ConfigError that names options which need less."""
    from lsdflow_network.out_of_memory import is_out_of_memory  # torch takes seconds to load

    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise does_not_fit(
            error, f"{settings.stage} on {settings.device}, patches of {list(settings.shapes.raw_vox)} vox"
        ) from error


def does_not_fit(error: BaseException, where: str) -> ConfigError:
    """A ConfigError that says which options to change."""
    from lsdflow_network import out_of_memory

    return out_of_memory.does_not_fit(
        "the training does not fit in memory",
        error,
        where,
        'smaller batch_size, input_shape_vox or num_fmaps; on a GPU precision = "bf16" (before Ampere "fp16") or '
        "checkpoint_activations = true; if it is the memory of the machine: fewer num_workers",
    )


def not_finite(
    what: str, found: str, *, number: int, saved: int, batches: Sequence[int], process: int | None = None
) -> BadData:
    """The error of the step that made iteration `number` from these batches; saved: the newest checkpoint, 0 = none."""
    named = f"batch{'es' if len(batches) > 1 else ''} {', '.join(map(str, batches))}"
    by = "" if process is None else f"process {process}, "
    kept = f"the last checkpoint is that of iteration {saved}" if saved else "there is no checkpoint yet"
    return BadData(
        f"the {what} not finite",
        where=f"iteration {number}, {by}{named}",
        found=found,
        fix=f"lower learning_rate, or search for NaN in the volumes (prepare validate); {kept}",
    )
