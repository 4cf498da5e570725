"""Docker, podman and Apptainer (singularity): facts about an image, and the command line that runs it.

A stage sees these folders of the host: the experiment, its inputs, the file of the store's URI. Every folder has the
same path inside and outside, so that paths in the experiment file are valid in both.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlsplit

from lsdflow_command.scratch import scratch_folder
from lsdflow_contract.errors import ConfigError, MissingInput, StageError, StoreUnreachable, UsageError
from lsdflow_contract.experiment import STAGES, Experiment, did_you_mean
from lsdflow_contract.files import read_json, storage_errors
from lsdflow_launch.commands import run_command
from lsdflow_launch.images.pins import Pin, key_of

URI_FILE_VARIABLE = "MONGO_URI_FILE"
_CONTAINER_SUFFIXES = {".zarr", ".n5"}
_LONGEST_PATH = 4096
ENGINES = ("docker", "podman", "singularity")
SIF_DIGEST_LABEL = "lsdflow.image.digest"
# zstd at level 1: a quarter of gzip's time for a file a tenth larger.
SQUASHED = ("--mksquashfs-args", "-comp zstd -Xcompression-level 1")
# /tmp holds caches and daisy's logs; shared memory holds the batches of data loaders (docker's default is 64 MB).
TEMPORARY = "/tmp:rw,nosuid,nodev,size=4g,mode=1777"  # noqa: S108
SHARED_MEMORY = "2g"
_NOT_HERE = re.compile(r"no such image|image not known|unable to find|failed to find", re.IGNORECASE)


@dataclass(frozen=True)
class Mount:
    """A file or folder of the host (`source`) and its path in the container (`target`)."""

    source: Path
    target: Path
    writable: bool = False


def mounts_of(experiment: Experiment, writable: Sequence[Path] = ()) -> list[Mount]:
    """Return the mounts, outer folders first.

    writable: folders that are writable like the experiment's; inputs elsewhere that its tables name are read-only.
    Raises ConfigError (78) if a table names the root of the file system.
    """
    root = experiment.path.parent
    found = {folder: Mount(folder, folder, writable=True) for folder in (root, *writable)}
    for path in (*inputs_of(experiment), *_secrets(experiment)):
        if path == Path("/"):
            raise ConfigError("an input is the root of the file system", where=experiment.path)
        if not path.is_relative_to(root):
            found.setdefault(path, Mount(path.resolve(), path))
    return sorted(found.values(), key=lambda mount: (len(mount.target.parts), mount.target))


def uri_file_of(experiment: Experiment) -> Path | None:
    """Return the file that holds the URI of a mongo store; None for the files store or if no file is named."""
    if experiment.store.engine != "mongo":
        return None
    named = experiment.store.uri_file or os.environ.get(URI_FILE_VARIABLE)
    return _absolute(experiment.path.parent, named) if named else None


def inputs_of(experiment: Experiment) -> Iterator[Path]:
    """Yield volumes, masks, skeletons, bundles: every existing path in a stage's table."""
    root = experiment.path.parent
    for text in _strings([experiment.tables.get(stage, {}) for stage in STAGES]):
        path = _absolute(root, text)
        if _exists(path):
            yield from _with_surroundings(path)


def _with_surroundings(path: Path) -> Iterator[Path]:
    """Yield the whole container of an array (its metadata may be above it), and the container of a JSON region."""
    outermost = [p for p in (path, *path.parents) if p.suffix in _CONTAINER_SUFFIXES]
    yield outermost[-1] if outermost else path
    if path.suffix.lower() != ".json" or not path.is_file():
        return
    try:
        content = read_json(path)
    except StageError:
        return  # the stage reports what is wrong with it
    container = content.get("container") if isinstance(content, dict) else None
    if isinstance(container, str) and _exists(named := _absolute(path.resolve().parent, container)):
        yield named


def _secrets(experiment: Experiment) -> Iterator[Path]:
    """Yield the file of the URI, and the certificates that the URI names."""
    path = uri_file_of(experiment)
    if path is None or not _exists(path):
        return
    yield path
    options = dict(parse_qsl(urlsplit(path.read_text(encoding="utf-8").strip()).query))
    for name in ("tlsCAFile", "tlsCertificateKeyFile"):
        if name in options and _exists(certificate := _absolute(path.parent, options[name])):
            yield certificate


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _strings(part)


def _absolute(folder: Path, text: str) -> Path:
    """Return the absolute path without `..` and with links unresolved, as the stage will open it."""
    return Path(os.path.normpath(folder / text))


def _exists(path: Path) -> bool:
    try:
        return len(str(path)) < _LONGEST_PATH and path.exists()
    except (OSError, ValueError):  # a name that is too long, or a NUL: the text is not a path
        return False


@dataclass(frozen=True)
class Image:
    """An image on this machine: its reference, its labels, and every digest by which it may be pinned."""

    reference: str
    labels: dict[str, str]
    digests: tuple[str, ...]

    @property
    def digest(self) -> str:
        """The digest in the provenance: that of the registry, else the id of the local image."""
        return self.digests[0] if self.digests else ""


