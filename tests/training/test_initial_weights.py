"""A training that begins with the weights of another network: same network, same weights, a key of its own."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

gp = pytest.importorskip("gunpowder")
torch = pytest.importorskip("torch")

from lsdflow_contract.checkpoint import bundle_folder, read_best  # noqa: E402
from lsdflow_contract.errors import BadData, ContractMismatch, MissingInput, OutputConflict  # noqa: E402
from lsdflow_network.bundle import load_bundle, tensors_equal  # noqa: E402
from lsdflow_training.build import new_network  # noqa: E402
from lsdflow_training.run import Training  # noqa: E402
from lsdflow_training.trainer import train  # noqa: E402


@pytest.fixture
def trained(prepared, tmp_path: Path) -> Path:
    """train/<stage> of a finished micro training."""
    folder = tmp_path / "before"
    first = prepared("affinities")
    train(first.settings, first.sources, folder, first.key, None)
    return folder


def weights_at_begin(training: Training) -> dict[str, torch.Tensor]:
    torch.manual_seed(training.settings.seed)
    return new_network(training.settings).state_dict()


def best_of(folder: Path) -> Path:
    return bundle_folder(folder / "checkpoints", read_best(folder / "best.json").iteration)


@pytest.mark.parametrize("named", ["the folder of the stage", "the folder of the checkpoint"])
def test_the_network_begins_as_the_bundle_is_and_continues_learning(
    prepared, trained: Path, tmp_path, named: str
) -> None:
    place = trained if named == "the folder of the stage" else best_of(trained)
    training = prepared("affinities", initial_weights=str(place))
    _, wanted = load_bundle(best_of(trained))
    assert tensors_equal(weights_at_begin(training), wanted)
    after = tmp_path / "after"
    train(training.settings, training.sources, after, training.key, None)
    assert not tensors_equal(load_bundle(best_of(after))[1], wanted)


def test_weights_are_part_of_the_key_only_if_asked_for(prepared, trained: Path) -> None:
    drawn, begun = prepared("affinities"), prepared("affinities", initial_weights=str(trained))
    assert drawn.key != begun.key
    assert prepared("affinities", initial_weights=str(best_of(trained))).key == begun.key, "its path does not count"


def test_another_network_is_refused_with_what_differs(prepared, trained: Path) -> None:
    with pytest.raises(ContractMismatch) as caught:
        prepared("affinities", initial_weights=str(trained), num_fmaps=3)
    assert "num_fmaps 3" in str(caught.value.wanted)
    assert "num_fmaps 2" in str(caught.value.found)
    with pytest.raises(ContractMismatch) as other:
        prepared("lsd", initial_weights=str(trained))
    assert "lsds" in str(other.value.wanted)


def test_a_folder_without_weights_is_refused(prepared, tmp_path: Path) -> None:
    with pytest.raises(MissingInput, match="no weights to begin with"):
        prepared("affinities", initial_weights=str(tmp_path))


def test_weights_that_change_or_are_damaged_after_they_were_found_are_refused(prepared, trained: Path) -> None:
    training = prepared("affinities", initial_weights=str(trained))
    folder = best_of(trained)
    content = (folder / "weights.safetensors").read_bytes()
    (folder / "weights.safetensors").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(BadData):
        new_network(training.settings)
    (folder / "weights.safetensors").write_bytes(content)
    described = json.loads((folder / "bundle.json").read_text())
    settings = training.settings
    assert settings.initial is not None
    assert described["weights_sha256"] == settings.initial.sha256
    changed = bytearray(content)
    changed[-4:] = bytes(4)
    (folder / "weights.safetensors").write_bytes(changed)
    (folder / "bundle.json").write_text(
        json.dumps({**described, "weights_sha256": hashlib.sha256(changed).hexdigest()})
    )
    with pytest.raises(OutputConflict):
        new_network(settings)
