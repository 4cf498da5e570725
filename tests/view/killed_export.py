"""Export an experiment in a process that is killed (SIGKILL) in the middle of a piece: FORMAT DIR OUT PIECES.

The piece after PIECES of them is written, but has no done mark yet.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from lsdflow_contract.experiment import load_experiment
from lsdflow_runtime.done_marks import DoneMarks


def main(format_: str, folder: str, out: str, pieces: int) -> None:
    """Never comes back, if the export has more pieces than that."""
    mark_done, marked = DoneMarks.mark_done, []

    def mark_or_die(marks: DoneMarks, number: int, record: dict[str, object]) -> None:
        if len(marked) == pieces:
            os.kill(os.getpid(), signal.SIGKILL)
        marked.append(number)
        mark_done(marks, number, record)

    DoneMarks.mark_done = mark_or_die
    experiment = load_experiment(Path(folder))
    if format_ == "ome":
        from lsdflow_view.export.ngff import export_ome

        export_ome(experiment, Path(out), (), None)
    else:
        from lsdflow_view.export.precomputed import export_precomputed
        from lsdflow_view.export.shape_works import ShapeOptions

        export_precomputed(experiment, Path(out), ("raw", "segmentation"), None, ShapeOptions(3, 3))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
