"""A MongoDB server that asks for patience (Cosmos DB: 16500) is waited for; options of the URI reach the driver."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pymongo.errors import BulkWriteError, OperationFailure, PyMongoError

from lsdflow_contract.errors import StoreUnreachable
from lsdflow_runtime.store.mongo_connection import MongoConnection, address_in

THROTTLED = {
    "alone": OperationFailure("Request rate is large", 16500),
    "in a bulk": BulkWriteError({"writeErrors": [{"index": 0, "code": 16500, "errmsg": "Request rate is large"}]}),
}


def _connection(folder: Path, retry_s: float, options: str = "") -> MongoConnection:
    """To an address where nobody needs to answer: the driver connects at its first request only."""
    file = folder / "mongo.uri"
    file.write_text(f"mongodb://127.0.0.1:1/graph?{options}")
    file.chmod(0o600)
    return MongoConnection(address_in(file), retry_s)


@pytest.mark.proves("DBS-03")
@pytest.mark.parametrize("how", THROTTLED)
def test_a_throttled_request_is_made_again(tmp_path: Path, how: str) -> None:
    errors: list[PyMongoError] = [THROTTLED[how], THROTTLED[how]]

    def request(_: Any) -> str:
        if errors:
            raise errors.pop()
        return "done"

    assert _connection(tmp_path, retry_s=30).call(request) == "done"
    assert errors == []


@pytest.mark.parametrize("how", THROTTLED)
def test_a_store_that_throttles_for_too_long_is_exit_69(tmp_path: Path, how: str) -> None:
    def request(_: Any) -> None:
        raise THROTTLED[how]

    with pytest.raises(StoreUnreachable):
        _connection(tmp_path, retry_s=0.2).call(request)


@pytest.mark.proves("DBS-06")
def test_the_number_of_connections_is_that_of_the_uri(tmp_path: Path) -> None:
    connection = _connection(tmp_path, retry_s=1, options="maxPoolSize=3")
    assert connection.call(lambda db: db.client.options.pool_options.max_pool_size) == 3
    connection.close()
