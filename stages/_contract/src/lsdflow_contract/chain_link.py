"""What a command that runs several stages tells each stage, in $LSDFLOW_CHAIN: its lock, and the results to read."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

CHAIN_VARIABLE = "LSDFLOW_CHAIN"


@dataclass(frozen=True)
class ChainLink:
    """experiment: its folder. lock: id of the holder of runs/lock. results: identities of results to read, by stage.

    A stage that was not called by a chain has an empty link, which allows any result.
    """

    experiment: str = ""
    lock: str = ""
    results: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of_caller(cls, root: Path) -> ChainLink:
        """The link to the chain that called this process; empty if none did, or one of another experiment."""
        text = os.environ.get(CHAIN_VARIABLE)
        found = cls(**json.loads(text)) if text else cls()
        return found if text and found.experiment == str(root.resolve()) else cls()

    @contextmanager
    def told(self) -> Iterator[None]:
        """Tell it to all processes that are started within the block."""
        before = os.environ.get(CHAIN_VARIABLE, "")
        os.environ[CHAIN_VARIABLE] = json.dumps(asdict(self))
        try:
            yield
        finally:
            os.environ[CHAIN_VARIABLE] = before
