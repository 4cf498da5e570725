"""`lsdflow compose-env`: writes the settings that compose needs beside the pins, compose.env and passwords."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

from lsdflow_contract.errors import ConfigError, MissingInput, PermissionDenied
from lsdflow_contract.experiment import STAGES, Experiment
from lsdflow_contract.files import storage_errors, write_if_changed
from lsdflow_launch.images.container import require_image
from lsdflow_launch.images.engines import DockerLike, mounts_of
from lsdflow_launch.images.pins import Pin, key_of, pin_of_stage, read_pins

HEADER = "# Written by `lsdflow compose-env`: this machine, this user, this experiment. Pins are in images.env.\n"
# This service waits for the last stage, so that `up` fails when that stage failed.
LAST_SERVICE = "end"
# In an env file of compose, text in single quotes is literal; a colon would separate two paths of a volume.
_UNSAFE = re.compile(r"['\n:]")


@dataclass(frozen=True)
class ComposeEnv:
    """The file that was written, and the options for `docker compose`."""

    path: Path
    options: tuple[str, ...]

    def command(self, compose_folder: str = "compose") -> str:
        """Return the command line that runs the chain."""
        files = [part for name in self.options for part in ("-f", f"{compose_folder}/{name}")]
        env_files = [self.path.parent / "images.env", self.path]
        # `up` alone would also wait for the database, which never ends.
        mongo = "compose.mongo.yaml" in self.options
        up = ["up", "--attach-dependencies", "--no-attach", "mongo", LAST_SERVICE] if mongo else ["up"]
        return shlex.join(["docker", "compose", *files, *(f"--env-file={p}" for p in env_files), *up])


def write_compose_env(experiment: Experiment) -> ComposeEnv:
    """Check the pins, then write E/compose.env and, for a mongo store, E/secrets/ (0700, files 0600).

    Raises ConfigError (78) for pins or paths that compose cannot use, ContractMismatch (76) for a local image that is
    not the pinned one.
    """
    mongo = experiment.store.engine == "mongo"
    digests = _checked_digests(experiment, mongo)
    root = experiment.path.parent
    values = {
        "COMPOSE_PROJECT_NAME": "lsdflow-" + re.sub(r"[^a-z0-9_-]", "-", experiment.common.name.lower()),
        "LSDFLOW_EXPERIMENT": str(root),
        "LSDFLOW_UID": str(os.getuid()),
        "LSDFLOW_GID": str(os.getgid()),
    }
    if (inputs := _folder_of_inputs(experiment)) is not None:
        values["LSDFLOW_INPUTS"] = str(inputs)
    if mongo:
        values["LSDFLOW_SECRETS"] = str(root / "secrets")
        _write_secrets(root / "secrets", experiment.database)
    for name, value in values.items():
        if _UNSAFE.search(value):
            raise ConfigError(f"{name}: compose cannot take this path", found=value, fix="no quotes, no colons")
    values |= {f"{key_of(stage)}_DIGEST": digest for stage, digest in digests.items()}
    path = root / "compose.env"
    write_if_changed(path, (HEADER + "".join(f"{k}='{v}'\n" for k, v in values.items())).encode())
    files = ["compose.yaml", *(["compose.mongo.yaml"] if mongo else [])]
    files += ["compose.gpu.yaml"] if shutil.which("nvidia-smi") and experiment.compute.device != "cpu" else []
    return ComposeEnv(path, tuple(files))


def _checked_digests(experiment: Experiment, mongo: bool) -> dict[str, str]:
    """Return the digest that each stage writes into its results."""
    path = experiment.layout.images_env
    pins = read_pins(path)
    engine = DockerLike("docker" if shutil.which("docker") else "podman")
    digests = {stage: _checked_digest(engine, stage, pin_of_stage(pins, stage, path)) for stage in STAGES}
    if mongo and "MONGO_IMAGE" not in pins:
        raise ConfigError("the database has no pinned image", where=path, wanted="a line MONGO_IMAGE=name:version")
    return digests


def _checked_digest(engine: DockerLike, stage: str, pin: Pin) -> str:
    """Require that a local image is the pinned one. Compose pulls a missing one; its digest is then that of the pin."""
    try:
        image = engine.find(stage, pin)
    except MissingInput:
        return pin.digest
    require_image(stage, pin, image)
    if pin.digest and not engine.knows(str(pin)):
        fix = f"publish the image, or leave the digest out of {pin.key}, or: lsdflow run --backend container"
        raise ConfigError(
            "compose finds an image by a registry's digest only",
            where=pin.key,
            found=f"id of a local image, {pin}",
            fix=fix,
        )
    return pin.digest or image.digest


def _folder_of_inputs(experiment: Experiment) -> Path | None:
    """Return the common folder of all inputs outside the experiment; None if there are none."""
    uri_file = experiment.store.uri_file
    skipped = {experiment.path.parent, experiment.resolve(uri_file) if uri_file else None}
    paths = [mount.target for mount in mounts_of(experiment) if mount.target not in skipped]
    if not paths:
        return None
    common = Path(os.path.commonpath([path if path.is_dir() else path.parent for path in paths]))
    if common == Path("/"):
        fix = "put them (or links to them) below one folder, or: lsdflow run --backend container"
        raise ConfigError("the inputs are all over the machine", found=", ".join(map(str, paths)), fix=fix)
    return common


def _write_secrets(folder: Path, database: str) -> None:
    """Write passwords of the administrator and of the experiment's user; existing files are kept."""
    texts = {
        "mongo_admin_password": secrets.token_urlsafe(32),
        "mongo_uri": f"mongodb://lsdflow:{secrets.token_urlsafe(32)}@mongo:27017/{database}",
    }
    with storage_errors(folder):
        folder.mkdir(mode=0o700, exist_ok=True)
        for name, text in texts.items():
            path = folder / name
            if path.exists():
                _require_private(path)
                continue
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text + "\n")


def _require_private(path: Path) -> None:
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        raise PermissionDenied(
            "others may read a password",
            where=path,
            wanted="mode 0600",
            found=f"mode {mode:04o}",
            fix=f"chmod 600 {path}",
        )
