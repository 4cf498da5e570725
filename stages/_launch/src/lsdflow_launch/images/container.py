"""`lsdflow run --backend container`: runs each stage in its pinned image, after a check against the pin."""

from __future__ import annotations

import json
import logging
import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lsdflow_command.console import LOUDNESS_VARIABLE, NORMAL, loudness
from lsdflow_command.processes import LAUNCHER_VARIABLE, tied_to_this_process
from lsdflow_contract import CONTRACT_MAJOR, CONTRACT_VERSION
from lsdflow_contract.chain_link import CHAIN_VARIABLE
from lsdflow_contract.errors import ContractMismatch, MissingInput, StageError
from lsdflow_contract.experiment import GPU_STAGES, Experiment
from lsdflow_contract.manifest import DIGEST_VARIABLE
from lsdflow_launch.chain import stages_of
from lsdflow_launch.commands import Ask, ask_stage, run_command, stage_command
from lsdflow_launch.images.engines import (
    URI_FILE_VARIABLE,
    Call,
    Engine,
    Image,
    engine_named,
    key_fix,
    mounts_of,
    uri_file_of,
)
from lsdflow_launch.images.pins import Pin, pin_of_stage, read_pins
from lsdflow_launch.slurm.table import cluster_of

LOG = logging.getLogger("lsdflow.run")
# The exit code of docker and podman for their own failures.
ENGINE_FAILED = 125


@dataclass(frozen=True)
class ContainerOptions:
    """Options of `--backend container`: engine, folder of SIFs, network of the database; None = automatic."""

    engine: str | None = None
    sifs: Path | None = None
    network: str | None = None


class Containers:
    """Runs the stages of one experiment in containers; checks every image before its first use."""

    def __init__(
        self,
        experiment: Experiment,
        engine: str | None = None,
        sifs: Path | None = None,
        network: str | None = None,
        writable: Sequence[Path] = (),
    ) -> None:
        """`writable`: more folders that the stages read and write, such as those that the experiment links to."""
        self.experiment = experiment
        self.writable = tuple(writable)
        self.engine: Engine = engine_named(engine, sifs or sif_folder(experiment))
        self.network = network
        self._pins = read_pins(experiment.layout.images_env)
        self._images: dict[str, Image] = {}

    def check(self, stages: Sequence[str]) -> None:
        """Check the images of all stages, before the first one runs.

        Raises ConfigError (78) for a missing pin, MissingInput (66) for a missing image, ContractMismatch (76) for an
        image that does not match its pin.
        """
        for stage in stages:
            self.image(stage)

    def image(self, stage: str) -> Image:
        """Return the checked image of the stage."""
        if stage not in self._images:
            pin = pin_of_stage(self._pins, stage, self.experiment.layout.images_env)
            image = self.engine.find(stage, pin)
            require_image(stage, pin, image)
            LOG.info("%s: %s is %s", stage, pin.tagged, image.digest or image.reference)
            self._images[stage] = image
        return self._images[stage]

    def command(self, stage: str, arguments: Sequence[str]) -> list[str]:
        """Return the command line that runs a stage in its container; start it with `tied_to_this_process`."""
        environment = {DIGEST_VARIABLE: self.image(stage).digest}
        environment |= {LAUNCHER_VARIABLE: "1", CHAIN_VARIABLE: os.environ.get(CHAIN_VARIABLE, "")}
        if loudness() != NORMAL:
            environment[LOUDNESS_VARIABLE] = loudness()
        uri_file = uri_file_of(self.experiment)
        if uri_file is not None:
            environment[URI_FILE_VARIABLE] = str(uri_file)
        call = Call(
            name=f"lsdflow-{self.experiment.common.name}-{stage}-{os.getpid()}",
            arguments=arguments,
            mounts=mounts_of(self.experiment, self.writable),
            environment=environment,
            network=self._network(),
            gpu=stage in GPU_STAGES
            and self.experiment.compute.device != "cpu"
            and shutil.which("nvidia-smi") is not None,
        )
        return self.engine.command(stage, self.image(stage), call)

    def __call__(self, stage: str, arguments: Sequence[str]) -> int:
        """Log the command and run the stage. Returns the stage's exit code."""
        command = self.command(stage, arguments)
        LOG.info("$ %s", shlex.join(command))
        code = run_command(command)
        if code == ENGINE_FAILED:
            LOG.error("%s could not start the container of %s", command[0], stage)
        return code

    def ask(self, stage: str, arguments: Sequence[str]) -> Any:
        """Run a stage command that prints JSON; return the parsed answer. Raises StageError if it gives none."""
        command = self.command(stage, arguments)
        with tied_to_this_process() as stdin:
            done = subprocess.run(command, stdin=stdin, capture_output=True, text=True, check=False)
        try:
            return json.loads(done.stdout)
        except json.JSONDecodeError as error:
            raise StageError(f"{stage} gave no answer in its image", found=done.stderr.strip()[-2000:]) from error

    def _network(self) -> str:
        """Return the network: none, unless a mongo store is used, which may run on this host."""
        if self.experiment.store.engine != "mongo":
            return "none"
        return self.network or "host"


def require_image(stage: str, pin: Pin, image: Image) -> None:
    """Raise ContractMismatch (76) if stage, version, digest or contract of the image do not match the pin."""
    labels = image.labels
    contract = labels.get("lsdflow.contract", "")
    fits = contract.partition(".")[0] == CONTRACT_MAJOR
    checks = [
        ("stage", stage, labels.get("lsdflow.stage", "")),
        ("version", pin.version, labels.get("org.opencontainers.image.version", "")),
        ("contract", contract if fits else f"{CONTRACT_MAJOR}.x", contract),
    ]
    if pin.digest and pin.digest not in image.digests:
        checks.append(("digest", pin.digest, ", ".join(image.digests)))
    for what, wanted, found in checks:
        if wanted != found:
            raise ContractMismatch(
                f"the image of {stage} is not the pinned one: another {what}",
                where=f"{pin} ({image.reference})",
                wanted=f"{what} {wanted}",
                found=f"{what} {found}" if found else f"no {what} on the image",
                fix=key_fix(stage)
                + (f"; this launcher reads contract {CONTRACT_VERSION}" if what == "contract" else ""),
            )


def sif_folder(experiment: Experiment) -> Path | None:
    """Return the folder of SIFs that [cluster] names; None if it names none."""
    named = experiment.tables.get("cluster", {}).get("images")
    return experiment.resolve(named) if isinstance(named, str) and named else None


def choose_ask(experiment: Experiment) -> Ask:
    """Return a function that runs stage commands, in their SIFs where they are not installed (a login node)."""
    try:
        for stage in stages_of(experiment):
            stage_command(stage)
    except MissingInput:
        if shutil.which(cluster_of(experiment).singularity) is None:
            raise
        return Containers(experiment, "singularity").ask
    return ask_stage
