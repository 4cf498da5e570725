"""Whether anything beside its input changes the bits of a tile on this device, and where if so.

    bits.py CASE FOLDER DEVICE [--tiny]      prints the checksum of one case: the other process

The same tile as a tensor of its own, as a crop with other strides, from main memory, beside other things in the
device's memory, and in another process. Where bits differ, the first operation whose result differs is named.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from experiments import network, sizes_of
from gpu import PUBLISHED, TINY, Sizes, random_raw
from gpu_machine import print_head
from operators import first_difference
from part import Part

from lsdflow_contract.checkpoint import Kind
from lsdflow_network.inference import Predictor, load_predictor
from lsdflow_predict.evaluation import prepare_torch

BESIDE_BYTES = 4 << 30
AROUND_VOX = 5  # odd: other addresses too
WAYS = ("again", "a crop of a larger tensor", "from main memory", "beside 4 GiB")
PROCESS = "another process"


@dataclass(frozen=True)
class Case:
    """A network, a precision and which of the tiles."""

    kind: Kind
    precision: str
    tile: int

    def __str__(self) -> str:
        return f"{self.kind} {self.precision} {self.tile}"


CASES = (Case("lsd", "auto", 0), Case("acrlsd", "auto", 0), Case("lsd", "auto", 1), Case("lsd", "float32", 0))


def print_bits(part: Part, *, failed: bool) -> None:
    """A table of what was changed and whether bits changed. Only the first case, unless a test has `failed`."""
    sizes = sizes_of(part)
    cases = CASES if failed else CASES[:2]
    part.plan(*(f"bits of {case}" for case in cases))
    print_head("the same tile once more: bits", ("network", "precision", "input", *WAYS, PROCESS))
    for case in cases:
        part.attempt(f"bits of {case}", partial(print_case, case, part, sizes))
    part.did("bits")


def print_case(case: Case, part: Part, sizes: Sizes) -> None:
    """The row of a case."""
    part.row(f"bits of {case}", cells(case, part, sizes))


def cells(case: Case, part: Part, sizes: Sizes) -> list[Any]:
    """The row of a case."""
    folder = network(part, case.kind)
    command = [sys.executable, __file__, str(CASES.index(case)), str(folder), part.device]
    other = subprocess.Popen([*command, *(["--tiny"] if part.tiny else [])], stdout=subprocess.PIPE, text=True)
    predictor, raw, lsds = inputs_of(case, folder, part.device, sizes)
    compute = levels(predictor)
    wanted = compute(*inner(raw, lsds))
    found = []
    for change in ways_of(compute, raw, lsds, part.device):
        values = change()
        differs = first_difference(lambda: compute(*inner(raw, lsds)), change) if not wanted.equal(values) else ""
        found.append(compared(wanted, values) + (f"; first: {differs}" if differs else ""))
    elsewhere = other.communicate()[0].strip()
    found.append("equal" if elsewhere == checksum(wanted) else f"other bits {elsewhere}")
    return [case.kind, predictor.precision, wanted_input(raw), *found]


def wanted_input(raw: torch.Tensor) -> int:
    """The edge of the tile's input."""
    return int(raw.shape[0]) - 2 * AROUND_VOX


def ways_of(
    compute: Callable[..., Any], raw: torch.Tensor, lsds: torch.Tensor | None, device: str
) -> list[Callable[[], Any]]:
    """What can be different though the tile is the same: WAYS."""
    crop = tuple(slice(AROUND_VOX, n - AROUND_VOX) for n in raw.shape)
    own = None if lsds is None else lsds[(..., *crop)].contiguous()

    def beside_others() -> Any:
        """With much of the memory taken, and blocks of the allocator elsewhere."""
        if device.startswith("cuda"):
            torch.cuda.empty_cache()
        taken = torch.ones(BESIDE_BYTES if device.startswith("cuda") else 1 << 20, dtype=torch.uint8, device=device)
        values = compute(raw[crop].clone(), own)
        del taken
        return values

    return [
        lambda: compute(raw[crop].contiguous(), own),
        lambda: compute(raw[crop], None if lsds is None else lsds[(..., *crop)]),
        lambda: compute(raw[crop].cpu(), None if own is None else own.cpu()),
        beside_others,
    ]


def inner(raw: torch.Tensor, lsds: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The tile as tensors of its own."""
    crop = tuple(slice(AROUND_VOX, n - AROUND_VOX) for n in raw.shape)
    return raw[crop].contiguous(), None if lsds is None else lsds[(..., *crop)].contiguous()


def inputs_of(case: Case, folder: Path, device: str, sizes: Sizes) -> tuple[Predictor, Any, Any]:
    """The predictor, raw u8 and LSDs u8 (or none) on the device, with AROUND_VOX more on each side."""
    prepare_torch(case.precision)
    predictor = load_predictor(folder, device=device, precision=case.precision)
    shape = tuple(n + 2 * AROUND_VOX for n in sizes.cube(sizes.tiles[case.tile]))
    raw = random_raw(shape).to(device)
    lsds = None if case.kind == "lsd" else random_raw((10, *shape)).to(device)
    return predictor, raw, lsds


def levels(predictor: Predictor) -> Callable[[Any, Any], torch.Tensor]:
    """Grey levels of a tile, in main memory."""
    names = tuple(predictor.bundle.outputs)
    return lambda raw, lsds: predictor.grey_levels(raw, lsds, names)[0].cpu()


def compared(wanted: torch.Tensor, found: torch.Tensor) -> str:
    """How many of the bytes differ, and by how much."""
    apart = (wanted.short() - found.short()).abs()
    differ = int((apart > 0).sum())
    return "equal" if not differ else f"{differ} of {apart.numel()} differ, at most by {int(apart.max())}"


def checksum(values: torch.Tensor) -> str:
    """Of all bytes."""
    return hashlib.blake2b(values.contiguous().numpy().tobytes(), digest_size=8).hexdigest()


if __name__ == "__main__":
    asked, its_sizes = CASES[int(sys.argv[1])], TINY if "--tiny" in sys.argv else PUBLISHED
    made, its_raw, its_lsds = inputs_of(asked, Path(sys.argv[2]), sys.argv[3], its_sizes)
    print(checksum(levels(made)(*inner(its_raw, its_lsds))))
