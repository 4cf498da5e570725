"""`lsdflow pull`: the pinned images of an experiment from their registry, for docker, podman or, as SIFs, Apptainer."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import typer

from lsdflow_command.app import exit_codes
from lsdflow_contract.errors import ConfigError, MissingInput
from lsdflow_contract.experiment import STAGES, Experiment, load_experiment
from lsdflow_launch.chain import stages_of
from lsdflow_launch.images.container import require_image, sif_folder
from lsdflow_launch.images.engines import Engine, engine_named
from lsdflow_launch.images.pins import Pin, pin_of_stage, read_pins
from lsdflow_launch.options import Debug, First, Folder, Images, Json, Last, Set
from lsdflow_launch.options import Engine as EngineName
from lsdflow_launch.output import next_line, print_answer, stdout_for_json

LOG = logging.getLogger("lsdflow.run")
FOUND, PULLED = "is here", "pulled"


def add_pull_verb(app: typer.Typer) -> None:
    """Add `pull`."""

    @app.command()
    def pull(
        folder: Folder,
        first: First = STAGES[0],
        last: Last = STAGES[-1],
        engine: EngineName = None,
        images: Images = None,
        override: Set = None,
        as_json: Json = False,
        debug: Debug = False,
    ) -> None:
        """Get the pinned images from their registry, by digest; SIFs for Apptainer are made without Docker."""
        with exit_codes(debug, as_json):
            experiment = load_experiment(folder, override or [])
            stages = stages_of(experiment, first, last)
            with stdout_for_json(as_json):
                done = pull_images(experiment, engine_named(engine, images or sif_folder(experiment)), stages)
            step = f"lsdflow run {folder} --backend container"
            lines = [f"{stage}: {pin} {what}" for stage, (pin, what) in done.items()]
            facts = {stage: {"image": str(pin), "pulled": what == PULLED} for stage, (pin, what) in done.items()}
            print_answer({"images": facts, "next": step}, "\n".join([*lines, next_line(step)]), as_json)


def pull_images(experiment: Experiment, engine: Engine, stages: Sequence[str]) -> dict[str, tuple[Pin, str]]:
    """Get the images of these stages that are not here; return by stage its pin and FOUND or PULLED.

    Raises ConfigError (78) for a pin without digest, StoreUnreachable (69) if a registry does not give the image,
    ContractMismatch (76) if it is not an image of that stage and version.
    """
    path = experiment.layout.images_env
    pins = {stage: pin_of_stage(read_pins(path), stage, path) for stage in stages}
    if loose := [pin.key for pin in pins.values() if not pin.digest]:
        raise ConfigError(
            "an image is pulled by its digest only",
            where=path,
            wanted="KEY=registry/name:version@sha256:<64 hex>",
            found=f"no digest: {', '.join(loose)}",
            fix="digests of published images are in containers/published.tsv; of local ones: make pins",
        )
    return {stage: (pin, _pull(engine, stage, pin)) for stage, pin in pins.items()}


def _pull(engine: Engine, stage: str, pin: Pin) -> str:
    what = FOUND
    try:
        image = engine.find(stage, pin)
    except MissingInput:
        LOG.info("%s: pulling %s", stage, pin)
        engine.pull(stage, pin)
        image, what = engine.find(stage, pin), PULLED
    require_image(stage, pin, image)
    return what
