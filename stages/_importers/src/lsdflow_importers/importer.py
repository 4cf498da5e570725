"""Import a checkpoint that another program trained: write its bundle, best.json and manifest, as if trained here.

1. Read and check everything before anything is written: the network, its JSON files, the LSD bundle (acrlsd).
2. Write the bundle, then best.json, then the manifest, whose inputs hold the sha256 of the checkpoint's files.

The JSON files beside a published checkpoint are config.json or test_net.json (prediction), and train_net.json:

    {"input_shape": [268, 268, 268], "output_shape": [164, 164, 164], "lsds_iteration": 300000, ...}

They do not contain voxel size and sigma; `voxel_size` and `sigma` (nm) are read if a lab has added them.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, PositiveFloat, PositiveInt, ValidationError

from lsdflow_command.experiment_lock import stage_lock
from lsdflow_contract.arrays import AFFINITY_NEIGHBORHOOD, is_neighborhood
from lsdflow_contract.checkpoint import (
    DESCRIPTION_HASH,
    BestCheckpoint,
    Bundle,
    Kind,
    UNetSpec,
    bundle_folder,
    hash_of_description,
    read_best,
    read_bundle,
    write_best,
)
from lsdflow_contract.errors import BadData, ContractMismatch, MissingInput, UsageError
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.files import read_json
from lsdflow_contract.geometry import Lengths, Nm3, Vox3
from lsdflow_contract.hashing import hash_of
from lsdflow_contract.manifest import Manifest, Writer, work_key
from lsdflow_contract.trainings import make_current, training_outputs
from lsdflow_importers.checkpoints import ExternalCheckpoint, read_external
from lsdflow_network import shapes
from lsdflow_network.bundle import save_bundle
from lsdflow_training.profiles import PROFILES
from lsdflow_training.stage import IMPORTED_CHECKPOINT

LOG = logging.getLogger("lsdflow.training")
_Shape = tuple[PositiveInt, PositiveInt, PositiveInt]
_Lengths = tuple[PositiveFloat, PositiveFloat, PositiveFloat]
_PREDICTION, _TRAINING = ("config.json", "test_net.json"), "train_net.json"


class _Description(BaseModel):
    """What lsdflow reads from such a file; lengths in nm, shapes in voxels z,y,x."""

    input_shape: _Shape | None = None
    output_shape: _Shape | None = None
    voxel_size: PositiveFloat | _Lengths | None = None
    sigma: PositiveFloat | _Lengths | None = None
    lsds_iteration: int | None = None


@dataclass(frozen=True)
class NetJson:
    """Facts from the files; None if absent. Shapes in voxels z,y,x."""

    predict_input_vox: Vox3 | None = None
    train_input_vox: Vox3 | None = None
    voxel_size_nm: Nm3 | None = None
    sigma_nm: Nm3 | None = None
    lsd_iteration: int | None = None


def read_net_json(folder: Path, chosen: Path | None, unet: UNetSpec) -> NetJson:
    """Read `chosen`, or the first of config.json and test_net.json in `folder`; and train_net.json in `folder`.

    Raises MissingInput if `chosen` is absent, BadData if a file is invalid or describes another network than `unet`.
    """
    if chosen is not None and not chosen.is_file():
        raise MissingInput("there is no such file", where=chosen, fix="correct --config")
    path = chosen or next((folder / name for name in _PREDICTION if (folder / name).is_file()), None)
    prediction, training = _described(path), _described(folder / _TRAINING)
    return NetJson(
        predict_input_vox=_input_shape(prediction, unet, path),
        train_input_vox=_input_shape(training, unet, folder / _TRAINING),
        voxel_size_nm=_three(prediction.voxel_size),
        sigma_nm=_three(prediction.sigma),
        lsd_iteration=prediction.lsds_iteration,
    )


def _described(path: Path | None) -> _Description:
    if path is None or not path.is_file():
        return _Description()
    try:
        return _Description.model_validate(read_json(path))
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise BadData("not a description of a network", where=path, found=wrong) from error


def _three(length: float | Nm3 | None) -> Nm3 | None:
    """A single number counts for all axes."""
    return (length, length, length) if isinstance(length, float) else length


def _input_shape(described: _Description, unet: UNetSpec, path: Path | None) -> Vox3 | None:
    """The input shape in the file. Raises BadData if the network does not give the output shape in the file.

    Later versions of the lineage crop more: an output that is smaller by an even number of voxels is also accepted.
    """
    wanted, output = described.input_shape, described.output_shape
    if wanted is None:
        return None
    computed = shapes.output_shape_vox(unet, wanted) if shapes.is_valid_input(unet, wanted) else None
    if computed is None or not _is_part(output, computed):
        raise BadData(
            "the file describes another network than the checkpoint holds",
            where=path,
            wanted=f"input {list(wanted)} -> output {list(computed)}"
            if computed
            else "an input shape that the network takes",
            found=f"input {list(wanted)} -> output {output and list(output)}",
            fix="give the file of this network: --config FILE",
        )
    return wanted


def _is_part(output: Vox3 | None, computed: Vox3) -> bool:
    """True if the output is our shape, our shape cropped evenly, or not given."""
    return output is None or all(o >= t and (o - t) % 2 == 0 for o, t in zip(computed, output, strict=True))


@dataclass(frozen=True)
class ImportOptions:
    """Facts that are not in the checkpoint, from the command line."""

    path: Path
    kind: Kind | None = None
    config: Path | None = None
    voxel_size: Lengths | None = None
    sigma: Lengths | None = None
    factors: tuple[Vox3, ...] | None = None
    neighborhood: tuple[Vox3, ...] = AFFINITY_NEIGHBORHOOD
    iteration: int | None = None
    lsd_checkpoint: str = "best"


def import_checkpoint(experiment: Experiment, stage: str, options: ImportOptions) -> dict[str, Any]:
    """Import a checkpoint as the current training of `stage`; returns the imported facts. Other trainings stay.

    Raises MissingInput (66), BadData (65), UsageError (2: an option is needed), ContractMismatch (76: the experiment
    needs another kind of network). In these cases nothing is written.
    """
    wanted = _wanted_kind(experiment, stage, options)
    read = read_external(options.path, options.factors)
    _require_kind(read, wanted)
    net_json = read_net_json(read.path.parent, options.config, read.network.unet)
    lsd = _lsd_bundle(experiment, options.lsd_checkpoint, net_json) if wanted == "acrlsd" else None
    bundle = _bundle(experiment, stage, read, options, net_json, lsd)
    with stage_lock(experiment.layout, stage):
        return _write(experiment, stage, bundle, read)


def _wanted_kind(experiment: Experiment, stage: str, options: ImportOptions) -> Kind:
    """The kind of network that later stages expect from this stage."""
    mode = experiment.common.mode
    if stage == "train-lsd" and mode != "acrlsd":
        raise UsageError(
            f"mode {mode} has no separate LSD network", where=experiment.path, fix="train-acrlsd import-checkpoint"
        )
    wanted: Kind = "lsd" if stage == "train-lsd" else mode
    if options.kind not in (None, wanted):
        raise ContractMismatch(
            "this experiment needs another kind of network here",
            where=f"{experiment.path}: mode {mode}, {stage}",
            wanted=wanted,
            found=f"--kind {options.kind}",
            fix="lsd goes to train-lsd, others to train-acrlsd; or correct experiment.mode",
        )
    return wanted


def _require_kind(read: ExternalCheckpoint, wanted: Kind) -> None:
    found = read.network
    if found.kind != wanted:
        raise ContractMismatch(
            "the checkpoint holds another kind of network",
            where=read.path,
            wanted=wanted,
            found=f"{found.kind}: {found.unet.in_channels} channels in, gives {found.outputs}",
            fix="lsd goes to train-lsd, others to train-acrlsd in an experiment of their mode (experiment.mode)",
        )


def _lsd_bundle(experiment: Experiment, wanted: str, net_json: NetJson) -> Bundle:
    layout = experiment.layout
    if wanted != "best" and not wanted.isdigit():
        raise UsageError(
            "no such LSD checkpoint", where="--lsd-checkpoint", wanted="best or an iteration", found=wanted
        )
    try:
        iteration = read_best(layout.best_checkpoint("train-lsd")).iteration if wanted == "best" else int(wanted)
        bundle = read_bundle(bundle_folder(layout.checkpoints("train-lsd"), iteration))
    except MissingInput as error:
        error.fix = "import the LSD network that it was trained with first: train-lsd import-checkpoint"
        raise
    if net_json.lsd_iteration is not None and bundle.iteration != net_json.lsd_iteration:
        raise ContractMismatch(
            "the affinity network was trained with the LSD network of another iteration",
            where=layout.train_dir("train-lsd"),
            wanted=f"iteration {net_json.lsd_iteration} (lsds_iteration beside the checkpoint)",
            found=f"iteration {bundle.iteration}",
            fix="import that LSD checkpoint, or name it: --lsd-checkpoint",
        )
    return bundle


def _bundle(
    experiment: Experiment,
    stage: str,
    read: ExternalCheckpoint,
    options: ImportOptions,
    net_json: NetJson,
    lsd: Bundle | None,
) -> Bundle:
    network, profile = read.network, PROFILES[experiment.common.profile]
    usual = (
        net_json.train_input_vox or shapes.nearest_valid_input_shapes(network.unet, profile.input_shape_vox)[1],
        net_json.predict_input_vox
        or shapes.nearest_valid_input_shapes(network.unet, profile.predict_input_shape_vox)[1],
    )
    voxel_size = _voxel_size(options, net_json, lsd)
    bundle = Bundle(
        writer=Writer.of(stage),
        kind=network.kind,
        iteration=_iteration(read, options),
        unet=network.unet,
        outputs=network.outputs,
        neighborhood=_neighborhood(network.outputs, options),
        train_input_shape_vox=usual[0],
        train_output_shape_vox=shapes.output_shape_vox(network.unet, usual[0]),
        predict_input_shape_vox=usual[1],
        predict_output_shape_vox=shapes.output_shape_vox(network.unet, usual[1]),
        voxel_size_nm=voxel_size,
        sigma_nm=_sigma(network.kind, options, net_json, lsd, voxel_size),
        lsd_bundle_sha256=None if lsd is None else lsd.weights_sha256,
    )
    return bundle.model_copy(update={"training_key": work_key(stage, _parameters(bundle), _inputs(bundle, read))})


def _parameters(bundle: Bundle) -> dict[str, Any]:
    described: dict[str, Any] = json.loads(bundle.model_dump_json(exclude={"writer", "training_key", "contract"}))
    return described


def _inputs(bundle: Bundle, read: ExternalCheckpoint) -> dict[str, str]:
    inputs = {IMPORTED_CHECKPOINT: read.sha256}
    return inputs if bundle.lsd_bundle_sha256 is None else {**inputs, "lsd_weights": bundle.lsd_bundle_sha256}


def _iteration(read: ExternalCheckpoint, options: ImportOptions) -> int:
    found = read.iteration if options.iteration is None else options.iteration
    if found is None:
        raise UsageError(
            "the name of the checkpoint contains no iteration",
            where=read.path,
            wanted="..._<iteration>, or --iteration",
        )
    return found


def _neighborhood(outputs: dict[str, int], options: ImportOptions) -> tuple[Vox3, ...]:
    affinities, offsets = outputs.get("affs"), options.neighborhood
    if affinities is None:
        return ()
    if affinities != len(offsets) or not is_neighborhood(offsets):
        raise UsageError(
            "the offsets of the affinities are not in the checkpoint",
            where="--neighborhood",
            wanted=f'{affinities} offsets z,y,x, the nearest three first: "-1,0,0; 0,-1,0; 0,0,-1; ..."',
            found=f"{len(offsets)}: {[list(offset) for offset in offsets]}",
        )
    return offsets


def _voxel_size(options: ImportOptions, net_json: NetJson, lsd: Bundle | None) -> Nm3:
    """The voxel size from the command line; else from the JSON files; else that of the LSD network before it."""
    if options.voxel_size is not None:
        if options.voxel_size.unit == "vox":
            raise UsageError("a voxel size needs a length", where="--voxel-size", wanted='"8 nm" or "40, 4, 4 nm"')
        size = options.voxel_size.to_nm((1.0, 1.0, 1.0))
    elif net_json.voxel_size_nm is not None or lsd is not None:
        size = net_json.voxel_size_nm or lsd.voxel_size_nm  # type: ignore[union-attr]
    else:
        raise UsageError(
            "the voxel size that the network was trained at is not in the checkpoint",
            where=options.path,
            wanted='--voxel-size "8 nm" (or "40, 4, 4 nm": z, y, x)',
        )
    if min(size) <= 0:
        raise UsageError("a voxel size is larger than 0", where="--voxel-size", found=size)
    if lsd is not None and any(abs(a - b) > 1e-6 * b for a, b in zip(size, lsd.voxel_size_nm, strict=True)):
        raise ContractMismatch(
            "the LSD network has another voxel size", where="train-lsd", wanted=size, found=lsd.voxel_size_nm
        )
    return size


def _sigma(kind: Kind, options: ImportOptions, net_json: NetJson, lsd: Bundle | None, voxel_size_nm: Nm3) -> Nm3 | None:
    if kind == "affinities":
        return None
    given = None if options.sigma is None else options.sigma.to_nm(voxel_size_nm)
    found = given or (lsd.sigma_nm if lsd is not None else net_json.sigma_nm)
    if found is None or min(found) <= 0:
        raise UsageError(
            "the sigma of the LSDs that the network learnt is not in the checkpoint",
            where=options.path,
            wanted='--sigma "80 nm" (FIB-25, hemibrain, CREMI: 80 nm; zebra finch: 120 nm)',
        )
    if lsd is not None and found != lsd.sigma_nm:
        raise ContractMismatch("the LSD network has another sigma", where="--sigma", wanted=lsd.sigma_nm, found=found)
    return found


def _write(experiment: Experiment, stage: str, bundle: Bundle, read: ExternalCheckpoint) -> dict[str, Any]:
    layout = experiment.layout
    make_current(layout, stage, bundle.training_key)
    described = f"{hash_of_description(json.loads(bundle.model_dump_json()))}\n".encode()
    written = save_bundle(layout.checkpoints(stage), bundle, read.network.weights, {DESCRIPTION_HASH: described})
    write_best(
        layout.best_checkpoint(stage),
        BestCheckpoint(iteration=written.iteration, weights_sha256=written.weights_sha256),
    )
    facts = {
        "iteration": written.iteration,
        "best_iteration": written.iteration,
        "kind": written.kind,
        "from": str(read.path),
    }
    identity = hash_of({"key": written.training_key, "weights": written.weights_sha256})
    Manifest(
        writer=written.writer,
        key=written.training_key,
        config=_parameters(written),
        inputs=_inputs(written, read),
        outputs=training_outputs(layout, stage, written.training_key),
        facts=facts,
        identity=identity,
    ).write(layout)
    LOG.info("%s: imported %s", stage, facts)
    return {**facts, "unet": written.unet.model_dump(mode="json"), "outputs": written.outputs, "identity": identity}
