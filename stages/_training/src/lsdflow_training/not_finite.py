"""Losses and weights that are NaN or infinite: the error with the batches that made them, and the last checkpoint."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from lsdflow_contract.errors import BadData
from lsdflow_training.processes.sharding import share_here

# Used when the weights are not finite although the loss was.
TOO_LARGE = "the loss was finite, its gradient was too large for these numbers"


def all_finite(network: nn.Module) -> bool:
    """True if no weight is NaN or infinite; checks only the share of this process if the weights are shared."""
    return all(bool(torch.isfinite(share_here(weight)).all()) for weight in network.parameters())


def batches_of(number: int, effective_batch: int) -> range:
    """The batches of all processes for the step that makes iteration `number`."""
    return range((number - 1) * effective_batch + 1, number * effective_batch + 1)


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
        fix=f"lower learning_rate, or look for NaN in the volumes (prepare validate); {kept}",
    )
