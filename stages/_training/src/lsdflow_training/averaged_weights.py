"""Exponential moving average of a network's weights: smoother than the last step, usually better on unseen data.

After step t:  average <- d * average + (1 - d) * weights,  d = min(decay, (1 + t) / (10 + t))

The small d of the first steps quickly removes the random initial weights.  Validation and the bundle use the average;
training continues from the weights themselves, which resume.pt stores.
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
        """Set the average to the weights of the network."""
        self._average = _copies(self._network)

    @torch.no_grad()
    def update(self, iteration: int) -> None:
        """Include the weights after step `iteration` (1, 2, ...)."""
        decay = min(self._decay, (1 + iteration) / (10 + iteration))
        for name, value in self._network.state_dict().items():
            self._average[name].lerp_(value, 1 - decay)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Give the network the averaged weights within the block; restore its own afterwards."""
        own = _copies(self._network)
        self._network.load_state_dict(self._average)
        try:
            yield
        finally:
            self._network.load_state_dict(own)


def _copies(network: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in network.state_dict().items()}
