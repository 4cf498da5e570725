"""Two experiments that name one database of a real MongoDB: the second is refused before it writes a row (73)."""

from __future__ import annotations

from typing import Any

from bad_input.asking import ask, results_changed
from bad_input.lab import Lab, Laboratory

DATABASE = "shared-by-mistake"


def _with_database(laboratory: Laboratory, uri: str) -> Lab:
    lab = laboratory.lab("predict")
    lab.set("store", engine="mongo", uri_file=uri, database=DATABASE)
    return lab


def test_a_database_that_another_experiment_uses_is_refused_naming_it(laboratory: Laboratory, mongod: Any) -> None:
    uri = str(mongod.uri_file(DATABASE, laboratory.folder))
    first, second = (_with_database(laboratory, uri) for _ in range(2))
    made = ask(["watershed", "run", "--experiment", str(first.toml)], first.root)
    assert made.exit_code == 0, made.text
    answer = ask(["lsdflow", "validate", str(second.toml.parent)], second.root)
    assert (answer.exit_code, answer.changed) == (73, ()), answer.text
    refused = ask(["watershed", "run", "--experiment", str(second.toml)], second.root)
    assert (refused.exit_code, results_changed(refused)) == (73, []), refused.text
    for text in (answer.text, refused.text):
        assert [w for w in (DATABASE, "another experiment", "choose another database") if w not in text] == [], text
    assert ask(["watershed", "verify", "--experiment", str(first.toml)], first.root).exit_code == 0
