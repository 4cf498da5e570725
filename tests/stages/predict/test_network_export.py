"""The exported network: TorchScript that gives the bytes of the network itself, and says what it is."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from lsdflow_contract.errors import OutputConflict
from lsdflow_network.composition import AcrLsd
from lsdflow_network.inference import load_network, raw_to_network
from lsdflow_network.quantise import quantise_u8
from lsdflow_predict.checkpoints import Networks
from lsdflow_predict.cli import app
from lsdflow_predict.config import PredictConfig
from lsdflow_predict.network_export import DESCRIPTION, export_network
from lsdflow_predict.stage import inputs_of


@pytest.mark.proves("DDP-23")
@pytest.mark.parametrize(
    ("mode", "outputs"), [("acrlsd", {"affs": 3}), ("mtlsd", {"affs": 3, "lsds": 10}), ("affinities", {"affs": 3})]
)
def test_a_program_without_lsdflow_gets_the_grey_levels_of_predict(make_experiment, mode, outputs):
    experiment = make_experiment(mode).experiment()
    out = experiment.layout.root / "network.pt"
    result = CliRunner().invoke(app, ["export-network", "-e", str(experiment.path), "--out", str(out), "--json"])
    assert result.exit_code == 0, result.output
    extra = {DESCRIPTION: ""}
    network = torch.jit.load(out, _extra_files=extra)
    described = json.loads(extra[DESCRIPTION])
    assert described["outputs"] == outputs
    assert described == {k: v for k, v in json.loads(result.stdout).items() if k != "wrote"}
    raw = np.random.default_rng(5).integers(0, 256, described["input_shape_vox"]).astype(np.uint8)
    found = dict(zip(outputs, network(torch.from_numpy(raw)), strict=True))
    wanted = predicted(inputs_of(experiment, PredictConfig()).networks, raw)
    for name, channels in outputs.items():
        assert tuple(found[name].shape) == (channels, *described["output_shape_vox"])
        assert np.array_equal(found[name].numpy(), wanted[name])


def predicted(chosen: Networks, raw: np.ndarray) -> dict[str, np.ndarray]:
    """Grey levels of the networks as they are, one after the other."""
    bundle, network = load_network(chosen.affinities.folder)
    if chosen.lsds is not None:
        lsd_bundle, lsd_network = load_network(chosen.lsds.folder)
        network = AcrLsd(lsd_network, lsd_bundle.unet, network, bundle.unet)
    with torch.inference_mode():
        outputs = network(torch.from_numpy(raw_to_network(raw))[None, None])
    return {name: quantise_u8(outputs[name][0]).numpy() for name in bundle.outputs}


def test_an_existing_file_is_never_overwritten(make_experiment):
    experiment = make_experiment("mtlsd").experiment()
    out = experiment.layout.root / "network.pt"
    out.write_text("mine")
    with pytest.raises(OutputConflict, match="already"):
        export_network(inputs_of(experiment, PredictConfig()).networks, out)
    assert out.read_text() == "mine"
