"""What errors of the MongoDB driver mean: worth another attempt, or which error of ours."""

from __future__ import annotations

from typing import Protocol

from pymongo.errors import (
    BulkWriteError,
    ConnectionFailure,
    CursorNotFound,
    ExecutionTimeout,
    OperationFailure,
    PyMongoError,
    WTimeoutError,
)

from lsdflow_contract.errors import (
    InternalError,
    NotOurs,
    PermissionDenied,
    StageError,
    StorageFailure,
    StoreUnreachable,
)
from lsdflow_runtime.transient_errors import DATABASE

REFUSED_CODES = {18, 8000}
FORBIDDEN_CODES = {13, 31}
FULL_CODES = {14031}
FOREIGN_CODES = {85, 86, 11000}
SHOWN_CHARACTERS = 300


class Shown(Protocol):
    """An address that can be shown, and that cleans texts of its secrets."""

    def clean(self, text: object) -> str:
        """The text without secrets."""


def codes_of(error: PyMongoError) -> set[int]:
    """All server codes that an error carries."""
    codes = {error.code} if isinstance(error, OperationFailure) and error.code is not None else set()
    if isinstance(error, BulkWriteError):
        details = error.details
        parts = [*details.get("writeErrors", []), *details.get("writeConcernErrors", [])]
        codes = {int(part["code"]) for part in parts if "code" in part}
    return codes


def is_transient(error: PyMongoError) -> bool:
    """May the same operation succeed a little later?"""
    if isinstance(error, ConnectionFailure | WTimeoutError | ExecutionTimeout | CursorNotFound):
        return True
    return bool(codes_of(error) & DATABASE.codes) or error.has_error_label("RetryableWriteError")


def stage_error(error: PyMongoError, address: Shown) -> StageError:
    """The error of ours, with the host and without secrets."""
    codes = codes_of(error)
    found = address.clean(f"{type(error).__name__}: {_first_sentence(error)}")
    if codes & REFUSED_CODES:
        hint = "check user, password and authSource in the URI file"
        return PermissionDenied("the store refuses this user and password", where=address, hint=hint)
    if codes & FORBIDDEN_CODES:
        hint = "give the user readWrite on this database, or name its password in the URI file"
        return PermissionDenied("the store does not allow this", where=address, found=found, hint=hint)
    if codes & FULL_CODES:
        return StorageFailure("the disk of the store is full", where=address, hint="free some space and run again")
    if codes & FOREIGN_CODES:
        hint = 'choose another database ([store] database = "...")'
        return NotOurs("the database holds rows or indexes of another program", where=address, found=found, hint=hint)
    if not is_transient(error) and isinstance(error, OperationFailure):
        return InternalError("the store refuses a request of ours", where=address, found=found)
    hint = "is mongod running there and reachable from this machine? check host, port and TLS options in the URI file"
    return StoreUnreachable("the store does not answer", where=address, found=found, hint=hint)


def _first_sentence(error: PyMongoError) -> str:
    """The text without the driver's account of the whole deployment."""
    for end in (", Timeout:", ", full error:", " (configured timeouts"):
        text = str(error).partition(end)[0]
        if text != str(error):
            return text[:SHOWN_CHARACTERS]
    return str(error)[:SHOWN_CHARACTERS]
