"""Make the administrator and the users of a mongod that runs with authorization; passwords come from files.

The first user is made through the server's localhost exception, which ends with it. A second run sets the
passwords again and changes nothing else.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pymongo
from pymongo.errors import OperationFailure

# A user's own databases are made by name as experiments come, so the role is for any database but the server's own.
ROLES = ["readWriteAnyDatabase"]


def main(secrets: Path, server: str, users: list[str]) -> None:
    """Raises OperationFailure if the server has users but not this administrator."""
    password = (secrets / "admin").read_text().strip()
    if not _may_enter(server, password):
        pymongo.MongoClient(f"mongodb://{server}").admin.command("createUser", "admin", pwd=password, roles=["root"])
    admin = _administrator(server, password)
    known = {user["user"] for user in admin.admin.command("usersInfo")["users"]}
    for user in users:
        order = "updateUser" if user in known else "createUser"
        admin.admin.command(order, user, pwd=(secrets / user).read_text().strip(), roles=ROLES)


def _administrator(server: str, password: str) -> pymongo.MongoClient:
    return pymongo.MongoClient(f"mongodb://{server}", username="admin", password=password)


def _may_enter(server: str, password: str) -> bool:
    # A client of its own: one that was refused tries again only after a heartbeat of 10 s.
    try:
        _administrator(server, password).admin.command("usersInfo")
    except OperationFailure:
        return False
    return True


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
