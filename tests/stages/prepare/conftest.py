"""A tiny pair of raw and labels, and a way to run the stage on a table."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_contract.testing import membrane_raw, voronoi_labels

SHAPE = (70, 66, 68)
Table = dict[str, Any]


def toml_of(value: Any) -> str:
    """A value as TOML: tables inline."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml_of(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml_of, value)) + "]"
    return json.dumps(value)


@pytest.fixture(scope="session")
def ids() -> np.ndarray:
    """Eight neurons with ids above 2^53."""
    return voronoi_labels(SHAPE, 8).astype(np.uint64) + np.uint64(2**53)


@pytest.fixture(scope="session")
def raw(ids: np.ndarray) -> np.ndarray:
    """Grey membranes of them, never 0."""
    return np.maximum(membrane_raw(ids), 1)


@pytest.fixture
def put(tmp_path: Path) -> Callable[..., Path]:
    """Write an array of a zarr container of format 2."""

    def write(dataset: str, data: np.ndarray, name: str = "a.zarr", **attributes: Any) -> Path:
        attributes = {"resolution": [8, 8, 8], "offset": [80, 0, 0]} | attributes
        given = {key: value for key, value in attributes.items() if value is not None}
        zarr.create_array(
            tmp_path / name / dataset, data=data, chunks=(32, 32, 32), zarr_format=2, attributes=given, overwrite=True
        )
        return tmp_path / name

    return write


@pytest.fixture
def container(put: Callable[..., Path], raw: np.ndarray, ids: np.ndarray) -> Path:
    """raw and neuron_ids, 8 nm, offset 80, 0, 0 nm, no mask."""
    put("volumes/raw", raw)
    return put("volumes/labels/neuron_ids", ids)


@pytest.fixture
def experiment(tmp_path: Path) -> Callable[..., Experiment]:
    """An experiment with one training volume (`**table` over raw = a.zarr), or with the tables given."""

    def make(prepare: Table | None = None, **table: Any) -> Experiment:
        folder = tmp_path / "exp"
        folder.mkdir(exist_ok=True)
        prepare = prepare or {"training": [{"name": "a", "raw": "../a.zarr"} | table]}
        (folder / "experiment.toml").write_text(f"prepare = {toml_of(prepare)}\n")
        return load_experiment(folder)

    return make
