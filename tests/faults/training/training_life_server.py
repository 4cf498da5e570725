"""Lives of a training, one forked process each, so that torch is imported and loops are compiled once for all.

Reads one JSON object per line: {"command": [...], "log": path, "steps": path, "places": path or null, "death": {...}};
answers one per life: {"code": exit code, minus the signal if it was killed}. The life is the command itself.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import torch._dynamo  # noqa: F401  (the optimizer imports it at its first use, which takes seconds)
from training_death import Death, note_steps

import lsdflow_train_acrlsd.cli
import lsdflow_train_acrlsd.stage
import lsdflow_train_lsd.cli
import lsdflow_train_lsd.stage
from lsdflow_training.compiled import compile_everything

COMMANDS = {"train-lsd": lsdflow_train_lsd.cli.main, "train-acrlsd": lsdflow_train_acrlsd.cli.main}


def live(life: dict[str, Any]) -> None:
    """Body of a life; does not return."""
    log = os.open(life["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    note_steps(Path(life["steps"]))
    places = life.get("places")
    Death(**life["death"], places=Path(places) if places else None).install()
    logging.getLogger().handlers.clear()  # an import of the server has set one; the command sets its own
    sys.argv = life["command"]
    code: Any = 0
    try:
        COMMANDS[sys.argv[0]]()
    except SystemExit as end:
        code = end.code or 0
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    """Serve until the input ends."""
    compile_everything()
    for line in sys.stdin:
        life = json.loads(line)
        process = os.fork()
        if process == 0:
            live(life)
        _, status = os.waitpid(process, 0)
        sys.stdout.write(json.dumps({"code": os.waitstatus_to_exitcode(status)}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
