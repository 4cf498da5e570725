"""`lsdflow demo`: a synthetic EM volume, cut along z into a training part and a target, with an experiment.

The experiment predicts with the network beside this file, or trains one. `make demo-network` trained that network, on
another volume of the same kind (--seed 1).
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from lsdflow_contract.experiment import TRAININGS
from lsdflow_contract.files import write_atomically
from lsdflow_contract.geometry import Vox3
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_launch.init.draft import init_experiment
from lsdflow_launch.init.inspect import Start
from lsdflow_launch.init.networks import find_network
from lsdflow_launch.synthetic.image import synthetic_em

VOXEL_SIZE_NM = (10.0, 10.0, 10.0)
DEMO_SHAPE_VOX = (224, 160, 160)
TRAINED_SECTIONS = 128
CHECKPOINT = Path(__file__).with_name("demo_network")
# `make demo TRAIN=1` takes at most four minutes on two slow cores: a small network with small patches; one core trains,
# the other makes patches. If the iterations would take longer than max_minutes, the learning rate falls within this
# time.
DEMO_TRAINING = {
    "num_fmaps": 8,
    "fmap_inc_factor": 4,
    "downsample_factors": [[2, 2, 2]],
    "input_shape_vox": [48, 48, 48],
    "predict_input_shape_vox": [100, 100, 100],
    "max_iteration": 600,
    "max_minutes": 1.6,
    "learning_rate": 0.004,
    "elastic_probability": 0.0,
    "threads": 1,
    "num_workers": 1,
}
# Every stage has one block: starting worker processes would take longer than the computation.
DEMO_SETTINGS = ("predict.store_lsds=true", "compute.runner=serial")


def make_demo(
    root: Path,
    shape_vox: Vox3 = DEMO_SHAPE_VOX,
    seed: int = 0,
    mode: str = "mtlsd",
    checkpoint: Path | None = None,
) -> ExperimentLayout:
    """Write input/train.hdf and input/volume.hdf (CREMI style) and an experiment of profile tiny for them.

    checkpoint: the folder of a network of this mode, of which the experiment gets a copy; None: it trains one.
    """
    raw, labels = synthetic_em(shape_vox, VOXEL_SIZE_NM, seed)
    cut = min(TRAINED_SECTIONS, shape_vox[0] * 4 // 7)
    train, volume = root / "input" / "train.hdf", root / "input" / "volume.hdf"
    write_volume(train, raw[:cut], labels[:cut])
    write_volume(volume, raw[cut:], labels[cut:])
    start = Start(root=root, train=(train,), volume=volume, truth=volume, profile="tiny", mode=mode)
    if checkpoint is not None:
        copy = shutil.copytree(checkpoint, root / "input" / "network", dirs_exist_ok=True)
        return init_experiment(replace(start, train=(), network=find_network(str(copy)), overrides=DEMO_SETTINGS))
    training = [f"{stage}.{k}={json.dumps(v)}" for stage in TRAININGS for k, v in DEMO_TRAINING.items()]
    return init_experiment(replace(start, overrides=(*training, *DEMO_SETTINGS)))


def write_volume(path: Path, raw: npt.NDArray[np.uint8], labels: npt.NDArray[np.uint64]) -> None:
    """Write raw and labels in the format of CREMI: HDF5 with `resolution` z,y,x in nm."""

    def fill(file: Any) -> None:
        """Write both datasets, gzip-compressed, with their voxel size in nm."""
        with h5py.File(file, "w") as container:
            for name, values in (("volumes/raw", raw), ("volumes/labels/neuron_ids", labels)):
                dataset = container.create_dataset(name, data=values, chunks=True, compression="gzip")
                dataset.attrs["resolution"] = VOXEL_SIZE_NM

    write_atomically(path, fill)
