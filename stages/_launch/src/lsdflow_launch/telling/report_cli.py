"""The commands `report` and `cite` of `lsdflow`."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from lsdflow_command.app import exit_codes
from lsdflow_contract.citations import REFERENCES, SOFTWARE, bibtex
from lsdflow_contract.experiment import load_experiment
from lsdflow_launch.answer import print_answer, result_facts, show_result, stdout_for_json
from lsdflow_launch.options import Debug, Folder, Json, Set
from lsdflow_launch.telling.ending import scores_stand
from lsdflow_launch.telling.reporting import EVERY_S, report_now, watch


def add_report_verbs(app: typer.Typer) -> None:
    """Register `report` and `cite`."""

    @app.command()
    def report(
        folder: Folder,
        again: Annotated[bool, typer.Option("--watch", help="write the report again and again, until Ctrl-C")] = False,
        every_s: Annotated[
            float, typer.Option("--every", min=5, help="with --watch: seconds between reports")
        ] = EVERY_S,
        override: Set = None,
        as_json: Json = False,
        debug: Debug = False,
    ) -> None:
        """Write the report from the present results, at any time; computes no new scores."""
        code = 0
        with exit_codes(debug, as_json):
            experiment = load_experiment(folder, override or [])
            with stdout_for_json(as_json):
                if again:
                    watch(experiment, every_s, time.sleep)
                else:
                    code = report_now(experiment)
            scored = scores_stand(experiment.layout)
            if as_json:
                print_answer(result_facts(experiment, code, scored=scored), "", as_json)
            else:
                show_result(experiment.layout, scored=scored)
        raise typer.Exit(code)

    @app.command()
    def cite(as_bibtex: Annotated[bool, typer.Option("--bibtex", help="print BibTeX")] = False) -> None:
        """Print what to cite in a paper that uses lsdflow."""
        for found in (SOFTWARE, *REFERENCES):
            typer.echo(bibtex(found) if as_bibtex else f"{found.text()}\n")
