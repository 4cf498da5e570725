"""Operations of torch as they are called: what each computes and how long it takes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

MULTIPLY = {"mm": 0, "addmm": 1, "linear": 0, "bmm": 0, "matmul": 0}  # where the left factor is


@dataclass(frozen=True)
class Operation:
    """A call: its name, shapes, and what was asked for."""

    name: str
    inputs: str
    output: str
    layout: str = ""  # strides of the output, and of its address the remainder modulo 512
    checksum: int = 0
    milliseconds: float = 0.0
    flop: float = 0.0
    bytes: int = 0


class Recorded(TorchDispatchMode):
    """Used as `with Recorded() as operations: ...`; then all of them in `operations.calls`.

    timed: wait for the device after each. Otherwise, a checksum of its result.
    """

    def __init__(self, *, timed: bool) -> None:
        super().__init__()
        self._timed = timed
        self.calls: list[Operation] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """One call."""
        _finish(args)
        begin = time.perf_counter()
        result = func(*args, **(kwargs or {}))
        _finish(result if isinstance(result, Tensor) else args)
        seconds = time.perf_counter() - begin
        made = next(_tensors(result), None)
        if made is not None:
            self.calls.append(self._operation(func.overloadpacket.__name__, args, made, seconds))
        return result

    def _operation(self, name: str, args: Any, made: Tensor, seconds: float) -> Operation:
        read = list(_tensors(args))
        shapes = " ".join("x".join(map(str, tensor.shape)) or "1" for tensor in read)
        layout = f"strides {made.stride()}, address {made.data_ptr() % 512}"
        moved = made.nbytes + sum(tensor.nbytes for tensor in read)
        checksum = 0 if self._timed else _checksum(made)
        flop = _flop(name, args, made)
        return Operation(name, shapes, "x".join(map(str, made.shape)), layout, checksum, 1e3 * seconds, flop, moved)


def first_difference(one: Callable[[], Any], other: Callable[[], Any]) -> str:
    """The first operation whose result differs between two computations that should be the same; empty if none does."""
    traces = []
    for compute in (one, other):
        with Recorded(timed=False) as recorded:
            compute()
        # Copies and views before the first computation are different by intent.
        traces.append([call for call in recorded.calls if call.flop])
    for a, b in zip(*traces, strict=False):
        if (a.name, a.output, a.checksum) != (b.name, b.output, b.checksum):
            return f"{a.name} {a.inputs} -> {a.output} ({a.layout}) / {b.name} {b.inputs} -> {b.output} ({b.layout})"
    return "" if len(traces[0]) == len(traces[1]) else "other operations were called"


def _tensors(values: Any) -> Iterator[Tensor]:
    return (value for value in tree_leaves(values) if isinstance(value, Tensor))


def _finish(values: Any) -> None:
    if any(tensor.is_cuda for tensor in _tensors(values)):
        torch.cuda.synchronize()


def _checksum(values: Tensor) -> int:
    # Two sums, so that values in another order are another result.
    flat = values.detach().contiguous().view(-1).view(torch.uint8)
    return int(flat.sum(dtype=torch.int64)) * 65_537 + int(flat[::3].sum(dtype=torch.int64))


def _flop(name: str, args: Any, made: Tensor) -> float:
    """Of convolutions and matrix products, two for a multiplication with its addition."""
    if "conv" in name:
        weight = next((t for t in list(_tensors(args))[1:] if t.dim() > 3), None)
        return 0.0 if weight is None else 2.0 * made.numel() * math.prod(weight.shape[1:])
    if name in MULTIPLY:
        return 2.0 * made.numel() * args[MULTIPLY[name]].shape[-1]
    return 0.0
