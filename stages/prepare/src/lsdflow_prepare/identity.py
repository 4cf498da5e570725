"""What a source is: how it is stored and where it says it lies, and the state of its files. Nothing is read."""

from __future__ import annotations

from lsdflow_contract.hashing import hash_of
from lsdflow_runtime.formats.source import SourceVolume


def state_of(source: SourceVolume) -> dict[str, str]:
    """Two hashes. form: format, shape, type, place. files: names, sizes and times of change of its files."""
    claims = [[claim.voxel_size_nm, claim.offset_nm] for claim in source.claims]
    stored = [source.form, source.axes, list(source.stored_shape), str(source.dtype)]
    return {"form": hash_of({"stored": stored, "claims": claims, "roi": source.roi_nm}), "files": source.stamp()}
