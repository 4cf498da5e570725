#!/usr/bin/env python3
"""Does the database let us in with the password of the URI file, and nobody without? Run in a block stage's image."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pymongo import MongoClient
from pymongo.errors import OperationFailure, PyMongoError
from pymongo.uri_parser import parse_uri

DATABASE = "lsdflow_smoke_test"


def writes_and_reads(uri: str) -> None:
    """One document there and back, acknowledged on disk. PyMongoError if not."""
    with MongoClient(uri, serverSelectionTimeoutMS=5000) as client:
        client[DATABASE]["notes"].insert_one({"_id": os.getpid()})
        found = client[DATABASE]["notes"].find_one({"_id": os.getpid()})
        client[DATABASE].drop_collection("notes")
    if found is None:
        sys.exit("the document that was just written is not there")


def refuses_strangers(uri: str) -> None:
    """Without a password nothing can be listed, read or written."""
    host, port = parse_uri(uri)["nodelist"][0]
    with MongoClient(host, port, directConnection=True, serverSelectionTimeoutMS=5000) as client:
        for attempt in (client.list_database_names, client[DATABASE]["notes"].find_one):
            try:
                attempt()
            except OperationFailure:
                continue
            sys.exit(f"{host}:{port} lets in without a password: stop it")


if __name__ == "__main__":
    address = Path(sys.argv[1]).read_text().strip()
    try:
        writes_and_reads(address)
    except PyMongoError as error:
        sys.exit(f"not in with the password of {sys.argv[1]}: {type(error).__name__}: {str(error)[:120]}")
    refuses_strangers(address)
