"""Check that an LSD bundle matches the affinity network that will be trained on its output."""

from __future__ import annotations

import math

from lsdflow_contract.checkpoint import Bundle
from lsdflow_contract.errors import ContractMismatch
from lsdflow_contract.geometry import Nm3
from lsdflow_training.settings import Targets

_SETTINGS = "experiment.toml: train-lsd and train-acrlsd, sigma or volumes"


def check_lsd_bundle(bundle: Bundle, targets: Targets) -> None:
    """Raise ContractMismatch unless the bundle's kind, channels, voxel size and sigma match those of this training."""
    found = {
        "kind": (bundle.kind, "lsd"),
        "channels": (str(bundle.outputs), str({"lsds": 10})),
        "voxel size": (_text(bundle.voxel_size_nm), _text(targets.voxel_size_nm)),
        "sigma": (_text(bundle.sigma_nm), _text(targets.sigma_nm)),
    }
    same_lengths = _close(bundle.voxel_size_nm, targets.voxel_size_nm) and _close(bundle.sigma_nm, targets.sigma_nm)
    wrong = {name: pair for name, pair in found.items() if pair[0] != pair[1]}
    if not wrong or (same_lengths and not {"kind", "channels"} & wrong.keys()):
        return
    raise ContractMismatch(
        "the LSD network does not fit this training",
        where=_SETTINGS if bundle.is_planned else f"LSD bundle of iteration {bundle.iteration}",
        wanted="; ".join(f"{name} {pair[1]}" for name, pair in wrong.items()),
        found="; ".join(f"{name} {pair[0]}" for name, pair in wrong.items()),
        fix="give train-lsd and train-acrlsd the same sigma and volumes of the same voxel size",
    )


def _close(a: Nm3 | None, b: Nm3) -> bool:
    return a is not None and all(math.isclose(x, y, rel_tol=1e-6) for x, y in zip(a, b, strict=True))


def _text(values: Nm3 | None) -> str:
    return "none" if values is None else f"{', '.join(f'{v:g}' for v in values)} nm"
