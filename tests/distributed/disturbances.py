"""What happens to one process of a training: functions that change the process they are called in."""

from __future__ import annotations

import os
import signal

import torch

from lsdflow_contract.errors import BadData
from lsdflow_training import trainer


def signal_at_second_step(number: int) -> None:
    """Change this process: it sends itself a signal within its second step."""
    step, taken = trainer.train_step, []

    def signalled(*args, **kwargs):
        taken.append(1)
        if len(taken) == 2:
            os.kill(os.getpid(), number)
        return step(*args, **kwargs)

    trainer.train_step = signalled


def be_asked_to_stop() -> None:
    signal_at_second_step(signal.SIGUSR2)


def be_killed() -> None:
    signal_at_second_step(signal.SIGKILL)


def see_nan() -> None:
    to_patch = trainer.to_patch

    def spoilt(*args):
        patch = to_patch(*args)
        patch.raw.fill_(float("nan"))
        return patch

    trainer.to_patch = spoilt


def drift() -> None:
    optimizer = trainer.make_optimizer

    def drifting(settings, network):
        made = optimizer(settings, network)
        made.register_step_post_hook(lambda *_: network.heads["affs"].bias.data.add_(1e-7))
        return made

    trainer.make_optimizer = drifting


def find_no_patch() -> None:
    def failing(*_):
        raise BadData("no patch", where="this volume")

    trainer.next_batches = failing


def be_unable_to_write() -> None:
    def refused(*_, **__):
        raise BadData("this process does not write")

    trainer.ckpt.save_checkpoint = trainer.ckpt.keep_best = trainer.write_snapshot = trainer.Curves = refused


def run_out_of_memory() -> None:
    def failing(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    trainer.train_step = failing
