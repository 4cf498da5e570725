"""lsdflow: a stage of 64 blocks with two worker processes, run as `<stage> run` runs it."""

from __future__ import annotations

import sys

import typer
from work import finish, root

from lsdflow_command.app import exit_codes
from lsdflow_command.interruption import interrupt_on_signals
from lsdflow_contract.experiment import load_experiment
from lsdflow_row.stage import Row

TABLES = "[compute]\nworkers = 2\nblock_timeout_s = 5\n"

if __name__ == "__main__":
    path = root() / "experiment.toml"
    if not path.exists():
        path.write_text(TABLES)
    try:
        with exit_codes(debug=False), interrupt_on_signals():
            Row().run(load_experiment(root()))
    except typer.Exit as end:
        sys.exit(end.exit_code)
    finish(True)
