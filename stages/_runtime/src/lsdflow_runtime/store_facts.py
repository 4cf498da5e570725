"""What `<stage> doctor` tells of the experiment's store: version, how safe writes are, its clock. Writes nothing."""

from __future__ import annotations

import time
from typing import Any

from lsdflow_contract.errors import StageError
from lsdflow_contract.experiment import Experiment


def store_facts(experiment: Experiment | None) -> dict[str, Any]:
    """Of a mongo store its facts, or its first problem and what to do; of files the engine alone."""
    if experiment is None or experiment.store.engine == "files":
        return {"engine": "files"}
    from lsdflow_runtime.mongo_connection import QUICK, MongoConnection, mongo_address
    from lsdflow_runtime.mongo_problems import problems_of_mongo

    try:
        address = mongo_address(experiment)
    except StageError as error:
        return {"engine": "mongo", **_told(error)}
    known: dict[str, Any] = {"engine": "mongo", "address": str(address)}
    if problems := problems_of_mongo(experiment):
        return {**known, **_told(problems[0])}
    connection = MongoConnection(address, retry_s=0.0, options=QUICK)
    try:
        return {**known, **_asked(connection)}
    except StageError as error:
        return {**known, **_told(error)}
    finally:
        connection.close()


def _asked(connection: Any) -> dict[str, Any]:
    from lsdflow_runtime.mongo_connection import DURABLE, warn_if_open

    version = connection.call(lambda db: db.command("buildInfo"))["version"]
    before = time.time()
    hello = connection.call(lambda db: db.command("hello"))
    after = time.time()
    # Dates of the driver have no zone; they are UTC.
    theirs = (hello["localTime"] - type(hello["localTime"])(1970, 1, 1)).total_seconds()
    return {
        "version": version,
        "w": DURABLE.document["w"],
        "journal": DURABLE.document["j"],
        "replica_set": hello.get("setName", ""),
        "lets_strangers_in": warn_if_open(connection.address),
        "seconds_to_answer": after - before,
        "clock_ahead_s": theirs - (before + after) / 2,
    }


def _told(error: StageError) -> dict[str, Any]:
    return {"problem": f"{error.what}; {error.found}".rstrip("; "), "hint": error.hint}
