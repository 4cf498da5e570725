"""The LSDs stored by predict, and the sigma of their network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lsdflow_contract.checkpoint import BUNDLE_JSON, Bundle, read_bundle
from lsdflow_contract.errors import ConfigError, MissingInput, StageError
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.geometry import Nm3
from lsdflow_contract.manifest import Manifest


def stored_lsds(experiment: Experiment, predict: Manifest) -> tuple[Path, str]:
    """Container and dataset of the LSDs. MissingInput (66) if they are not stored."""
    if "lsds" not in predict.outputs:
        raise MissingInput(
            "the predicted LSDs are not stored",
            where=experiment.layout.manifest("predict"),
            fix="set predict.store_lsds = true and predict again",
        )
    return predict.output_array(experiment.layout, "lsds")


def lsd_sigma_nm(experiment: Experiment, predict: Manifest, given: Nm3 | None, key: str) -> Nm3:
    """The sigma of the stored LSDs: the given one, or that of the network that predicted them, found by its weights.

    :param key: the name of the setting for sigma.
    :raises ConfigError: (78) sigma is not given, and the network does not exist.
    """
    if given is not None:
        return given
    for bundle in _bundles(experiment):
        if bundle.weights_sha256 in predict.inputs.values() and "lsds" in bundle.outputs and bundle.sigma_nm:
            return bundle.sigma_nm
    raise ConfigError(
        "the sigma of the predicted LSDs is not known: the network that made them is not in train/",
        where=key,
        fix=f'set it: {key} = "80 nm"',
    )


def _bundles(experiment: Experiment) -> Iterator[Bundle]:
    """All readable networks of the experiment."""
    given = [experiment.tables.get("predict", {}).get(name) for name in ("checkpoint", "lsd_checkpoint")]
    paths = [experiment.resolve(path) for path in given if isinstance(path, str)]
    for stage in ("train-lsd", "train-acrlsd"):
        paths += sorted(path.parent for path in experiment.layout.checkpoints(stage).glob(f"*/{BUNDLE_JSON}"))
    for path in paths:
        if (path / BUNDLE_JSON).is_file():
            try:
                yield read_bundle(path)
            except StageError:
                continue
