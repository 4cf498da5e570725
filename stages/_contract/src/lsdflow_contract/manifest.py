"""The manifest of a finished stage: its writer, inputs and parameters, and the identity of the result.

A stage reads the manifests of its inputs before it writes anything, and writes its own once everything is verified.
`key` identifies the pass (parameters + inputs); `identity` identifies the result (key + checksums of the outputs).
If a stage has several results, `manifests/<stage>.json` is the manifest of the current one, and each result keeps
its own next to its arrays. `differences` describes what changed between two manifests.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field, ValidationError

from lsdflow_contract import CONTRACT_MAJOR, CONTRACT_VERSION, KEY_MAJOR
from lsdflow_contract.chain_link import ChainLink, results_folder
from lsdflow_contract.errors import BadData, ContractMismatch, MissingInput, OutputConflict, StageError
from lsdflow_contract.files import read_json, write_if_changed, write_json
from lsdflow_contract.hashing import hash_of
from lsdflow_contract.model import StrictModel
from lsdflow_contract.sealing import SEAL, sealed, unsealed
from lsdflow_contract.software import library_versions, source_revision

if TYPE_CHECKING:
    from lsdflow_contract.layout import ExperimentLayout

# Set by the wrappers and the launcher: digest of the image, job (scheduler's id, restarts, node).
DIGEST_VARIABLE, JOB_VARIABLE = "LSDFLOW_IMAGE_DIGEST", "LSDFLOW_JOB"
# In the facts, like the seal.
LIBRARIES_FACT = "libraries"
# Differences that are listed one by one, and the characters of each value.
LISTED, LONGEST_VALUE = 6, 32
# What follows from settings and inputs, in the recorded settings of a stage.
RESOLVED = "resolved"
# Inputs that an earlier pass of the same stage made.
FROM_PASSES = ("faces", "lsds")


class Writer(StrictModel):
    """Which stage, version, image and revision wrote an artefact."""

    stage: str
    version: str
    image_digest: str = ""
    revision: str = ""

    @classmethod
    def of(cls, stage: str) -> Writer:
        """The running stage, with digest and revision of its image (from the environment) or the commit of a clone."""
        try:
            stage_version = version(f"lsdflow-{stage}")
        except PackageNotFoundError:
            stage_version = "unknown"
        digest = os.environ.get(DIGEST_VARIABLE, "")
        return cls(stage=stage, version=stage_version, image_digest=digest, revision=source_revision())


class Manifest(StrictModel):
    """The record of a finished stage, which the next stages read."""

    contract: str = CONTRACT_VERSION
    writer: Writer
    key: str = Field(description="hash of parameters and inputs: names the work")
    config: dict[str, Any] = Field(description="the resolved table of the stage")
    inputs: dict[str, str] = Field(description="identity of every input")
    outputs: dict[str, str] = Field(description="paths of the outputs, relative to the experiment")
    facts: dict[str, Any] = Field(default_factory=dict, description="counts, run times, warnings")
    identity: str = Field(description="hash of key and result checksums: names the result")

    def write(self, layout: ExperimentLayout, stage: str = "") -> None:
        """Write it to the experiment, sealed and atomically, as the manifest of `stage` (default: its writer)."""
        content = sealed(self.model_dump())
        content["facts"][SEAL] = content.pop(SEAL)
        stage = stage or self.writer.stage
        if layout.result(stage, self.key).is_dir():
            write_json(kept_manifest(layout, stage, self.key), content)
        write_json(layout.manifest(stage), content)

    def finish(self, layout: ExperimentLayout) -> Manifest:
        """Write the manifest of a result that this process computed; its facts name the libraries of this process."""
        finished = self.model_copy(update={"facts": {**self.facts, LIBRARIES_FACT: library_versions()}})
        finished.write(layout)
        return finished

    def output_array(self, layout: ExperimentLayout, output: str) -> tuple[Path, str]:
        """The zarr container and the dataset of an output. MissingInput (66) if the stage has no such output."""
        if output not in self.outputs:
            raise MissingInput(
                f"{self.writer.stage} left no {output}",
                where=layout.manifest(self.writer.stage),
                wanted=f"an output {output}",
                found=sorted(self.outputs),
            )
        folder = layout.root / self.outputs[output]
        container = next((path for path in (folder, *folder.parents) if path.suffix == ".zarr"), folder.parent)
        return container, folder.relative_to(container).as_posix()

    @property
    def libraries(self) -> dict[str, str]:
        """Versions of the libraries that computed the result, by name; empty if the manifest names none."""
        return dict(self.facts.get(LIBRARIES_FACT, {}))


def read_manifest(layout: ExperimentLayout, stage: str) -> Manifest:
    """The manifest of a finished stage.

    Raises MissingInput if the stage has not finished, ContractMismatch for another contract major, BadData if the
    manifest is damaged or was changed, OutputConflict (73) if the chain that called this process made another result.
    """
    found = _read(layout.manifest(stage), stage)
    wanted = ChainLink.of_caller(layout.root).results.get(stage, found.identity)
    if found.identity == wanted:
        return found
    kept = (m for m in finished_manifests(layout, stage).values() if m.identity == wanted)
    earlier = next(kept, None)
    changed = "" if earlier is None else differences(earlier, found.config, found.inputs)
    raise OutputConflict(
        f"the current result of {stage} is not the one that this run began with",
        where=layout.manifest(stage),
        wanted=f"result {wanted[:12] if earlier is None else earlier.key[:8]} of {stage}",
        found=f"result {found.key[:8]}: {changed or 'another result of the same settings'}",
        fix="another run, or `lsdflow use`, changed it meanwhile: let that end, then run the same command again",
    )


def record_for_later_jobs(layout: ExperimentLayout, submission: str, stages: Sequence[str]) -> None:
    """Record the current results of `stages`, where they are readable, for the later jobs of a submission."""
    for stage in stages:
        with suppress(StageError):
            identity = _read(layout.manifest(stage), stage).identity
            write_if_changed(results_folder(layout.root, submission) / stage, identity.encode("ascii"))


def require_results_of_chain(layout: ExperimentLayout) -> None:
    """Raise OutputConflict (73) if a result that the calling chain gave as input is no longer the current one."""
    for stage in ChainLink.of_caller(layout.root).results:
        read_manifest(layout, stage)


def read_manifest_file(path: Path) -> Manifest:
    """The manifest of any stage from a file. Raises the same errors as read_manifest."""
    return _read(path, "that wrote it")


def kept_manifest(layout: ExperimentLayout, stage: str, key: str) -> Path:
    """The path of the manifest that the result of a pass keeps."""
    return layout.result(stage, key) / "manifest.json"


def read_kept_manifest(layout: ExperimentLayout, stage: str, key: str) -> Manifest:
    """The manifest of the finished result of `key`, current or not. Raises the same errors as read_manifest."""
    path = layout.manifest(stage)
    if current_key(layout, stage) != key:
        path = kept_manifest(layout, stage, key)
    return _read(path, stage)


def current_key(layout: ExperimentLayout, stage: str) -> str:
    """The key of the current result of a stage; empty if there is none, or if its manifest is damaged."""
    try:
        return read_manifest(layout, stage).key
    except (MissingInput, BadData, ContractMismatch):
        return ""


def finished_manifests(layout: ExperimentLayout, stage: str) -> dict[Path, Manifest]:
    """All readable manifests of finished results of a stage, by file; the current one appears once."""
    found: dict[Path, Manifest] = {}
    kept = sorted((layout.results / stage).glob("*/manifest.json"))
    for path in (*kept, layout.manifest(stage)):
        with suppress(MissingInput, BadData, ContractMismatch):
            manifest = _read(path, stage)
            if all(manifest.key != other.key for other in found.values()):
                found[path] = manifest
    return found


def remove_manifest(layout: ExperimentLayout, stage: str, keys: Collection[str]) -> None:
    """Remove the manifests of results with these keys, because they are no longer complete."""
    if current_key(layout, stage) in keys:
        layout.manifest(stage).unlink()
    for key in keys:
        kept_manifest(layout, stage, key).unlink(missing_ok=True)


def _read(path: Path, stage: str) -> Manifest:
    if not path.exists():
        raise MissingInput(f"the stage {stage} has not finished", where=path, fix=f"run it first: {stage} run")
    fix = f"write it again, from what is done: {stage} run, or lsdflow repair EXPERIMENT"
    try:
        raw = read_json(path)
        if isinstance(raw, dict):
            require_contract(str(raw.get("contract", "")), path)
            if isinstance(raw.get("facts"), dict) and SEAL in raw["facts"]:
                raw[SEAL] = raw["facts"].pop(SEAL)
        return Manifest.model_validate(unsealed(raw, path, fix))
    except ValidationError as error:
        raise BadData("damaged manifest", where=path, found=error, fix=fix) from error
    except BadData as error:
        error.fix = fix
        raise


def require_contract(found: str, where: Path) -> None:
    """Refuse an artefact of another contract major (exit 76)."""
    if found.partition(".")[0] != CONTRACT_MAJOR:
        raise ContractMismatch(
            "the artefact was written for another contract",
            where=where,
            wanted=f"contract {CONTRACT_MAJOR}.x",
            found=found or "none",
            fix="use the image that wrote it, or make the artefact again",
        )


def work_key(stage: str, parameters: dict[str, Any], inputs: dict[str, str]) -> str:
    """The key of a pass: hash of contract major, stage, parameters and identities of the inputs."""
    return hash_of({"contract": KEY_MAJOR, "stage": stage, "parameters": parameters, "inputs": inputs})


def differences(earlier: Manifest, config: Mapping[str, Any], inputs: Mapping[str, str]) -> str:
    """At most LISTED of "name old -> new" and "another input: NAME"; empty if no recorded value differs.

    Values that follow from the settings, and inputs that an earlier pass of the stage made, are listed only if nothing
    else differs.
    """
    settings, before = ({name: table[name] for name in table if name != RESOLVED} for table in (config, earlier.config))
    changed = [*_changed("", before, settings)]
    names = sorted({*earlier.inputs, *inputs})
    other = [name for name in names if earlier.inputs.get(name) != inputs.get(name)]
    changed += [f"another input: {name}" for name in other if _is_given(name)]
    changed = changed or [*_changed("", earlier.config.get(RESOLVED, {}), config.get(RESOLVED, {}))]
    changed = changed or [f"another input: {name}" for name in other]
    more = [f"and {len(changed) - LISTED} more"] if len(changed) > LISTED else []
    return ", ".join([*changed[:LISTED], *more])


def _changed(prefix: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted({*old, *new}):
        before, now = old.get(name), new.get(name)
        if isinstance(before, Mapping) and isinstance(now, Mapping):
            yield from _changed(f"{prefix}{name}.", before, now)
        # Tuples became lists in the JSON of the manifest.
        elif before != (list(now) if isinstance(now, tuple) else now):
            yield f"{prefix}{name} {_short(before)} -> {_short(now)}"


def _short(value: object) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…"


def _is_given(name: str) -> bool:
    """True for an input from outside the stage."""
    return name not in FROM_PASSES and not name.startswith("pass ")
