"""All tests marked gpu, as a table of their files; what failed is printed below it, and makes the exit code 1."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree as Tree

from gpu_machine import describe, print_head, print_row, require_device

BUNDLE = Path(__file__).resolve().parents[2]


def main() -> int:
    """Run pytest, print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a few of them, to try the script")
    options = parser.parse_args()
    require_device(options.device)
    print(describe(options.device))
    with TemporaryDirectory(prefix="lsdflow-gpu-") as scratch:
        report = Path(scratch) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", f"--junitxml={report}"]
        if options.tiny:
            command += ["-k", "grey_levels or measured_block or patches"]
        environment = {**os.environ, "LSDFLOW_TEST_DEVICE": options.device}
        done = subprocess.run(
            [*command, "tests"], cwd=BUNDLE, env=environment, capture_output=True, text=True, check=False
        )
        sys.stderr.write(done.stdout + done.stderr)
        cases = list(Tree.parse(report).iter("testcase")) if report.exists() else []
    print_table(cases)
    if done.returncode or not cases:
        print(f"\npytest ended with {done.returncode}\n```text\n{done.stdout[-4000:]}{done.stderr[-1000:]}\n```")
    return 1 if done.returncode or not cases else 0


def print_table(cases: list[Tree.Element]) -> None:
    """A row for each file of tests."""
    files: dict[str, list[Tree.Element]] = defaultdict(list)
    for case in cases:
        files[case.get("classname", "")].append(case)
    print_head("tests marked gpu", ("file", "passed", "failed", "seconds"))
    for name, found in sorted(files.items()):
        failed = sum(case.find("failure") is not None or case.find("error") is not None for case in found)
        skipped = sum(case.find("skipped") is not None for case in found)
        seconds = sum(float(case.get("time", 0)) for case in found)
        print_row((name, len(found) - failed - skipped, f"{failed}, {skipped} skipped", f"{seconds:.1f}"))


if __name__ == "__main__":
    sys.exit(main())
