"""What `validate` says of a MongoDB store: reachable, the password right, ours to write; and closed to strangers."""

from __future__ import annotations

from typing import Any

from lsdflow_contract.errors import PermissionDenied, StageError
from lsdflow_contract.experiment import Experiment
from lsdflow_runtime.mongo_connection import QUICK, Document, MongoConnection, mongo_address, warn_if_open
from lsdflow_runtime.mongo_store import MongoStore

NEEDED = ("find", "insert", "update", "remove", "createIndex")


def problems_of_mongo(experiment: Experiment) -> list[StageError]:
    """All problems of the store; tries once, writes nothing. Warns in the log of a server that asks no password."""
    try:
        address = mongo_address(experiment)
        connection = MongoConnection(address, retry_s=0.0, options=QUICK)
    except StageError as error:
        return [error]
    problems: list[StageError] = []
    try:
        _require_rights(connection)
        MongoStore(experiment, connection).require_ours()
        warn_if_open(address)
    except StageError as error:
        problems.append(error)
    finally:
        connection.close()
    return problems


def _require_rights(connection: MongoConnection) -> None:
    """PermissionDenied (77) if the user may not write, StoreUnreachable (69) if no writable server answers."""
    status = connection.call(lambda db: db.command("connectionStatus", showPrivileges=True))["authInfo"]
    if not status["authenticatedUsers"]:
        # Nobody is logged in: either the server asks no password, or this is refused.
        connection.call(lambda db: db.list_collection_names())
        return
    allowed = _allowed(status["authenticatedUserPrivileges"], connection.address.database)
    missing = [action for action in NEEDED if action not in allowed]
    if missing:
        raise PermissionDenied(
            "the user may not write into the store",
            where=connection.address,
            wanted=", ".join(NEEDED),
            found=f"without {', '.join(missing)}",
            hint="give the user the role readWrite on this database",
        )


def _allowed(privileges: list[Document], database: str) -> set[str]:
    """Actions allowed on every collection of the database."""
    actions: set[str] = set()
    for privilege in privileges:
        where: dict[str, Any] = privilege["resource"]
        everywhere = where.get("anyResource") or (where.get("db") in ("", database) and where.get("collection") == "")
        if everywhere:
            actions |= set(privilege["actions"])
    return actions
