"""Exponential moving average of a network's weights: smoother than the last step, usually better on unseen data.

After step t:  average <- d * average + (1 - d) * weights,  d = min(decay, (1 + t) / (10 + t))

so that the first steps, which start from random weights, are soon forgotten.  Validation and the bundle use the
average; training goes on from the weights themselves, which resume.pt keeps.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class AveragedWeights:
    """The average of the weights of `network`, on its device."""

    def __init__(self, network: nn.Module, decay: float) -> None:
        self._network, self._decay = network, decay
        self._average: dict[str, Tensor] = {}
        self.begin()

    def begin(self) -> None:
        """The average is now what the network has."""
        self._average = _copies(self._network)

    @torch.no_grad()
    def update(self, iteration: int) -> None:
        """Take the weights after step `iteration` (1, 2, ...) in."""
        decay = min(self._decay, (1 + iteration) / (10 + iteration))
        for name, value in self._network.state_dict().items():
            self._average[name].lerp_(value, 1 - decay)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """The network has the averaged weights within the block, its own again after it."""
        own = _copies(self._network)
        self._network.load_state_dict(self._average)
        try:
            yield
        finally:
            self._network.load_state_dict(own)


def _copies(network: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in network.state_dict().items()}
