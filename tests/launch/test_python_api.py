"""`import lsdflow`: quick, usable where some stages are missing, and every array that does not fit is refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lsdflow
from lsdflow_contract.errors import BadData, NotInstalled, StageError, UsageError
from lsdflow_contract.testing import affinities_of, noisy_affinities_to, voronoi_labels

CELLS = voronoi_labels((12, 14, 16), 5, 1)
AFFS = affinities_of(CELLS)
EDGES = lsdflow.score_edges(AFFS, CELLS)


def test_the_import_loads_no_stage_and_no_heavy_library() -> None:
    code = "import sys, lsdflow; print(*{name.partition('.')[0] for name in sys.modules})"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "numba", "zarr", "scipy", "h5py", "pyarrow", "daisy"} & set(found)
    assert {name for name in found if name.startswith("lsdflow")} == {"lsdflow", "lsdflow_contract", "lsdflow_command"}


@pytest.mark.parametrize(
    ("package", "call"),
    [
        ("lsdflow_network", lambda: lsdflow.load_predictor("network")),
        ("torch", lambda: lsdflow.predict_affinities(CELLS.astype(np.uint8), "network")),
        ("lsdflow_watershed", lambda: lsdflow.extract_fragments(AFFS)),
        ("lsdflow_agglomerate", lambda: lsdflow.score_edges(AFFS, CELLS)),
        ("lsdflow_segment", lambda: lsdflow.segment(CELLS, EDGES, 0.5)),
        ("lsdflow_metrics", lambda: lsdflow.compare(CELLS, CELLS)),
    ],
)
def test_a_package_that_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, package: str, call: Callable[[], Any]
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(NotInstalled, match=package.replace("_", "-")):
        call()


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda: lsdflow.predict_affinities(np.zeros((9, 9, 9), np.uint16), "n"), BadData, "uint8 (z, y, x)"),
        (lambda: lsdflow.predict_affinities(np.zeros((1, 9, 9, 9), np.uint8), "n"), BadData, "uint8 (z, y, x)"),
        (lambda: lsdflow.predict_affinities(np.zeros((0, 9, 9), np.uint8), "n"), BadData, "uint8 (z, y, x)"),
        (lambda: lsdflow.extract_fragments(AFFS / 255), BadData, "np.floor(affinities * 255).astype(np.uint8)"),
        (lambda: lsdflow.extract_fragments(AFFS[:2]), BadData, "(3 or more, z, y, x)"),
        (lambda: lsdflow.extract_fragments(AFFS[0]), BadData, "(3 or more, z, y, x)"),
        (lambda: lsdflow.extract_fragments(AFFS, CELLS > 0), BadData, "(mask > 0).astype(np.uint8)"),
        (lambda: lsdflow.extract_fragments(AFFS, np.ones((2, 2, 2), np.uint8)), BadData, "(12, 14, 16)"),
        (lambda: lsdflow.extract_fragments(AFFS, min_seed_distance_vox=0), UsageError, "min_seed_distance_vox"),
        (lambda: lsdflow.extract_fragments(AFFS, filter_fragments=200), UsageError, "filter_fragments"),
        (lambda: lsdflow.extract_fragments(AFFS, filter_fragments=float("nan")), UsageError, "filter_fragments"),
        (lambda: lsdflow.score_edges(AFFS[:2], CELLS), BadData, "(3 or more, z, y, x)"),
        (lambda: lsdflow.score_edges(AFFS, CELLS.astype(np.int64)), BadData, "fragments.astype(np.uint64)"),
        (lambda: lsdflow.score_edges(AFFS, CELLS[1:]), BadData, "(12, 14, 16)"),
        (lambda: lsdflow.score_edges(AFFS, CELLS, "hist_quant_76"), UsageError, "hist_quant_75"),
        (lambda: lsdflow.segment(CELLS.astype(np.int64), EDGES, 0.5), BadData, "fragments.astype(np.uint64)"),
        (lambda: lsdflow.segment(CELLS * np.uint64(0), EDGES, 0.5), BadData, "no fragments"),
        (lambda: lsdflow.segment(np.minimum(CELLS, np.uint64(2)), EDGES, 1.0), BadData, "not a node"),
        (lambda: lsdflow.segment(CELLS, EDGES, 1.5), UsageError, "0 to 1"),
        (lambda: lsdflow.segment(CELLS, EDGES, float("nan")), UsageError, "0 to 1"),
        (lambda: lsdflow.segment(CELLS, EDGES, []), UsageError, "0 to 1"),
        (lambda: lsdflow.segment(CELLS, EDGES, [[0.5]]), UsageError, "0 to 1"),
        (lambda: lsdflow.compare(CELLS, CELLS.astype(np.int64) - 9), BadData, "no labels: truth"),
        (lambda: lsdflow.compare(CELLS.astype(np.float32), CELLS), BadData, "no labels: segmentation"),
        (lambda: lsdflow.compare(CELLS, CELLS[1:]), BadData, "(11, 14, 16)"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_is_wanted(
    call: Callable[[], Any], error: type[StageError], said: str
) -> None:
    with pytest.raises(error) as caught:
        call()
    assert said in caught.value.message()


def test_mask_options_and_merge_function_are_those_of_the_stages() -> None:
    noisy = noisy_affinities_to(CELLS, ((-1, 0, 0), (0, -1, 0), (0, 0, -1)))
    fragments = lsdflow.extract_fragments(noisy, min_seed_distance_vox=3)
    masked = lsdflow.extract_fragments(noisy, (CELLS != 3).astype(np.uint8), min_seed_distance_vox=3)
    assert not masked[CELLS == 3].any()
    assert fragments[CELLS == 3].any()
    assert len(np.unique(lsdflow.extract_fragments(noisy))) < len(np.unique(fragments))
    assert len(np.unique(lsdflow.extract_fragments(noisy, fragments_in_xy=True))) > 12
    strong = lsdflow.extract_fragments(noisy, min_seed_distance_vox=3, filter_fragments=0.6)
    assert 0 < (strong > 0).sum() < (fragments > 0).sum()
    usual, mean = (lsdflow.score_edges(noisy, fragments, name).merge_score for name in ("hist_quant_75", "mean"))
    assert not np.array_equal(usual, mean)


def test_an_array_that_may_not_be_written_or_is_a_view_is_taken_and_left_alone() -> None:
    frozen = np.asfortranarray(AFFS)
    frozen.setflags(write=False)
    np.testing.assert_array_equal(lsdflow.extract_fragments(frozen), lsdflow.extract_fragments(AFFS))
    before = CELLS.copy()
    lsdflow.segment(CELLS, EDGES, 1.0)
    np.testing.assert_array_equal(CELLS, before)
