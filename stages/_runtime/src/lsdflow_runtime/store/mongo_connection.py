"""The connection to a MongoDB server: address from a secret file, one client per process, retries, safe messages.

The URI contains a password, so it is read from a file that only its owner can read, and no message, log line, repr or
chain of exceptions shows it. A client is created at its first use and never shared with a forked process. Every
operation can be repeated safely, so it is retried while a server restarts (`[store] retry_s`); then the run stops with
exit code 69.
"""

from __future__ import annotations

import logging
import os
import random
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote_plus, unquote_plus

from pymongo import MongoClient
from pymongo.database import Database
from pymongo.errors import (
    BulkWriteError,
    ConnectionFailure,
    CursorNotFound,
    ExecutionTimeout,
    OperationFailure,
    PyMongoError,
    WTimeoutError,
)
from pymongo.uri_parser import parse_uri
from pymongo.write_concern import WriteConcern

from lsdflow_contract.errors import (
    ConfigError,
    InternalError,
    MissingInput,
    OutputConflict,
    PermissionDenied,
    StageError,
    StorageFailure,
    StoreUnreachable,
)
from lsdflow_contract.experiment import Experiment
from lsdflow_runtime.transient_errors import DATABASE

LOG = logging.getLogger("lsdflow.store")
URI_FILE_VARIABLE = "MONGO_URI_FILE"
RESERVED = {"admin", "local", "config"}
# Acknowledged writes are on disk of most members. The time limit turns a lost majority into an error that is retried.
DURABLE = WriteConcern(w="majority", j=True, wtimeout=30_000)
# Milliseconds; a value in the URI has priority. If a server accepts and does not respond, the time-out is a minute.
TIMEOUTS = {"serverSelectionTimeoutMS": 5_000, "connectTimeoutMS": 5_000, "socketTimeoutMS": 60_000}
QUICK = {"serverSelectionTimeoutMS": 2_000, "connectTimeoutMS": 2_000, "socketTimeoutMS": 5_000}
# Error codes of the server.
REFUSED_CODES = {18, 8000}
FORBIDDEN_CODES = {13, 31}
FULL_CODES = {14031}
FOREIGN_CODES = {85, 86, 11000}
SHOWN_CHARACTERS = 300

Document = dict[str, Any]
Found = TypeVar("Found")


@dataclass(frozen=True)
class MongoAddress:
    """The address of the store. `hosts` may be printed; `uri` and `secrets` must not be."""

    file: Path
    hosts: str
    database: str
    uri: str = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)
    options: dict[str, Any] = field(repr=False)

    def __str__(self) -> str:
        return f"{self.hosts}/{self.database}"

    def clean(self, text: object) -> str:
        """The text without any part of the URI's secrets."""
        masked = str(text)
        for secret in self.secrets:
            masked = masked.replace(secret, "***")
        return masked


def mongo_address(experiment: Experiment) -> MongoAddress:
    """The address from the experiment's secret file.

    Raises ConfigError (78), MissingInput (66) or PermissionDenied (77); no message contains any part of the URI.
    """
    return address_in(_uri_file(experiment), _database_name(experiment))


def address_in(file: Path, database: str | None = None) -> MongoAddress:
    """The address in a secret file; the database is `database`, or else that of the URI. Raises as mongo_address."""
    uri = _secret_text(file)
    try:
        parts = parse_uri(uri)
    except (PyMongoError, ValueError, OSError):
        # The library quotes parts of the URI, such as a password with an unescaped "/", so its text is not printed.
        raise ConfigError(
            "not a MongoDB URI",
            where=file,
            wanted="mongodb://USER:PASSWORD@HOST:27017/?authSource=DATABASE, one line",
            fix="write : / ? # [ ] @ % in user and password as %3A %2F %3F %23 %5B %5D %40 %25",
        ) from None
    database = database or parts["database"]
    if not database:
        raise ConfigError("the URI names no database", where=file, fix="name it: --database NAME, or HOST:27017/NAME")
    password = parts["password"] or ""
    secrets = tuple(s for s in {uri, password, quote_plus(password), unquote_plus(password)} if s)
    hosts = ",".join(f"{host}:{port}" for host, port in parts["nodelist"])
    longest_first = tuple(sorted(secrets, key=len, reverse=True))
    return MongoAddress(file, hosts, database, uri, longest_first, dict(parts["options"]))


