"""All tests marked gpu, a row each; then whether anything beside its input changes the bits of a tile (bits.py)."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import IO, Any

import pytest
from bits import print_bits
from gpu_machine import print_head
from part import Part

BUNDLE = Path(__file__).resolve().parents[2]
# The promise that failed once comes first.
FIRST = "tests/stages/predict/test_on_gpu.py"
OTHERS = ("tests/network", "tests/stages/predict", "tests/training")
OF_A_TOY = "grey_levels or measured_block or patches"


class Rows:
    """A plugin of pytest: a row for each test, as soon as it has ended."""

    def __init__(self, part: Part, out: IO[str]) -> None:
        self._part, self._out = part, out
        self._seconds: dict[str, float] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """What is going to run."""
        self._part.plan(*(item.nodeid for item in session.items))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Setup, call or teardown of a test has ended."""
        self._seconds[report.nodeid] = self._seconds.get(report.nodeid, 0.0) + report.duration
        if report.when == "call" or report.outcome != "passed":
            why = "" if report.passed else " ".join(str(report.longrepr).splitlines()[-1:])[:300].replace("|", "/")
            with redirect_stdout(self._out):
                seconds = f"{self._seconds[report.nodeid]:.1f}"
                self._part.row(report.nodeid, [report.nodeid.removeprefix("tests/"), report.outcome, seconds, why])


def main() -> int:
    """Run the tests and the diagnosis; 1 if something failed."""
    part = Part(__doc__)
    os.environ["LSDFLOW_TEST_DEVICE"] = part.device
    os.chdir(BUNDLE)
    part.plan("bits", "the other tests")
    print_head("tests marked gpu", ("test", "outcome", "seconds", ""))
    failed = run_tests(part, [FIRST])
    print_bits(part, failed=bool(failed))
    print_head("the other tests marked gpu", ("test", "outcome", "seconds", ""))
    failed |= run_tests(part, [*OTHERS, f"--ignore={FIRST}"])
    part.did("the other tests")
    return failed


def run_tests(part: Part, arguments: Sequence[Any]) -> int:
    """pytest's exit code, with all that it says in the log."""
    given = ["-q", "-m", "gpu", "-p", "no:cacheprovider", *arguments, *(["-k", OF_A_TOY] if part.tiny else [])]
    out = sys.stdout
    with redirect_stdout(sys.stderr):
        return int(pytest.main(given, plugins=[Rows(part, out)]))


if __name__ == "__main__":
    sys.exit(main())
