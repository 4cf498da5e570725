"""The MongoDB user of one experiment: may read and write its own database and nothing else.

Runs beside mongod in its network (compose.mongo.yaml), as often as compose starts it. The first time there is no user
yet, and mongod lets one be made from its loopback: an administrator, who may manage users and sees no data. After
that the administrator's password is asked for. A changed password in the URI's file is taken over.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

from pymongo import MongoClient
from pymongo.errors import OperationFailure, PyMongoError
from pymongo.uri_parser import parse_uri

SECRETS = Path("/run/secrets")
HOST, PORT = "127.0.0.1", 27017
ADMINISTRATOR = "admin"
WAIT_MS = 60_000
UNREACHABLE, NO_PERMISSION, CONFIG = 69, 77, 78


def main() -> int:
    """Exit code: 0 the user is there; 69 no mongod; 77 the administrator was refused; 78 the URI is not whole."""
    try:
        uri = parse_uri((SECRETS / "mongo_uri").read_text(encoding="utf-8").strip())
    except (PyMongoError, ValueError):  # their texts quote the URI, and with it the password
        return _end(CONFIG, "not a MongoDB URI: mongodb://USER:PASSWORD@mongo:27017/DATABASE")
    name, password, database = uri["username"], uri["password"], uri["database"]
    if not (name and password and database):
        return _end(
            CONFIG, "the URI wants a user, a password and a database: mongodb://USER:PASSWORD@mongo:27017/DATABASE"
        )
    if _lets_in(name, password, database):
        return _end(0, f"user {name} of {database} is there")
    try:
        with _administrator() as client:
            known = client[database].command("usersInfo", name)["users"]
            client[database].command(
                "updateUser" if known else "createUser",
                name,
                pwd=password,
                roles=[{"role": "readWrite", "db": database}],
            )
    except OperationFailure as error:
        return _end(NO_PERMISSION, f"the administrator was refused: {error.details and error.details.get('errmsg')}")
    except PyMongoError as error:
        return _end(UNREACHABLE, f"no mongod on {HOST}:{PORT}: {type(error).__name__}")
    return _end(0, f"user {name} may read and write {database}")


def _lets_in(name: str, password: str, database: str) -> bool:
    try:
        with MongoClient(
            HOST, PORT, username=name, password=password, authSource=database, serverSelectionTimeoutMS=WAIT_MS
        ) as client:
            client[database].command("ping")
            client[database].list_collection_names()
    except PyMongoError:
        return False
    return True


def _administrator() -> MongoClient:
    """A client of the administrator, who is made if mongod has no user at all."""
    password = (SECRETS / "mongo_admin_password").read_text(encoding="utf-8").strip()
    # If there is a user already, mongod refuses and wants the password, which comes next.
    with MongoClient(HOST, PORT, serverSelectionTimeoutMS=WAIT_MS) as client, suppress(OperationFailure):
        client.admin.command("createUser", ADMINISTRATOR, pwd=password, roles=["userAdminAnyDatabase"])
    return MongoClient(
        HOST, PORT, username=ADMINISTRATOR, password=password, authSource="admin", serverSelectionTimeoutMS=WAIT_MS
    )


def _end(code: int, text: str) -> int:
    sys.stderr.write(f"mongo-user: {text}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
