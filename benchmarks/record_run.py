"""Record what a finished experiment took, for plans of experiments that have not run: prints recorded_run.json.

    python benchmarks/record_run.py EXPERIMENT "FIB-25 250^3 on 2 cores ..." > .../planning/recorded_run.json

Run it when nothing else ran beside the experiment.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from lsdflow_contract.experiment import load_experiment
from lsdflow_launch.commands import ask_stage
from lsdflow_launch.descriptions import plans_of
from lsdflow_launch.planning.evidence import record_of, text_of

if __name__ == "__main__":
    experiment = load_experiment(Path(sys.argv[1]))
    made = {s: record_of(experiment, s, facts) for s, facts in plans_of(experiment, ask_stage).items()}
    # What later plans do not ask for: settings and paths of that experiment.
    kept = ("blocks", "seconds_in_blocks", "peak_rss_mib", "it_per_s", "iteration")
    lean = {s: replace(m, manifest={k: v for k, v in m.manifest.items() if k in kept}) for s, m in made.items()}
    sys.stdout.write(text_of(lean, sys.argv[2]))
