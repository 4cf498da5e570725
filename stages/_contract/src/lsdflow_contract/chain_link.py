"""What a stage gets from the chain that runs it: the chain's lock, and the identities of the results it may read.

$LSDFLOW_CHAIN             set by `lsdflow run` for each stage
$LSDFLOW_SUBMISSION        in jobs of a cluster: the files results/<stage> of this folder in runs/submit/. The job that
                           verifies a stage writes its file; `lsdflow submit` writes those of earlier stages
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

CHAIN_VARIABLE, SUBMISSION_VARIABLE = "LSDFLOW_CHAIN", "LSDFLOW_SUBMISSION"


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
        if submission := os.environ.get(SUBMISSION_VARIABLE):
            files = [file for file in results_folder(root, submission).glob("[!.]*") if file.is_file()]
            return cls(str(root.resolve()), results={file.name: file.read_text(encoding="ascii") for file in files})
        text = os.environ.get(CHAIN_VARIABLE)
        found = cls(**json.loads(text)) if text else cls()
        return found if text and found.experiment == str(root.resolve()) else cls()

    @contextmanager
    def in_environment(self) -> Iterator[None]:
        """Set it in the environment of all processes that are started within the block."""
        before = os.environ.get(CHAIN_VARIABLE, "")
        os.environ[CHAIN_VARIABLE] = json.dumps(asdict(self))
        try:
            yield
        finally:
            os.environ[CHAIN_VARIABLE] = before


def results_folder(root: Path, submission: str) -> Path:
    """The folder with a file for each stage that the jobs of a submission have verified: the identity of its result."""
    return root / "runs" / "submit" / submission / "results"
