"""The command `segment`: the verbs of every stage, and import-graph."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from lsdflow_command.app import (
    DebugOption,
    ExperimentOption,
    JsonOption,
    SetOption,
    StageCommand,
    exit_codes,
    stage_app,
)
from lsdflow_command.interruption import interrupt_on_signals
from lsdflow_contract.experiment import load_experiment
from lsdflow_segment.config import SegmentConfig

SUMMARY = "Find the segments at all thresholds, choose a threshold, and relabel the fragments."
app = stage_app(StageCommand("segment", SegmentConfig, SUMMARY))
FROM = "nodes.bson or edges_<merge_function>.bson (.gz), a folder of them, or a file (mode 0600) with a MongoDB URI"
FromOption = Annotated[list[Path], typer.Option("--from", help=FROM)]
DatabaseOption = Annotated[str | None, typer.Option(help="MongoDB database (default: the one in the URI)")]
MergeFunctionOption = Annotated[
    list[str] | None, typer.Option(help="merge function whose edges are imported (repeat for more; default: all)")
]
ReplaceOption = Annotated[bool, typer.Option("--replace", help="import in place of another graph")]
CUT_OUT = "the fragments cover only a part of the graph: leave out nodes that have no voxels"
CutOutOption = Annotated[bool, typer.Option("--cut-out", help=CUT_OUT)]


@app.command("import-graph")
def import_graph(
    experiment: ExperimentOption,
    source: FromOption,
    database: DatabaseOption = None,
    merge_function: MergeFunctionOption = None,
    cut_out: CutOutOption = False,
    override: SetOption = None,
    replace: ReplaceOption = False,
    json_: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Import a graph that the published LSD scripts made, from MongoDB or a dump; then use `segment run`."""
    from lsdflow_segment import graph_import

    with exit_codes(debug, as_json=json_), interrupt_on_signals():
        options = graph_import.ImportOptions(tuple(source), database, tuple(merge_function or ()), cut_out, replace)
        loaded = load_experiment(experiment, override or [])
        graph_import.import_graph(loaded, options)
        if json_:
            stages = [s for s in ("watershed", "agglomerate") if loaded.layout.manifest(s).exists()]
            typer.echo(json.dumps({"imported": stages, "next": f"segment run --experiment {loaded.path}"}))


def main() -> None:
    """Entry point of the console script."""
    app()
