"""The store of an experiment: connection, login, safe writes, clock; a stage checks it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lsdflow_contract.experiment import Experiment
from lsdflow_launch.doctor.finding import Finding, fail, ok, warn
from lsdflow_launch.doctor.folder import clock
from lsdflow_launch.doctor.outside import ask_stage_in_time

STAGE = "watershed"
STORE_S = 60.0


def store_findings(experiment: Experiment | None) -> Iterator[Finding]:
    """Yield the findings about a mongo store; a files store is part of the folder."""
    if experiment is None:
        return
    if experiment.store.engine == "files":
        yield ok("store", "files, in the folder of the experiment")
        return
    sets = [part for override in experiment.overrides for part in ("--set", override)]
    told = ask_stage_in_time(STAGE, ["doctor", "--experiment", str(experiment.path), "--json", *sets], STORE_S)
    if "problem" in told:
        yield fail("store", f"mongo: {told['problem']}", "lsdflow validate DIR tells more")
        return
    yield from findings_of(told["store"])


def findings_of(facts: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the findings that follow from the facts of a mongo store."""
    if "problem" in facts:
        yield fail("store", f"mongo at {facts.get('address', '?')}: {facts['problem']}", str(facts.get("fix", "")))
        return
    yield ok("store", f"mongo {facts['version']} at {facts['address']}, {facts['seconds_to_answer']:.2f} s an answer")
    if facts["lets_strangers_in"]:
        yield warn("login of the store", "anyone is let in without a password", "start mongod with --auth")
    else:
        yield ok("login of the store", "with a password, this user may write")
    yield _safety(facts)
    yield clock("clock of the store", facts["clock_ahead_s"])


def _safety(facts: Mapping[str, Any]) -> Finding:
    found = f"writes ask for w={facts['w']}, journal {'on' if facts['journal'] else 'off'}"
    version = tuple(int(part) for part in str(facts["version"]).split(".")[:3] if part.isdigit())
    if version < (4, 4):
        return warn(
            "writes of the store", f"{found}; mongo {facts['version']} gets no repairs any more", "7.0 or newer"
        )
    if facts.get("replica_set"):
        return ok("writes of the store", f"{found}, replica set {facts['replica_set']}")
    if (8, 0, 32) <= version <= (8, 0, 38):
        fix = "a replica set of one member, or 7.0"
        return warn("writes of the store", f"{found}; this version alone may lose them when it is killed", fix)
    return ok("writes of the store", f"{found}, one server")
