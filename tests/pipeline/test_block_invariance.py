"""On real neurons: seamless blocks give the segmentation of one shot; published blocks do not."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import zarr
from numpy.typing import NDArray

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "block_invariance.py"
LARGEST_VOI_TO_ONE_SHOT = 0.02


@pytest.fixture(scope="module")
def benchmark() -> Iterator[ModuleType]:
    sys.path.insert(0, str(SCRIPT.parent))
    spec = importlib.util.spec_from_file_location("block_invariance", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["block_invariance"] = module
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(SCRIPT.parent))


@pytest.fixture
def truth(shared_data: Path) -> NDArray[np.uint64]:
    cube = zarr.open_array(shared_data / "fib25" / "trvol-250-2.zarr" / "volumes/labels/neuron_ids", mode="r")
    return np.asarray(cube[60:156, 60:156, 60:156]).astype(np.uint64)


def test_seamless_blocks_segment_real_neurons_as_one_shot_does(
    benchmark: ModuleType, truth: NDArray[np.uint64]
) -> None:
    affs = benchmark.truth_affinities(truth, 1.0)
    one = benchmark.measured("seamless", affs, truth, 96, 0)
    assert one.voi[one.best] < 0.6 * one.voi[0], "the threshold must matter"
    for context_vox, more, largest_loss in ((16, 0.3, 0.01), (32, 0.05, 0.002)):
        row = benchmark.measured("seamless", affs, truth, 48, context_vox)
        assert len(one.ids) <= len(row.ids) <= (1 + more) * len(one.ids)
        assert abs(row.voi[row.best] - one.voi[one.best]) <= largest_loss
        between = benchmark.contingency(row.segmentation(one.best), one.segmentation(one.best))
        assert benchmark.score(between).voi <= LARGEST_VOI_TO_ONE_SHOT
    cells = benchmark.reported(row, one).split("|")
    assert cells[1].strip() == "seamless 48/32"


def test_one_shot_is_the_published_one_but_for_ties(benchmark: ModuleType, truth: NDArray[np.uint64]) -> None:
    """Graph against waterz on voxels, flood of turns against the published queue."""
    affs = benchmark.truth_affinities(truth, 1.0)
    seamless, published = (benchmark.measured(mode, affs, truth, 96, 0) for mode in ("distance", "blocks"))
    assert len(seamless.ids) == len(published.ids)
    assert seamless.voi[seamless.best] == pytest.approx(published.voi[published.best], abs=0.01)
    between = benchmark.contingency(seamless.segmentation(published.best), published.segmentation(published.best))
    assert benchmark.score(between).voi < 0.05
