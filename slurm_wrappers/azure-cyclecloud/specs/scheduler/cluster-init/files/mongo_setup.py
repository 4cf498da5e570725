#!/usr/bin/env python3
"""Make the one-member replica set and the users of a mongod that runs with authorization; leave the lab its URI.

Runs at every boot and changes only what differs: the first time it comes in by the server's localhost exception, which
ends with the first user; later as administrator. A new address of the machine becomes the member's address.
Why a replica set of one: acknowledged writes of a standalone server were reported lost after a crash (SERVER-139311).
Passwords come from files and go to one file; none is printed or given as an argument.
"""

from __future__ import annotations

import argparse
import os
import pwd
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import quote

import pymongo
from pymongo.errors import OperationFailure, PyMongoError

SET = "lsdflow"
UNAUTHORIZED, AUTHENTICATION_FAILED, ALREADY_INITIALIZED = 13, 18, 23
WAIT_S = 60.0


def connect(port: int, secrets: Path | None = None) -> pymongo.MongoClient:
    """A client of the server on this machine; as administrator if its secrets are given."""
    login = {"username": "admin", "password": (secrets / "admin").read_text().strip()} if secrets else {}
    return pymongo.MongoClient("127.0.0.1", port, directConnection=True, serverSelectionTimeoutMS=5000, **login)


def wait_until(what: str, check: Callable[[], object]) -> None:
    """Ask until true. TimeoutError saying what did not come."""
    until = time.monotonic() + WAIT_S
    while True:
        try:
            if check():
                return
        except PyMongoError:
            pass
        if time.monotonic() > until:
            raise TimeoutError(f"{what}: not within {WAIT_S:.0f} s")
        time.sleep(0.3)


def may_administer(port: int, secrets: Path) -> bool:
    """Whether the administrator exists. OperationFailure if there are users but his password is another."""
    try:
        connect(port, secrets).admin.command("ping")
    except OperationFailure as error:
        if error.code == AUTHENTICATION_FAILED:
            return False
        raise
    return True


def first_start(port: int, secrets: Path, member: str) -> None:
    """Replica set and administrator, through the localhost exception."""
    server = connect(port).admin
    try:
        server.command("replSetInitiate", {"_id": SET, "members": [{"_id": 0, "host": member}]})
    except OperationFailure as error:
        if error.code == UNAUTHORIZED:
            raise SystemExit(
                "the server has users, but not the password of secrets/admin: restore that file"
            ) from error
        if error.code != ALREADY_INITIALIZED:
            raise
    wait_until("becoming primary", lambda: server.command("hello")["isWritablePrimary"])
    server.command("createUser", "admin", pwd=(secrets / "admin").read_text().strip(), roles=["root"])


def follow_address(server: pymongo.database.Database, member: str) -> None:
    """The member's address is the machine's of today."""
    config = server.command("replSetGetConfig")["config"]
    if config["members"][0]["host"] != member:
        config["members"][0]["host"] = member
        config["version"] += 1
        server.command("replSetReconfig", config, force=True)
    wait_until("becoming primary", lambda: server.command("hello")["isWritablePrimary"])


def make_lab_user(server: pymongo.database.Database, password: str) -> None:
    """The user of the wrappers: reads and writes experiments' databases, administers nothing."""
    known = {user["user"] for user in server.command("usersInfo")["users"]}
    order = "updateUser" if "lsdflow" in known else "createUser"
    server.command(order, "lsdflow", pwd=password, roles=["readWriteAnyDatabase"])


def write_uri(path: Path, uri: str, owner: str) -> None:
    """The URI in a file that only its owner reads, in a folder that only its owner enters; by rename."""
    user = pwd.getpwnam(owner)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.parent.chmod(0o700)
    os.chown(path.parent, user.pw_uid, user.pw_gid)
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(uri + "\n")
    os.chown(new, user.pw_uid, user.pw_gid)
    new.replace(path)


def main(arguments: Sequence[str]) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--secrets", type=Path, required=True, help="folder with admin and lsdflow, one password each")
    parser.add_argument("--address", required=True, help="private address of this machine")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--uri-file", type=Path, required=True, help="written for the lab's user")
    parser.add_argument("--owner", required=True, help="the lab's user")
    options = parser.parse_args(arguments)
    member = f"{options.address}:{options.port}"
    wait_until("answer of mongod", lambda: connect(options.port).admin.command("hello"))
    if not may_administer(options.port, options.secrets):
        first_start(options.port, options.secrets, member)
    server = connect(options.port, options.secrets).admin
    follow_address(server, member)
    password = (options.secrets / "lsdflow").read_text().strip()
    make_lab_user(server, password)
    uri = f"mongodb://lsdflow:{quote(password, safe='')}@{member}/?authSource=admin&replicaSet={SET}"
    write_uri(options.uri_file, uri, options.owner)


if __name__ == "__main__":
    main(sys.argv[1:])
