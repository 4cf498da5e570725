"""What names an input without reading all of it: paths, shapes, types, places, and the stamp of its metadata file.

Contents of terabytes are not hashed. A source that is changed in place, with the same metadata, is noticed only by the
stamp of its file (HDF5, TIFF); for folders of chunks use --replace.
"""

from __future__ import annotations

from pathlib import Path

from lsdflow_contract.hashing import hash_of, hash_of_file
from lsdflow_prepare.inputs import VolumeInputs
from lsdflow_runtime.formats.source import SourceVolume

METADATA_FILES = (".zarray", ".zattrs", "zarr.json", "attributes.json", "info")


def volume_identity(inputs: VolumeInputs) -> dict[str, str]:
    """Hash of each source of a volume."""
    names = {"raw": inputs.raw}
    names |= {"labels": inputs.labels.source} if inputs.labels else {}
    names |= {"mask": inputs.mask.source} if inputs.mask else {}
    return {name: source_identity(source) for name, source in names.items()}


def source_identity(source: SourceVolume) -> str:
    """Hash of what can be told of a source at once."""
    claims = [[claim.voxel_size_nm, claim.offset_nm] for claim in source.claims]
    stored = [source.form, source.axes, list(source.stored_shape), str(source.dtype)]
    return hash_of({"stored": stored, "claims": claims, "roi": source.roi_nm, "stamp": _stamp(source.where)})


def _stamp(where: str) -> str:
    """Content of the metadata files of a folder; size and time of a file."""
    path = Path(where.split(":", maxsplit=1)[0].split(" (", maxsplit=1)[0])
    if path.is_dir():
        return hash_of({name: hash_of_file(path / name) for name in METADATA_FILES if (path / name).is_file()})
    state = path.stat() if path.exists() else None
    return "" if state is None else f"{state.st_size} {state.st_mtime_ns}"
