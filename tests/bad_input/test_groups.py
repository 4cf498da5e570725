"""Every array that the chain writes is opened by plain zarr from the root of its container, in both formats."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr
from bad_input.lab import Laboratory

from lsdflow_agglomerate.stage import Agglomerate
from lsdflow_predict.stage import Predict
from lsdflow_runtime.io.volumes import open_volume
from lsdflow_segment.stage import Segment
from lsdflow_watershed.stage import Watershed

watershed = Watershed()
agglomerate = Agglomerate()
predict = Predict()
segment = Segment()

FORMATTED = ("predict", "watershed", "segment")


def arrays_below(root: Path) -> list[Path]:
    """Folders of arrays, as stored on disk."""
    found = {path.parent for path in root.rglob(".zarray")}
    return sorted(found | {p.parent for p in root.rglob("zarr.json") if '"node_type": "array"' in p.read_text()})


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_every_array_of_a_chain_is_found_from_the_root_of_its_container(
    laboratory: Laboratory, zarr_format: int
) -> None:
    lab = laboratory.lab("train")
    for table in FORMATTED:
        lab.set(table, zarr_format=zarr_format)
    lab.set("predict", store_lsds=True)
    for stage in (predict, watershed, agglomerate, segment):
        stage.run(lab.experiment())
    names = set()
    for folder in arrays_below(lab.layout.root):
        container = next(parent for parent in folder.parents if parent.suffix == ".zarr")
        dataset = folder.relative_to(container).as_posix()
        opened = zarr.open(container, mode="r")[dataset]
        volume = open_volume(container, dataset)
        assert np.array_equal(opened[:], volume.read(volume.box))
        assert opened.metadata.zarr_format == (2 if "prepare" in container.parts else zarr_format)
        names.add(folder.name)
    assert names >= {"raw", "neuron_ids", "lsds", "affs", "fragments", "segmentation"}
