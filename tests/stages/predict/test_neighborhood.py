"""A network of more affinities than the three nearest: as many channels, and the array says which."""

from __future__ import annotations

import numpy as np
import pytest

from lsdflow_contract.arrays import AFFINITY_NEIGHBORHOOD
from lsdflow_contract.checkpoint import bundle_folder
from lsdflow_contract.errors import BadData
from lsdflow_contract.metadata import read_neighborhood
from lsdflow_network.inference import load_predictor
from lsdflow_predict.stage import Predict

FAR = (*AFFINITY_NEIGHBORHOOD, (-4, 0, 0), (0, -9, 9))


def attributes(experiment) -> dict:
    return dict(experiment.volume().array.attrs)


@pytest.mark.parametrize(("mode", "lsds"), [("affinities", {}), ("mtlsd", {"lsds": 10}), ("acrlsd", {})])
def test_every_affinity_of_the_network_is_predicted_and_its_offset_recorded(
    make_experiment, micro_bundle, mode, lsds
) -> None:
    experiment = make_experiment(mode)
    folder = bundle_folder(experiment.layout.checkpoints("train-acrlsd"), 7)
    sha256 = load_predictor(folder).bundle.lsd_bundle_sha256
    outputs = {"affs": 5, **lsds}
    micro_bundle(experiment.layout, mode, 7, lsd_sha256=sha256, outputs=outputs, neighborhood=FAR)
    affs = experiment.affinities()
    assert affs.shape == (5, *experiment.raw.shape)
    assert len({channel.tobytes() for channel in affs}) == 5
    assert read_neighborhood(attributes(experiment), 5, "uint8", "here") == FAR
    assert np.array_equal(experiment.affinities('predict.block_shape="8 vox"'), affs)
    assert Predict().verify(experiment.experiment('predict.block_shape="8 vox"'))["verified"]
    if mode != "affinities":
        experiment.run("predict.store_lsds=true")
        assert np.array_equal(experiment.values(), affs)
        assert experiment.values("lsds").shape[0] == 10


def test_the_three_nearest_are_stored_as_they_always_were(make_experiment, micro_bundle) -> None:
    experiment = make_experiment("affinities")
    micro_bundle(experiment.layout, "affinities", 7, neighborhood=AFFINITY_NEIGHBORHOOD)
    named = experiment.run()
    assert "neighborhood" not in attributes(experiment)
    micro_bundle(experiment.layout, "affinities", 7)
    assert experiment.run().key == named.key


@pytest.mark.parametrize(
    ("outputs", "neighborhood"),
    [({"affs": 5}, FAR[:4]), ({"affs": 4}, ()), ({"affs": 3}, FAR), ({"affs": 4}, FAR[1:]), ({"affs": 3}, FAR[2:])],
)
def test_a_bundle_whose_outputs_are_not_its_neighborhood_is_refused(
    make_experiment, micro_bundle, outputs, neighborhood
) -> None:
    experiment = make_experiment("affinities")
    micro_bundle(experiment.layout, "affinities", 7, outputs=outputs, neighborhood=neighborhood)
    with pytest.raises(BadData):
        experiment.run()
    assert not (experiment.layout.results / "predict").exists()
