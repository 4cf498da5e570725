"""Reports for the tests in a browser, made by the Python of the block stages: finished, failing and empty experiments.

make_reports.py FOLDER: FOLDER/{finished,failing,empty}/report/
"""

from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path
from types import ModuleType

from lsdflow_contract.errors import BadData, Interrupted
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_contract.files import write_json
from lsdflow_evaluate.evaluation import write_report
from lsdflow_evaluate.stage import Evaluate
from lsdflow_runtime.store.done_marks import DoneMarks

REPOSITORY = Path(__file__).resolve().parents[2]
GRID = {"begin_vox": [0, 0, 0], "shape_vox": [18, 24, 26], "block_shape_vox": [6, 4, 5]}


def main(folder: Path) -> None:
    """Make all three."""
    builder = _builder()
    builder.build(folder / "finished")
    finished = load_experiment(folder / "finished")
    _note_runs(finished)
    # Another result, so that the page compares two.
    Evaluate().run(load_experiment(folder / "finished", ["evaluate.zeros=ignore"]))
    Evaluate().run(finished)
    write_report(finished)
    builder.build(folder / "failing")
    failing = load_experiment(folder / "failing")
    _note_runs(failing)
    _break(failing)
    write_report(failing, refresh_s=60)
    (folder / "empty").mkdir()
    (folder / "empty" / "experiment.toml").write_text('[experiment]\nname = "nothing-yet"\n')
    write_report(load_experiment(folder / "empty"))


def _builder() -> ModuleType:
    """The small experiment of the tests of evaluate."""
    path = REPOSITORY / "tests" / "stages" / "evaluate" / "conftest.py"
    spec = importlib.util.spec_from_file_location("small_experiment", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _note_runs(experiment: Experiment) -> None:
    """A run of every stage, and the grid of watershed's blocks: 108 of them, 60 done."""
    layout, begin = experiment.layout, 1.7e9
    resources = {"cpu_s": 31.5, "peak_resident_bytes": 3 << 28, "read_bytes": 5 << 30, "written_bytes": 7 << 20}
    for number, stage in enumerate(("prepare", "predict", "watershed", "agglomerate", "segment")):
        folder = layout.stage_runs(stage) / f"20231114T22{number:02d}00-17"
        write_json(folder / "config.resolved.json", {"config": {"size": 3}, "overrides": ["compute.workers=2"]})
        outcome = {"started": begin + 60 * number, "seconds": 50.0, "exit_code": 0, "error": None, "host": "node-1"}
        write_json(folder / "outcome.json", {**outcome, "resources": {**resources, "gpu": "", "gpu_bytes": 0}})
        (folder / "log.txt").write_text("a line of the log that is quite long, so that a phone has to scroll it\n" * 3)
    write_json(layout.stage_runs("watershed") / "grids" / "watershed-key.json", GRID)
    marks = DoneMarks.of(layout.store, "watershed", "watershed-key")
    for number in range(60):
        marks.mark_done(number, {"seconds": 0.2 + number % 7, "checksums": {}, "facts": {}})


def _break(experiment: Experiment) -> None:
    """segment failed, watershed has a failed block, agglomerate was stopped, evaluate runs."""
    layout = experiment.layout
    layout.manifest("segment").unlink()
    error = BadData(
        "the graph is <b>spoilt</b>", where="a/very/long/path/" * 12, wanted="edges", found="none"
    ).as_dict()
    for stage, code, problem in (("segment", 65, error), ("agglomerate", 75, Interrupted("stopped").as_dict())):
        outcome = {"started": 1.7e9 + 400, "seconds": 9.0, "exit_code": code, "error": problem, "host": "node-2"}
        folder = layout.stage_runs(stage) / "20231114T230000-18"
        write_json(folder / "config.resolved.json", {"config": {}, "overrides": []})
        write_json(folder / "outcome.json", outcome)
    write_json(layout.stage_runs("evaluate") / "20231114T231000-19" / "config.resolved.json", {"config": {}})
    failure = BadData("no affinities there", where="block 70").as_dict()
    DoneMarks.of(layout.store, "watershed", "watershed-key").mark_failed(70, {**failure, "finished": time.time()})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
