"""The fragment -> segment table (LUT) of one merge function at one threshold, as the field stores it.

npz, key `fragment_segment_lut`, u64 (2, N): row 0 fragment ids (ascending here), row 1 segment ids. Beside each a JSON
side-car with the threshold as a number: a file name never is the only place of a float.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lsdflow_contract.errors import BadData, MissingInput
from lsdflow_contract.files import read_json, write_if_changed, write_json
from lsdflow_contract.graph import SCORE_CONVENTION, edges_collection

LUT_KEY = "fragment_segment_lut"


@dataclass(frozen=True)
class Lut:
    """Fragment ids u64 (N,) and the segment id of each, u64 (N,)."""

    fragments: npt.NDArray[np.uint64]
    segments: npt.NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.fragments)

    @property
    def segment_count(self) -> int:
        """Number of different segments."""
        return len(np.unique(self.segments))


@dataclass(frozen=True)
class KnownLut:
    """A lookup table on disk and its side-car: merge function, threshold, segments, stability."""

    path: Path
    facts: dict[str, Any]

    @property
    def merge_function(self) -> str:
        """The merge function whose edges made it."""
        return str(self.facts["merge_function"])

    @property
    def threshold(self) -> float:
        """Its threshold."""
        return float(self.facts["threshold"])


def lut_name(merge_function: str, threshold: float) -> str:
    """Collision-free file name: four decimals, `lut_hist_quant_75_0.2850.npz`."""
    return f"lut_{merge_function}_{threshold:.4f}.npz"


def legacy_lut_name(merge_function: str, threshold: float) -> str:
    """The field's old name, int(threshold*100): 0.28 and 0.29 may collide; kept for old readers only."""
    return f"seg_{edges_collection(merge_function)}_{int(threshold * 100)}.npz"


def write_lut(path: Path, lut: Lut, facts: dict[str, Any]) -> None:
    """Write the npz and its JSON side-car (`facts` + the score convention), each atomically."""
    table = np.stack([lut.fragments.astype(np.uint64), lut.segments.astype(np.uint64)])
    content = io.BytesIO()
    np.savez_compressed(content, fragment_segment_lut=table)
    write_if_changed(path, content.getvalue())
    write_json(path.with_suffix(".json"), {"score_convention": SCORE_CONVENTION, "fragments": len(lut), **facts})


def read_lut(path: Path) -> Lut:
    """Read a LUT: ours, the lineage's, or volara's (int64). MissingInput if absent, BadData if it is something else."""
    if not path.exists():
        there = sorted(p.name for p in path.parent.glob("*.npz")) if path.parent.is_dir() else []
        raise MissingInput("no such LUT", where=path, found=", ".join(there) or "no LUT there")
    try:
        with np.load(path, allow_pickle=False) as archive:
            table = archive[LUT_KEY]
    except (ValueError, KeyError, OSError, EOFError) as error:
        raise BadData(f"not a LUT: needs key {LUT_KEY}", where=path, found=error) from error
    if table.ndim != 2 or table.shape[0] != 2 or table.dtype.kind not in "ui":
        raise BadData("not a LUT", where=path, wanted="integers (2, N)", found=f"{table.dtype} {table.shape}")
    return Lut(table[0].astype(np.uint64), table[1].astype(np.uint64))


def find_luts(folder: Path, fragments_fingerprint: str) -> tuple[KnownLut, ...]:
    """Tables whose side-car names these fragments, by merge function and threshold; each pair once (the first path)."""
    found: dict[tuple[str, float], KnownLut] = {}
    for path in sorted(folder.rglob("lut_*.json")) if folder.is_dir() else ():
        facts = read_json(path)
        if not isinstance(facts, dict) or facts.get("fragments_fingerprint") != fragments_fingerprint:
            continue
        known = KnownLut(path.with_suffix(".npz"), facts)
        found.setdefault((known.merge_function, known.threshold), known)
    return tuple(found[key] for key in sorted(found))
