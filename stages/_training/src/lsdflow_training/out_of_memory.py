"""Errors for a training that does not fit in the memory of its GPU or its machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lsdflow_contract.errors import ConfigError
from lsdflow_network.out_of_memory import first_line, is_out_of_memory
from lsdflow_training.recipe import Recipe


@contextmanager
def memory_errors(recipe: Recipe) -> Iterator[None]:
    """Replace an error for lack of memory by a ConfigError that names options which need less."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise does_not_fit(
            error, f"{recipe.stage} on {recipe.device}, patches of {list(recipe.shapes.raw_vox)} vox"
        ) from error


def does_not_fit(error: BaseException, where: str) -> ConfigError:
    """A ConfigError that says which options to change."""
    return ConfigError(
        "the training does not fit in memory",
        where=where,
        found=first_line(error),
        fix='smaller input_shape_vox or num_fmaps; on a GPU precision = "bf16" (before Ampere "fp16") or '
        "checkpoint_activations = true; if it is the memory of the machine: fewer num_workers",
    )
