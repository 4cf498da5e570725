"""backend = "tensorflow" where TensorFlow is not installed: reported before anything is read or written."""

from __future__ import annotations

import importlib.util

import pytest

pytest.importorskip("gunpowder", reason="the training environment has gunpowder")

from lsdflow_contract.errors import ConfigError
from lsdflow_training.checks import tensorflow_problems
from lsdflow_training.run import run_training, tensorflow_backend


def test_this_environment_has_no_tensorflow_and_says_so(prepared, tmp_path) -> None:
    assert importlib.util.find_spec("tensorflow") is None
    (problem,) = tensorflow_problems("tensorflow")
    assert "no tensorflow" in problem.what
    assert "setup-tensorflow" in problem.fix
    assert problem.exit_code == 78
    with pytest.raises(ConfigError, match="no tensorflow"):
        tensorflow_backend()
    training = prepared("affinities", backend="tensorflow")
    with pytest.raises(ConfigError, match="no tensorflow"):
        run_training(training)
    assert not training.folder.exists()


@pytest.mark.parametrize(("revision", "way"), [("", "make setup-tensorflow"), ("c0ffee", "BACKEND=tensorflow")])
def test_the_way_to_tensorflow_is_an_environment_in_a_clone_and_a_variant_of_the_image_in_an_image(
    revision: str, way: str, monkeypatch
) -> None:
    """Images pass their revision to the programs in them."""
    monkeypatch.setenv("LSDFLOW_REVISION", revision)
    (problem,) = tensorflow_problems("tensorflow")
    ways = {"make setup-tensorflow", "BACKEND=tensorflow"}
    assert [w for w in ways if w in problem.fix] == [way]


def test_torch_is_always_there() -> None:
    assert tensorflow_problems("torch") == []


def test_the_backend_is_not_part_of_what_a_training_is(prepared) -> None:
    """Either backend resumes from the other's checkpoints."""
    assert prepared("affinities", backend="tensorflow").key == prepared("affinities").key