@dataclass(frozen=True)
class Call:
    """One run of a stage in its container."""

    name: str
    arguments: Sequence[str]
    mounts: Sequence[Mount]
    environment: dict[str, str] = field(default_factory=dict)
    network: str = "none"
    gpu: bool = False


class Engine(Protocol):
    """A program that runs containers."""

    def find(self, stage: str, pin: Pin) -> Image:
        """Return the pinned image. MissingInput (66) if it is not here, StoreUnreachable (69) without an answer."""

    def command(self, stage: str, image: Image, call: Call) -> list[str]:
        """Return the command line of a call."""

    def pull(self, stage: str, pin: Pin) -> None:
        """Fetch the image of the pin's digest from its registry. StoreUnreachable (69) if that fails."""


@dataclass(frozen=True)
class DockerLike:
    """docker, or podman, which has the same options."""

    program: str

    def find(self, stage: str, pin: Pin) -> Image:
        """Find it by registry digest first, since a tag may have moved; then by tag."""
        by_digest = [f"{pin.name}@{pin.digest}"] if pin.digest else []
        for name in (*by_digest, pin.tagged):
            if (facts := self._inspect(name)) is not None:
                return _docker_image(facts)
        order = f"make image STAGE={stage}{pin.make_option}"
        raise MissingInput(
            f"the image of {stage} is not on this machine",
            where=f"{self.program}, {pin.key} of images.env",
            wanted=pin,
            fix=f"{self.program} pull {pin}   or, in a clone of that version: {order}{pin.advice}",
        )

    def command(self, stage: str, image: Image, call: Call) -> list[str]:
        """Run the checked image by its id, without privileges; only the mounts of the host are visible."""
        del stage
        return [
            *(self.program, "run", "--rm", "--interactive", "--pull=never", "--name", call.name),
            *(["--init"] if self.program == "docker" else []),
            *("--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges"),
            *(f"--user={os.getuid()}:{os.getgid()}", *self._user_namespace(), f"--network={call.network}"),
            *("--tmpfs", TEMPORARY, f"--shm-size={SHARED_MEMORY}"),
            *(self._gpu() if call.gpu else ()),
            *_mount_options(call.mounts),
            *(part for name, value in call.environment.items() for part in ("--env", f"{name}={value}")),
            *(image.reference, *call.arguments),
        ]

    def pull(self, stage: str, pin: Pin) -> None:
        """Fetch the image of the pin's digest from its registry. StoreUnreachable (69) if that fails."""
        del stage
        _pull([self.program, "pull", f"{pin.name}@{pin.digest}"], pin, f"{self.program} login")

    def knows(self, name: str) -> bool:
        """Return True if the engine finds an image by exactly this name."""
        return self._inspect(name) is not None

    def _inspect(self, name: str) -> dict[str, Any] | None:
        done = _ask([self.program, "image", "inspect", name])
        if done.returncode == 0:
            return dict(json.loads(done.stdout)[0])
        if _NOT_HERE.search(done.stderr):
            return None
        raise StoreUnreachable(f"{self.program} does not answer", where=self.program, found=done.stderr.strip())

    def _user_namespace(self) -> list[str]:
        """Keep the caller's uid in rootless podman; otherwise files would belong to another user."""
        return ["--userns=keep-id"] if self.program == "podman" and os.getuid() != 0 else []

    def _gpu(self) -> list[str]:
        return ["--gpus", "all"] if self.program == "docker" else ["--device", "nvidia.com/gpu=all"]


@dataclass(frozen=True)
class Apptainer:
    """Apptainer or SingularityCE, with SIFs in one folder: <stage>_<version>_<12 hex of the digest>.sif."""

    program: str
    folder: Path

    def find(self, stage: str, pin: Pin) -> Image:
        """Return the SIF made from the pinned image; for a pin without digest the only SIF of that version."""
        sif = sif_of(self.folder, stage, pin)
        done = _ask([self.program, "inspect", "--json", "--labels", str(sif)])
        if done.returncode != 0:
            raise MissingInput("not a SIF that can be read", where=sif, found=done.stderr.strip()[-500:])
        labels = json.loads(done.stdout)["data"]["attributes"].get("labels") or {}
        digest = labels.get(SIF_DIGEST_LABEL, "")
        return Image(str(sif), labels, (digest,) if digest else ())

    def command(self, stage: str, image: Image, call: Call) -> list[str]:
        """Use `exec`, since `run` evaluates its arguments in a shell; without the caller's environment and home."""
        return [
            *(self.program, "exec", "--cleanenv", "--no-eval", "--no-home", "--pwd", "/"),
            *(["--nv"] if call.gpu else []),
            *_mount_options(call.mounts),
            *(part for name, value in call.environment.items() for part in ("--env", f"{name}={value}")),
            *(image.reference, stage, *call.arguments),
        ]

    def pull(self, stage: str, pin: Pin) -> None:
        """Make the SIF of the pin's digest from the image in its registry; it appears when it is complete.

        StoreUnreachable (69) if that fails.
        """
        with storage_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        with scratch_folder(self.folder, "pull") as work:
            definition, made = work / "definition", work / "made.sif"
            image = f"Bootstrap: docker\nFrom: {pin.name}@{pin.digest}\n"
            definition.write_text(f"{image}\n%labels\n    {SIF_DIGEST_LABEL} {pin.digest}\n", encoding="utf-8")
            command = [self.program, "build", "--disable-cache", *SQUASHED, str(made), str(definition)]
            _pull(command, pin, f"{self.program} registry login")
            made.chmod(0o644)
            made.replace(self.folder / _sif_name(stage, pin))


