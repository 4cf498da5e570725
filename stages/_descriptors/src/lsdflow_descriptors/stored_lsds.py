"""The LSDs stored by predict, and the sigma of their network."""

from __future__ import annotations

from pathlib import Path

from lsdflow_contract.errors import ConfigError, MissingInput
from lsdflow_contract.geometry import Nm3
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import Manifest


def stored_lsds(layout: ExperimentLayout, predict: Manifest) -> tuple[Path, str]:
    """Container and dataset of the LSDs. MissingInput (66) if they are not stored."""
    if "lsds" not in predict.outputs:
        raise MissingInput(
            "the predicted LSDs are not stored",
            where=layout.manifest("predict"),
            fix="set predict.store_lsds = true and predict again",
        )
    return predict.output_array(layout, "lsds")


def lsd_sigma_nm(predict: Manifest, given: Nm3 | None, key: str) -> Nm3:
    """The sigma of the stored LSDs: the given one, or that of the network that predicted them, from predict's manifest.

    :param key: the name of the setting for sigma.
    :raises ConfigError: (78) sigma is not given, and the manifest does not name it.
    """
    if given is not None:
        return given
    sigma = predict.config.get("resolved", {}).get("lsd_sigma_nm")
    if sigma is None:
        raise ConfigError(
            "the sigma of the predicted LSDs is not known: the manifest of predict does not name it",
            where=key,
            fix=f'set it: {key} = "80 nm"',
        )
    z, y, x = (float(length) for length in sigma)
    return z, y, x
