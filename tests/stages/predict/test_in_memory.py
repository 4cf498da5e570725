"""`lsdflow.predict_affinities`: in memory, every kind of network gives the affinities that the stage stores."""

from __future__ import annotations

import numpy as np
import pytest

import lsdflow
from lsdflow_contract.checkpoint import bundle_folder
from lsdflow_contract.errors import ContractMismatch, StageError, UsageError


def _folders(experiment):
    layout = experiment.layout
    return bundle_folder(layout.checkpoints("train-acrlsd"), 7), bundle_folder(layout.checkpoints("train-lsd"), 3)


@pytest.mark.parametrize(
    ("mode", "shape"),
    [("acrlsd", (19, 22, 27)), ("acrlsd", (1, 9, 9)), ("mtlsd", (5, 6, 30)), ("affinities", (9, 9, 9))],
)
def test_it_gives_the_bits_of_the_stage(make_experiment, mode, shape):
    experiment = make_experiment(mode, shape)
    folder, lsd_folder = _folders(experiment)
    lsds = {"lsd_folder": str(lsd_folder)} if mode == "acrlsd" else {}
    found = lsdflow.predict_affinities(experiment.raw, folder, device="cpu", **lsds)
    assert found.std() > 3
    np.testing.assert_array_equal(found, experiment.affinities())


@pytest.mark.parametrize(
    ("mode", "names_lsds", "error"),
    [("acrlsd", False, UsageError), ("mtlsd", True, UsageError), ("lsd", False, ContractMismatch)],
)
def test_a_network_that_does_not_give_affinities_alone_is_refused(make_experiment, mode, names_lsds, error):
    experiment = make_experiment("acrlsd" if mode == "lsd" else mode)
    folder, lsd_folder = _folders(experiment)
    with pytest.raises(error) as caught:
        lsdflow.predict_affinities(
            experiment.raw, lsd_folder if mode == "lsd" else folder, lsd_folder=folder if names_lsds else None
        )
    assert isinstance(caught.value, StageError)
    assert str(lsd_folder if mode == "lsd" else folder) in caught.value.where