def _pull(command: Sequence[str], pin: Pin, login: str) -> None:
    """Run it, with its progress and messages on the screen."""
    if code := run_command(command):
        raise StoreUnreachable(
            f"{command[0]} did not get the image",
            where=pin.key,
            wanted=pin,
            found=f"exit code {code}; its message is above",
            fix=f"name the registry in {pin.key} of images.env, and log in to it ({login}); then pull again",
        )


def _sif_name(stage: str, pin: Pin) -> str:
    return f"{stage}_{pin.version}_{pin.digest.removeprefix('sha256:')[:12]}.sif"


def sif_of(folder: Path, stage: str, pin: Pin) -> Path:
    """Return the SIF of a pin in a folder; for a pin without digest the only one of that version.

    Raises MissingInput (66) if there is none, ConfigError (78) if there are several.
    """
    stem = f"{stage}_{pin.version}"
    wanted = folder / (_sif_name(stage, pin) if pin.digest else f"{stem}.sif")
    if wanted.is_file():
        return wanted
    others = [] if pin.digest else sorted(folder.glob(f"{stem}_*.sif"))
    if len(others) == 1:
        return others[0]
    if others:
        names = ", ".join(p.name for p in others)
        raise ConfigError(f"several SIFs of {pin}", where=folder, found=names, fix=f"pin the digest: {pin.key}")
    fix = f"lsdflow pull DIR, or in a clone: make sif STAGE={stage}{pin.make_option} SIF_DIR={folder}{pin.advice}"
    raise MissingInput(f"the SIF of {stage} is not there", where=folder, wanted=wanted.name, fix=fix)


def engine_named(name: str | None, sif_folder: Path | None) -> Engine:
    """Return the engine with that name, or for None the first that is installed.

    Raises UsageError (2) for an unknown name, MissingInput (66) if none is installed, ConfigError (78) if Apptainer
    has no folder of SIFs.
    """
    if name is not None and name not in (*ENGINES, "apptainer"):
        raise UsageError(f"no engine {name!r}", wanted=", ".join(ENGINES), fix=did_you_mean(name, ENGINES))
    programs = {"singularity": ("apptainer", "singularity"), "apptainer": ("apptainer", "singularity")}
    for wanted in (name,) if name else ENGINES:
        for program in programs.get(wanted, (wanted,)):
            if shutil.which(program):
                return _engine(program, sif_folder)
    wanted_name = name or ", ".join(ENGINES)
    raise MissingInput(
        "nothing here runs containers", wanted=wanted_name, fix="install one, or: lsdflow run --backend local"
    )


def _engine(program: str, sif_folder: Path | None) -> Engine:
    if program in ("docker", "podman"):
        return DockerLike(program)
    if sif_folder is None:
        fix = "lsdflow run DIR --backend container --images FOLDER, or images = FOLDER in [cluster]"
        raise ConfigError(f"{program} needs the folder of the SIFs", fix=fix)
    return Apptainer(program, sif_folder)


def _docker_image(facts: dict[str, Any]) -> Image:
    image_id = _with_prefix(str(facts["Id"]))
    from_registry = [text.rpartition("@")[2] for text in facts.get("RepoDigests") or []]
    labels = (facts.get("Config") or {}).get("Labels") or facts.get("Labels") or {}
    return Image(image_id, labels, (*from_registry, image_id))


def _with_prefix(digest: str) -> str:
    return digest if digest.startswith("sha256:") else f"sha256:{digest}"  # podman omits the prefix


def _mount_options(mounts: Sequence[Mount]) -> Iterator[str]:
    """Yield --mount options; their value is a CSV line, so colons, commas and quotes in a path are safe."""
    for mount in mounts:
        fields = ["type=bind", f"source={mount.source}", f"target={mount.target}", *([] if mount.writable else ["ro"])]
        line = io.StringIO()
        csv.writer(line, lineterminator="").writerow(fields)
        yield from ("--mount", line.getvalue())


def _ask(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def key_fix(stage: str) -> str:
    """Return the fix that changes a stage's pin."""
    return f"change {key_of(stage)} in images.env, or build and pull what it names"
