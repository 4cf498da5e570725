"""How much a command tells on stderr: quiet (errors alone), normal, verbose (also what is for finding faults).

The word stands in the environment, so that stages and workers that a command starts tell as much as it does. The log
file of a run keeps what it always keeps: only stderr is quiet.
"""

from __future__ import annotations

import logging
import os
import sys

from lsdflow_command.log_lines import log_formatter

LOUDNESS_VARIABLE = "LSDFLOW_LOUDNESS"
NORMAL = "normal"
LEVELS = {"quiet": logging.ERROR, NORMAL: logging.INFO, "verbose": logging.DEBUG}
_HANDLER = "lsdflow-stderr"


def loudness() -> str:
    """quiet, normal or verbose."""
    word = os.environ.get(LOUDNESS_VARIABLE, NORMAL)
    return word if word in LEVELS else NORMAL


def is_quiet() -> bool:
    """True where only errors and results are wanted."""
    return loudness() == "quiet"


def set_loudness(word: str) -> None:
    """Tell as much as `word` says from now on, here and in what is started from here."""
    os.environ[LOUDNESS_VARIABLE] = word
    _apply()


def start_logging() -> None:
    """Log lines to stderr, the same form everywhere, as loud as the environment says."""
    root = logging.getLogger()
    if not root.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(log_formatter())
        handler.set_name(_HANDLER)
        root.addHandler(handler)
        root.setLevel(logging.INFO)
    _apply()


def form_log_lines(wanted: str | None, stage: str) -> None:
    """Lines of a stage on stderr in the form that its experiment wants; see log_lines."""
    for handler in logging.getLogger().handlers:
        if handler.get_name() == _HANDLER:
            handler.setFormatter(log_formatter(wanted, stage))


def _apply() -> None:
    """Quiet is a matter of stderr alone; what is for finding faults comes from lsdflow, not from its libraries."""
    level = LEVELS[loudness()]
    for handler in logging.getLogger().handlers:
        if handler.get_name() == _HANDLER:
            handler.setLevel(level)
    logging.getLogger("lsdflow").setLevel(logging.DEBUG if level == logging.DEBUG else logging.NOTSET)