@dataclass
class MongoConnection:
    """One process's connection to the experiment's database."""

    address: MongoAddress
    retry_s: float
    options: Mapping[str, Any] = field(default_factory=dict)
    prepared: set[str] = field(default_factory=set)
    _client: MongoClient[Document] | None = None
    _given_up: bool = False

    def call(self, operation: Callable[[Database[Document]], Found]) -> Found:
        """Run `operation` on the database, and retry it while the server is unavailable; it must be repeatable.

        Raises StoreUnreachable (69) after retry_s, PermissionDenied (77) for a wrong password or missing rights.
        After one such failure, later calls of this process try only once.
        """
        deadline = time.monotonic() + (0.0 if self._given_up else self.retry_s)
        reported = False
        pauses_s = DATABASE.pauses_s()
        while True:
            pause_s = next(pauses_s)
            try:
                found = operation(self._database())
            except PyMongoError as error:
                transient = is_transient(error)
                if not transient or time.monotonic() + pause_s > deadline:
                    self._given_up = transient
                    raise stage_error(error, self.address) from None
                if not reported:
                    LOG.warning("the store at %s does not answer; trying for %.0f s", self.address, self.retry_s)
                reported = True
            else:
                self._given_up = False
                return found
            time.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - spreads the workers' attempts, no secret

    def _database(self) -> Database[Document]:
        if self._client is None:
            self._client = open_client(self.address, self.address.uri, **self.options)
        return self._client.get_database(self.address.database, write_concern=DURABLE)

    def close(self) -> None:
        """Close the client; the next call creates a new one."""
        if self._client is not None:
            self._client.close()
        self._client = None


def open_client(address: MongoAddress, uri: str | list[str], **options: Any) -> MongoClient[Document]:
    """A client that connects at its first use, without wire compression. ConfigError for wrong files or options."""
    named = {name.lower() for name in address.options}
    defaults = {name: value for name, value in TIMEOUTS.items() if name.lower() not in named}
    try:
        return MongoClient(uri, connect=False, compressors=[], appname="lsdflow", **{**defaults, **options})
    except (PyMongoError, ValueError, TypeError, OSError) as error:
        raise ConfigError(
            "the options of the MongoDB URI cannot be used",
            where=address.file,
            found=address.clean(f"{type(error).__name__}: {error}"),
            fix="check the TLS files and options named in it",
        ) from None


def warn_if_open(address: MongoAddress) -> bool:
    """True if the server accepts a client without a password; also logs a warning."""
    tls = {name: value for name, value in address.options.items() if name.lower().startswith("tls")}
    try:
        with open_client(address, address.hosts.split(","), **{**tls, **QUICK}) as anonymous:
            anonymous[address.database].list_collection_names()
    except (PyMongoError, StageError):
        return False
    LOG.warning(
        "WARNING: the MongoDB server at %s lets anyone in without a password: whoever reaches it can read, change and "
        "delete the graph. Start it with authorization enabled, and give each experiment a user of its own.",
        address.hosts,
    )
    return True


def _uri_file(experiment: Experiment) -> Path:
    named = experiment.store.uri_file
    if named is not None:
        return experiment.resolve(named)
    if os.environ.get(URI_FILE_VARIABLE):
        return Path(os.environ[URI_FILE_VARIABLE])
    raise ConfigError(
        "the store is mongo, but no file with its URI is named",
        where=experiment.path,
        fix=f'set [store] uri_file = "mongo.uri", or {URI_FILE_VARIABLE}=FILE in the environment',
    )


