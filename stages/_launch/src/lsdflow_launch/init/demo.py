"""`lsdflow demo`: a synthetic EM volume, cut along z into training part and target, and an experiment on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from lsdflow_contract.files import write_atomically
from lsdflow_contract.geometry import Vox3
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_launch.init.experiment import init_experiment
from lsdflow_launch.init.looking import Start
from lsdflow_launch.synthetic.volume import synthetic_em

VOXEL_SIZE_NM = (10.0, 10.0, 10.0)
DEMO_SHAPE_VOX = (224, 160, 160)
TRAINED_SECTIONS = 128
# A demo must fit in ten minutes on two cores: one network, and as many iterations as that leaves room for.
DEMO_ITERATIONS = 300


def make_demo(root: Path, shape_vox: Vox3 = DEMO_SHAPE_VOX, seed: int = 0, mode: str = "mtlsd") -> ExperimentLayout:
    """Write input/train.hdf and input/volume.hdf (CREMI style) and an experiment of profile tiny on them."""
    raw, labels = synthetic_em(shape_vox, VOXEL_SIZE_NM, seed)
    cut = min(TRAINED_SECTIONS, shape_vox[0] * 4 // 7)
    train, volume = root / "input" / "train.hdf", root / "input" / "volume.hdf"
    write_volume(train, raw[:cut], labels[:cut])
    write_volume(volume, raw[cut:], labels[cut:])
    settings = [f"{stage}.max_iteration={DEMO_ITERATIONS}" for stage in ("train-lsd", "train-acrlsd")]
    settings.append("predict.store_lsds=true")
    return init_experiment(
        Start(
            root=root, train=(train,), volume=volume, truth=volume, profile="tiny", mode=mode, overrides=tuple(settings)
        )
    )


def write_volume(path: Path, raw: npt.NDArray[np.uint8], labels: npt.NDArray[np.uint64]) -> None:
    """Write raw and labels as CREMI does: HDF5 with `resolution` z,y,x in nm."""

    def fill(file: Any) -> None:
        with h5py.File(file, "w") as container:
            for name, values in (("volumes/raw", raw), ("volumes/labels/neuron_ids", labels)):
                dataset = container.create_dataset(name, data=values, chunks=True, compression="gzip")
                dataset.attrs["resolution"] = VOXEL_SIZE_NM

    write_atomically(path, fill)
