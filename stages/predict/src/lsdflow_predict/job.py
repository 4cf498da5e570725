"""What is to be predicted: the target, the networks, and how the one is cut up for the others. Reads, never writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lsdflow_contract.arrays import RAW
from lsdflow_contract.checkpoint import Bundle
from lsdflow_contract.errors import BadData, ConfigError, MissingInput
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.geometry import Box, region_box
from lsdflow_contract.manifest import read_manifest
from lsdflow_predict.checkpoints import Networks, choose_networks
from lsdflow_predict.config import PredictConfig
from lsdflow_predict.scheme import Scheme, largest_shapes, plan_affinities, plan_lsds
from lsdflow_predict.unet_shapes import UNetShapes
from lsdflow_runtime.io.volumes import Volume, open_volume

STAGE = "predict"


@dataclass(frozen=True)
class Job:
    """Everything `run`, `plan` and a worker must agree on, worked out from the experiment."""

    experiment: Experiment
    config: PredictConfig
    raw: Volume
    target_identity: str
    networks: Networks
    scheme: Scheme

    @property
    def stores_lsds_first(self) -> bool:
        """True for two passes."""
        return self.scheme.lsds is not None and self.config.passes == "two"

    @property
    def outputs(self) -> dict[str, int]:
        """Names and channels of the arrays that the affinity pass writes."""
        affs = {"affs": self.networks.affinities.bundle.outputs["affs"]}
        return {**affs, "lsds": 10} if self.config.store_lsds and not self.stores_lsds_first else affs

    @property
    def setup(self) -> str:
        """Folder of the predictions: as configured, else the mode's name."""
        return self.config.setup or self.experiment.common.mode

    def inputs(self) -> dict[str, str]:
        """Identities of what the result depends on."""
        return {"prepare": self.target_identity, **self.networks.weights}

    def resolved(self) -> dict[str, Any]:
        """The config with what was worked out from it, for the manifest."""
        bundle = self.networks.affinities.bundle
        return {
            **self.config.model_dump(mode="json"),
            "resolved": {
                "setup": self.setup,
                "iteration": bundle.iteration,
                "accepted": list(self.networks.accepted),
                "scheme": self.scheme.as_dict(),
            },
        }


def gather(experiment: Experiment) -> Job:
    """Open the target and read the bundles' descriptions (no weights); StageError for everything that does not fit."""
    config = experiment.table(STAGE, PredictConfig)
    raw = open_raw(experiment)
    networks = choose_networks(experiment, config, raw.geometry.voxel_size_nm)
    region = region_box(config.roi, raw.geometry.voxel_size_nm, raw.box, "predict.roi")
    check_options(experiment, config)
    identity = read_manifest(experiment.layout, "prepare").identity
    return Job(experiment, config, raw, identity, networks, cut_up(config, networks, region, raw))


def cut_up(config: PredictConfig, networks: Networks, region: Box, raw: Volume) -> Scheme:
    """Tiles and blocks for both networks."""
    one_pass = networks.lsds is not None and config.passes == "one"

    def largest(bundle: Bundle) -> Any:
        return largest_shapes(config, bundle.predict_output_shape_vox, raw.geometry.voxel_size_nm, one_pass)

    bundle = networks.affinities.bundle
    affinities = plan_affinities(UNetShapes(bundle.unet), region, *largest(bundle))
    if networks.lsds is None:
        return Scheme(affinities, None)
    lsd_bundle = networks.lsds.bundle
    return Scheme(affinities, plan_lsds(UNetShapes(lsd_bundle.unet), affinities, *largest(lsd_bundle)))


def open_raw(experiment: Experiment) -> Volume:
    """The target's raw. MissingInput / BadData if it is absent or not u8 (z, y, x)."""
    raw = open_volume(experiment.layout.target_volume, RAW.dataset)
    if raw.dtype != RAW.dtype or raw.channels:
        raise BadData(
            "raw has another type", where=raw.where, wanted="uint8 (z, y, x)", found=f"{raw.dtype}, {raw.array.shape}"
        )
    return raw


def open_mask(experiment: Experiment, config: PredictConfig, raw: Volume) -> Volume | None:
    """The mask, on the grid of raw; None if none is configured."""
    if config.mask is None:
        return None
    try:
        mask = open_volume(experiment.layout.target_volume, config.mask, raw.geometry)
    except MissingInput as error:
        error.fix = f"correct predict.mask; {error.fix}"
        raise
    if mask.dtype.kind not in "ub" or mask.channels:
        raise BadData(
            "the mask has another type", where=mask.where, wanted="unsigned integers (z, y, x)", found=mask.dtype
        )
    return mask


def check_options(experiment: Experiment, config: PredictConfig) -> None:
    """ConfigError for options that contradict one another or the mode."""
    mode = experiment.common.mode
    if mode == "affinities" and config.store_lsds:
        raise ConfigError("this network gives no LSDs", where="predict.store_lsds", found=f"mode {mode}")
    if mode != "acrlsd" and config.passes == "two":
        raise ConfigError(
            "two passes need an LSD network before the affinity network", where="predict.passes", found=f"mode {mode}"
        )
