"""Sealed files: a JSON file holds the sha256 of its own content, and records the sha256 of its tables.

    {..., "seal": "<sha256 of everything else, as canonical JSON>"}        (manifests: within their facts)

A flipped bit in the content or in the seal makes them differ. Metadata of arrays are sealed in the same way, in an
attribute. That seal covers all metadata, not only the attributes, because a changed shape or chunk size also changes
the values that are read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lsdflow_contract.errors import BadData
from lsdflow_contract.files import read_json, write_json
from lsdflow_contract.hashing import hash_of, hash_of_file

SEAL, ARRAY_SEAL = "seal", "lsdflow_seal"
# The files of an array's metadata; the last existing one holds the attributes.
_ARRAY_METADATA = ("zarr.json", ".zarray", ".zattrs")
_REPAIR_ARRAY = "write the metadata again: lsdflow repair EXPERIMENT"


def sealed(value: Mapping[str, Any]) -> dict[str, Any]:
    """The value after a round trip through JSON, with its seal."""
    content: dict[str, Any] = json.loads(json.dumps(dict(value), allow_nan=False))
    return {**content, SEAL: hash_of(content)}


def unsealed(value: Any, where: object, fix: str) -> dict[str, Any]:
    """The content of a sealed value, without its seal.

    Raises BadData (65) with `fix` if it is not a JSON object, was changed, or has no seal.
    """
    if not isinstance(value, dict):
        raise BadData("not a JSON object", where=where, found=type(value).__name__, fix=fix)
    content = {name: part for name, part in value.items() if name != SEAL}
    _require_seal(content, value.get(SEAL), where, fix)
    return content


def write_sealed(path: Path, value: Mapping[str, Any]) -> None:
    """Write `value` with its seal, atomically; a file with this content is not touched."""
    write_json(path, sealed(value))


def read_sealed(path: Path, fix: str) -> dict[str, Any]:
    """The content of a sealed file. MissingInput (66) if absent; BadData (65) as `unsealed`; `fix`: what to run."""
    try:
        raw = read_json(path)
    except BadData as error:
        error.fix = fix
        raise
    return unsealed(raw, path, fix)


def require_sha256(path: Path, wanted: Any, fix: str) -> None:
    """Raise BadData (65) if a file has another sha256 than recorded."""
    found = hash_of_file(path)
    if found != wanted:
        raise _changed(path, f"sha256 {str(wanted)[:64]}", f"sha256 {found}", fix)


def seal_array(folder: Path) -> None:
    """Seal the metadata of a new or newly described array (zarr format 2 or 3)."""
    documents = _array_documents(folder)
    _attributes(documents).pop(ARRAY_SEAL, None)
    _attributes(documents)[ARRAY_SEAL] = hash_of(documents)
    last = list(documents)[-1]
    write_json(folder / last, documents[last])


def require_sealed_array(folder: Path) -> None:
    """Raise BadData (65) if the metadata of an array by lsdflow was changed; arrays of other programs have no seal."""
    documents = _array_documents(folder)
    attributes = _attributes(documents) if documents else {}
    seal = attributes.pop(ARRAY_SEAL, None)
    provenance = attributes.get("lsdflow", {})
    if seal is not None or (isinstance(provenance, dict) and "contract" in provenance):
        _require_seal(documents, seal, folder, _REPAIR_ARRAY)


def _array_documents(folder: Path) -> dict[str, Any]:
    """The metadata files of an array, parsed. BadData if one is not JSON."""
    found = {}
    for name in _ARRAY_METADATA:
        if (folder / name).is_file():
            try:
                found[name] = read_json(folder / name)
            except BadData as error:
                error.fix = _REPAIR_ARRAY
                raise
    return found


def _attributes(documents: dict[str, Any]) -> dict[str, Any]:
    """The attributes in the metadata files of an array; a change modifies `documents`."""
    last = documents.get(".zattrs", documents.get("zarr.json"))
    found = last.get("attributes") if isinstance(last, dict) and "zarr.json" in documents else last
    return found if isinstance(found, dict) else {}


def _require_seal(content: Any, seal: Any, where: object, fix: str) -> None:
    if seal is None:
        raise BadData("the file has lost its seal: it is damaged or was changed", where=where, fix=fix)
    try:
        found = hash_of(content)
    except ValueError as error:
        raise BadData("damaged file", where=where, found=error, fix=fix) from error
    if found != seal:
        raise _changed(where, "the sha256 that its seal names", "another sha256", fix)


def _changed(where: object, wanted: str, found: str, fix: str) -> BadData:
    return BadData(
        "the file is damaged or was changed after it was written",
        where=where,
        wanted=wanted,
        found=found,
        fix=fix,
    )
