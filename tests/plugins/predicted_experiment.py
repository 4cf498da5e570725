"""An experiment of ten cells with truth, of which predict has finished; the stages after it take a few seconds."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lsdflow_contract.arrays import AFFINITY_NEIGHBORHOOD, AFFS, LABELS, RAW
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_contract.geometry import Geometry
from lsdflow_contract.manifest import Manifest, Writer
from lsdflow_contract.testing import membrane_raw, noisy_affinities_to, voronoi_labels
from lsdflow_runtime.io.volumes import OutputArray

GRID = Geometry((10.0, 8.0, 8.0), (0.0, 0.0, 0.0), (20, 24, 24))
TARGET, PREDICTIONS = "volumes/target.zarr", "volumes/predictions.zarr"
SETTINGS = """
[compute]
runner = "serial"
[watershed]
block_shape = "16 vox"
context = "4 vox"
min_seed_distance_vox = 4
[segment]
thresholds_step = 0.1
"""


def make_predicted(folder: Path) -> Experiment:
    """Write the volumes and the manifests of prepare and predict; the volumes are not among the results."""
    folder.mkdir(parents=True)
    (folder / "experiment.toml").write_text(SETTINGS)
    experiment, cells = load_experiment(folder), voronoi_labels(GRID.shape_vox, 10)
    affinities: np.ndarray = noisy_affinities_to(cells, AFFINITY_NEIGHBORHOOD)
    for container, spec, values in (
        (TARGET, RAW, membrane_raw(cells)),
        (TARGET, LABELS, cells),
        (PREDICTIONS, AFFS, affinities),
    ):
        output = OutputArray(folder / container, spec, GRID, GRID.box, GRID.shape_vox)
        output.create({"key": spec.dataset})
        output.open().write(GRID.box, values)
    for stage, outputs in (("prepare", {"target": TARGET}), ("predict", {"affs": f"{PREDICTIONS}/{AFFS.dataset}"})):
        Manifest(
            writer=Writer.of(stage), key=stage, config={}, inputs={}, outputs=outputs, identity=f"identity of {stage}"
        ).write(experiment.layout)
    return experiment
