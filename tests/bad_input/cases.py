"""All rows of the matrix, by the part of an experiment that is wrong."""

from __future__ import annotations

from bad_input import cases_artefacts, cases_config, cases_files, cases_volumes

SECTIONS = {
    "The experiment file": cases_config.CASES,
    "Volumes": cases_volumes.CASES + cases_files.CASES,
    "What stages made, and commands": cases_artefacts.CASES,
}
CASES = [case for cases in SECTIONS.values() for case in cases]
