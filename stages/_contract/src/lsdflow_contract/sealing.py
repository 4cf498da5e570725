"""Sealed files: JSON that a later step reads holds the sha256 of its own content, and names the sha256 of its tables.

    {..., "seal": "<sha256 of everything else, as canonical JSON>"}        (manifests: within their facts)

A flipped bit changes either the content, and then the seal does not match, or only the seal itself. Contracts before
1.8 wrote no seals: a file without one is accepted, unless it says that it was written by contract 1.8 or later.
Metadata of arrays are sealed in the same way, by an attribute: the seal covers the whole metadata, not the attributes
alone, since a changed shape or chunk size also changes what is read.
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
SEALED_SINCE = (1, 8)
# The files of an array's metadata; the last one that is there holds the attributes.
_ARRAY_METADATA = ("zarr.json", ".zarray", ".zattrs")
_REPAIR_ARRAY = "write the metadata again: lsdflow repair EXPERIMENT"


def sealed(value: Mapping[str, Any]) -> dict[str, Any]:
    """The value as JSON gives it back, and its seal."""
    content: dict[str, Any] = json.loads(json.dumps(dict(value), allow_nan=False))
    return {**content, SEAL: hash_of(content)}


def unsealed(value: Any, where: object, fix: str) -> dict[str, Any]:
    """The content of a sealed value, without its seal.

    Raises BadData (65) with `fix` if it is no JSON object, was changed, or lacks the seal that its contract wrote.
    """
    if not isinstance(value, dict):
        raise BadData("not a JSON object", where=where, found=type(value).__name__, fix=fix)
    content = {name: part for name, part in value.items() if name != SEAL}
    _require_seal(content, value.get(SEAL), content.get("contract"), where, fix)
    return content


def write_sealed(path: Path, value: Mapping[str, Any]) -> None:
    """Write `value` with its seal, atomically; a file with this content is left as it is."""
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
    """BadData (65) if a file is not the one whose sha256 was recorded. Files of contracts before 1.8 have none."""
    found = hash_of_file(path)
    if wanted is not None and found != wanted:
        raise _changed(path, f"sha256 {str(wanted)[:64]}", f"sha256 {found}", fix)


def seal_array(folder: Path) -> None:
    """Seal the metadata of an array that was just made or described (zarr format 2 or 3)."""
    documents = _array_documents(folder)
    _attributes(documents).pop(ARRAY_SEAL, None)
    _attributes(documents)[ARRAY_SEAL] = hash_of(documents)
    last = list(documents)[-1]
    write_json(folder / last, documents[last])


def require_sealed_array(folder: Path) -> None:
    """BadData (65) if the metadata of an array that lsdflow wrote was changed. Arrays of others have no seal."""
    documents = _array_documents(folder)
    attributes = _attributes(documents) if documents else {}
    seal = attributes.pop(ARRAY_SEAL, None)
    provenance = attributes.get("lsdflow", {})
    contract = provenance.get("contract") if isinstance(provenance, dict) else None
    _require_seal(documents, seal, contract, folder, _REPAIR_ARRAY)


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
    """The attributes of an array, from its metadata files; they are changed in place."""
    last = documents.get(".zattrs", documents.get("zarr.json"))
    found = last.get("attributes") if isinstance(last, dict) and "zarr.json" in documents else last
    return found if isinstance(found, dict) else {}


def _require_seal(content: Any, seal: Any, contract: Any, where: object, fix: str) -> None:
    if seal is None:
        if _is_sealed_by(contract):
            raise BadData("the file has lost its seal: it is damaged or was changed", where=where, fix=fix)
        return
    try:
        found = hash_of(content)
    except ValueError as error:
        raise BadData("damaged file", where=where, found=error, fix=fix) from error
    if found != seal:
        raise _changed(where, "the sha256 that its seal names", "another sha256", fix)


def _is_sealed_by(contract: Any) -> bool:
    """True if that version of the contract writes seals; a version that cannot be read is nobody's."""
    major, _, rest = str(contract or "").partition(".")
    minor = rest.partition(".")[0]
    return major.isdigit() and minor.isdigit() and (int(major), int(minor)) >= SEALED_SINCE


def _changed(where: object, wanted: str, found: str, fix: str) -> BadData:
    return BadData(
        "the file is damaged or was changed after it was written",
        where=where,
        wanted=wanted,
        found=found,
        fix=fix,
    )