def _secret_text(file: Path) -> str:
    try:
        mode = stat.S_IMODE(file.stat().st_mode)
        if mode & 0o177:
            raise PermissionDenied(
                "the file with the password of the store is open to others",
                where=file,
                wanted="mode 0600 or 0400",
                found=f"mode {mode:04o}",
                fix=f"chmod 600 {file}",
            )
        text = file.read_text(encoding="utf-8").strip()
    except FileNotFoundError as error:
        fix = "write mongodb://USER:PASSWORD@HOST:27017/?authSource=DATABASE into it, then chmod 600"
        raise MissingInput("no file with the URI of the store", where=file, fix=fix) from error
    except PermissionError as error:
        raise PermissionDenied("may not read the URI of the store", where=file, found=f"uid {os.geteuid()}") from error
    except (UnicodeDecodeError, OSError):
        raise ConfigError("the file with the URI of the store cannot be read as text", where=file) from None
    if not text or len(text.splitlines()) != 1:
        raise ConfigError("the file with the URI of the store must hold one line", where=file)
    return text


def _database_name(experiment: Experiment) -> str:
    name = experiment.database
    if len(name) > 63 or name in RESERVED:
        raise ConfigError(
            "not a name for the experiment's database",
            where=experiment.path,
            wanted="at most 63 letters, digits, _ and -; not admin, local or config",
            found=name,
            fix='set [store] database = "..."',
        )
    return name


def codes_of(error: PyMongoError) -> set[int]:
    """All server codes in an error."""
    codes = {error.code} if isinstance(error, OperationFailure) and error.code is not None else set()
    if isinstance(error, BulkWriteError):
        details = error.details
        parts = [*details.get("writeErrors", []), *details.get("writeConcernErrors", [])]
        codes = {int(part["code"]) for part in parts if "code" in part}
    return codes


def is_transient(error: PyMongoError) -> bool:
    """True if the same operation may succeed a little later."""
    if isinstance(error, ConnectionFailure | WTimeoutError | ExecutionTimeout | CursorNotFound):
        return True
    return bool(codes_of(error) & DATABASE.codes) or error.has_error_label("RetryableWriteError")


def stage_error(error: PyMongoError, address: MongoAddress) -> StageError:
    """The StageError for an error of the driver, with the host and without secrets."""
    codes = codes_of(error)
    found = address.clean(f"{type(error).__name__}: {_first_sentence(error)}")
    if codes & REFUSED_CODES:
        fix = "check user, password and authSource in the URI file"
        return PermissionDenied("the store refuses this user and password", where=address, fix=fix)
    if codes & FORBIDDEN_CODES:
        fix = "give the user readWrite on this database, or name its password in the URI file"
        return PermissionDenied("the store does not allow this", where=address, found=found, fix=fix)
    if codes & FULL_CODES:
        return StorageFailure("the disk of the store is full", where=address, fix="free some space and run again")
    if codes & FOREIGN_CODES:
        fix = 'choose another database ([store] database = "...")'
        return OutputConflict(
            "the database holds rows or indexes of another program", where=address, found=found, fix=fix
        )
    if not is_transient(error) and isinstance(error, OperationFailure):
        return InternalError("the store refuses a request of lsdflow", where=address, found=found)
    fix = "is mongod running there and reachable from this machine? check host, port and TLS options in the URI file"
    return StoreUnreachable("the store does not answer", where=address, found=found, fix=fix)


def _first_sentence(error: PyMongoError) -> str:
    """The first sentence of an error, without the driver's description of the whole deployment."""
    for end in (", Timeout:", ", full error:", " (configured timeouts"):
        text = str(error).partition(end)[0]
        if text != str(error):
            return text[:SHOWN_CHARACTERS]
    return str(error)[:SHOWN_CHARACTERS]
