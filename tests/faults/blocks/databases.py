"""Databases of experiments whose store is MongoDB: one server for all, a database for each copy of an experiment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

Rows = Mapping[str, list[dict[str, Any]]]
# A server that is away is noticed soon; one that answers nothing is given up after seconds.
QUICK = "serverSelectionTimeoutMS=400&connectTimeoutMS=1000&socketTimeoutMS=4000"
DONE = {
    "predict": "blocks_predicted",
    "watershed": "blocks_extracted",
    "agglomerate": "blocks_agglomerated",
    "segment": "blocks_segmented",
    "evaluate": "blocks_evaluated",
}


class Databases:
    """The databases of a server; `write_private` is that of mongod_for_tests."""

    def __init__(self, mongod: Any, folder: Path, write_private: Any) -> None:
        self.mongod, self._folder, self._write_private = mongod, folder, write_private

    def table(self, database: str, *, port: int | None = None, retry_s: float = 60) -> str:
        """The [store] table of an experiment; `port`: that of a proxy before the server."""
        to = port or self.mongod.port
        file = self._folder / f"{to}.uri"
        if not file.exists():
            login = f"admin:{quote_plus(self.mongod.admin_password)}"
            self._write_private(file, f"mongodb://{login}@127.0.0.1:{to}/?authSource=admin&{QUICK}\n")
        return f'[store]\nengine = "mongo"\nuri_file = "{file}"\ndatabase = "{database}"\nretry_s = {retry_s}\n'

    def dump(self, database: str) -> Rows:
        """All rows, by collection."""
        with self.mongod.admin() as client:
            there = client[database]
            return {name: list(there[name].find()) for name in there.list_collection_names()}

    def fill(self, database: str, rows: Rows) -> None:
        """Put rows into a new database."""
        with self.mongod.admin() as client:
            for name, documents in rows.items():
                if documents:
                    client[database][name].insert_many(documents, ordered=False)

    def drop(self, names: Iterable[str]) -> None:
        """Remove databases."""
        with self.mongod.admin() as client:
            for name in names:
                client.drop_database(name)

    def marks(self, database: str, stage: str) -> list[dict[int, float]]:
        """Block -> when it was done, of each work."""
        works: dict[str, dict[int, float]] = {}
        with self.mongod.admin() as client:
            for document in client[database][DONE[stage]].find({}, {"block_id": 1, "key": 1, "record.finished": 1}):
                works.setdefault(document["key"], {})[document["block_id"]] = float(document["record"]["finished"])
        return list(works.values())
