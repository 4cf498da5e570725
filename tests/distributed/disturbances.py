"""What happens to one process of a training: functions that change the process they are called in."""

from __future__ import annotations

import math
import os
import signal

import torch

from lsdflow_contract.errors import BadData
from lsdflow_training import step, trainer
from lsdflow_training.processes.sharding import share_here


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


def train_in_fp16() -> None:
    trainer.training_precision = lambda *_: "fp16"


def overflow_in_the_first_step() -> None:
    """Train in fp16; the first gradient of the first weight that this process holds is infinite."""
    train_in_fp16()
    optimize, done = step._optimize, []

    def overflowing(network, optimizer, gradients):
        if not done:
            done.append(1)
            share_here(next(p for p in network.parameters() if share_here(p.grad).numel()).grad).view(-1)[0] = math.inf
        optimize(network, optimizer, gradients)

    step._optimize = overflowing


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
