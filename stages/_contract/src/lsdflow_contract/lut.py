"""The fragment -> segment table (LUT) of one merge function at one threshold, as the field stores it.

npz, key `fragment_segment_lut`, u64 (2, N): row 0 fragment ids (ascending here), row 1 segment ids. Each npz has a
sealed JSON side-car with the threshold as a number (file names round it) and the sha256 of the npz.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lsdflow_contract import CONTRACT_VERSION
from lsdflow_contract.errors import BadData, MissingInput
from lsdflow_contract.files import write_if_changed
from lsdflow_contract.graph import SCORE_CONVENTION, edges_collection
from lsdflow_contract.hashing import hash_of_file
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import Manifest
from lsdflow_contract.sealing import read_sealed, require_sha256, write_sealed

LUT_KEY = "fragment_segment_lut"
NPZ_SHA256 = "npz_sha256"
# In the facts of the manifest of segment: the folder of its tables, relative to the experiment.
LUTS_FACT = "luts"
_REPAIR = "write the tables again: lsdflow repair EXPERIMENT"
# What numpy, zipfile and zlib raise for a damaged npz.
_DAMAGE = (ValueError, LookupError, OSError, EOFError, RuntimeError, MemoryError, TypeError, SyntaxError)
_DAMAGED_ZIP = (zipfile.BadZipFile, zlib.error, struct.error, OverflowError)


@dataclass(frozen=True)
class Lut:
    """Fragment ids u64 (N,) and the segment id of each, u64 (N,)."""

    fragments: npt.NDArray[np.uint64]
    segments: npt.NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.fragments)


@dataclass(frozen=True)
class KnownLut:
    """A lookup table on disk, with the facts of its side-car: merge function, threshold, segments, stability."""

    path: Path
    facts: dict[str, Any]

    @property
    def merge_function(self) -> str:
        """The merge function of the edges that it was computed from."""
        return str(self.facts["merge_function"])

    @property
    def threshold(self) -> float:
        """Its threshold."""
        return float(self.facts["threshold"])


def lut_name(merge_function: str, threshold: float) -> str:
    """Collision-free file name: four decimals, `lut_hist_quant_75_0.2850.npz`."""
    return f"lut_{merge_function}_{threshold:.4f}.npz"


def legacy_lut_name(merge_function: str, threshold: float) -> str:
    """The name in the published scripts, with int(threshold*100), for their readers: nearby thresholds may collide."""
    return f"seg_{edges_collection(merge_function)}_{int(threshold * 100)}.npz"


def write_lut(path: Path, lut: Lut, facts: dict[str, Any]) -> None:
    """Write the npz and its sealed side-car (`facts` + the score convention), each atomically."""
    table = np.stack([lut.fragments.astype(np.uint64), lut.segments.astype(np.uint64)])
    content = io.BytesIO()
    np.savez_compressed(content, fragment_segment_lut=table)
    write_if_changed(path, content.getvalue())
    write_side_car(path, len(lut), facts)


def write_side_car(path: Path, fragments: int, facts: Mapping[str, Any]) -> str:
    """Write the side-car of the npz at `path`, which must be complete; returns the sha256 that it records."""
    sha256 = hash_of_file(path)
    written = {"contract": CONTRACT_VERSION, "score_convention": SCORE_CONVENTION, "fragments": fragments, **facts}
    write_sealed(path.with_suffix(".json"), {**written, NPZ_SHA256: sha256})
    return sha256


def read_side_car(path: Path) -> dict[str, Any]:
    """The facts of the npz at `path`. MissingInput (66) if it has no side-car, BadData (65) if that is damaged."""
    return read_sealed(path.with_suffix(".json"), _REPAIR)


def read_lut(path: Path) -> Lut:
    """Read a LUT of lsdflow, of the original lsd code, or of volara (int64).

    MissingInput if absent, BadData if it is not a LUT or if its sha256 differs from the one in its side-car.
    """
    if not path.exists():
        there = sorted(p.name for p in path.parent.glob("*.npz")) if path.parent.is_dir() else []
        raise MissingInput("no such LUT", where=path, found=", ".join(there) or "no LUT there")
    if path.with_suffix(".json").exists():
        require_sha256(path, read_side_car(path).get(NPZ_SHA256), _REPAIR)
    try:
        with np.load(path, allow_pickle=False) as archive:
            table = archive[LUT_KEY]
    except (*_DAMAGE, *_DAMAGED_ZIP) as error:
        raise BadData(f"not a LUT: needs key {LUT_KEY}", where=path, found=error, fix=_REPAIR) from error
    if table.ndim != 2 or table.shape[0] != 2 or table.dtype.kind not in "ui":
        raise BadData("not a LUT", where=path, wanted="integers (2, N)", found=f"{table.dtype} {table.shape}")
    return Lut(table[0].astype(np.uint64), table[1].astype(np.uint64))


def luts_of(layout: ExperimentLayout, segment: Manifest | None) -> Path:
    """The folder with the tables of a result of segment; the folder of all tables if no result names its own."""
    return layout.root / segment.facts.get(LUTS_FACT, layout.luts.name) if segment else layout.luts


def find_luts(folder: Path, fragments_fingerprint: str, graph_fingerprint: str = "") -> tuple[KnownLut, ...]:
    """Tables of these fragments, sorted by merge function and threshold; each pair once (the first path).

    graph_fingerprint: identity of the scored edges; tables of other edges are left out.
    Raises BadData (65) for a damaged side-car, so that its table is not ignored silently.
    """
    found: dict[tuple[str, float], KnownLut] = {}
    for path in sorted(folder.rglob("lut_*.json")) if folder.is_dir() else ():
        facts = read_side_car(path)
        if facts.get("fragments_fingerprint") != fragments_fingerprint:
            continue
        if graph_fingerprint and facts.get("fingerprint", graph_fingerprint) != graph_fingerprint:
            continue
        known = KnownLut(path.with_suffix(".npz"), facts)
        found.setdefault((known.merge_function, known.threshold), known)
    return tuple(found[key] for key in sorted(found))
