"""One flipped bit in any file that a finished chain leaves is reported, or changes no result.

A small chain is finished once. For each flip, a copy of the experiment as it was after the stage that wrote the file
is damaged by one bit; then that stage verifies what it wrote, and the stages that read it run. Every answer is a
documented exit code, never 70. If the next stages end well, their results must be those of the undamaged experiment.

LSDFLOW_FAULTS=release flips 2,000 bits instead of some per kind of file; `-s` prints the table.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from bad_input.lab import Lab, Laboratory

from lsdflow_agglomerate.stage import Agglomerate
from lsdflow_contract.checkpoint import BUNDLE_JSON, DESCRIPTION_HASH, hash_of_description
from lsdflow_contract.errors import StageError
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.hashing import hash_of_file
from lsdflow_contract.manifest import read_manifest
from lsdflow_evaluate.config import EvaluateConfig
from lsdflow_evaluate.evaluation import score
from lsdflow_evaluate.report.collect import Collector
from lsdflow_evaluate.scores.scores_file import present_result
from lsdflow_evaluate.stage import Evaluate
from lsdflow_predict.stage import Predict
from lsdflow_prepare.stage import Prepare
from lsdflow_segment.stage import Segment
from lsdflow_watershed.stage import Watershed

watershed = Watershed()
agglomerate = Agglomerate()
predict = Predict()
segment = Segment()
evaluate = Evaluate()
prepare = Prepare()

SEED = 18
FLIPS_OF_A_KIND, FLIPS_OF_A_RELEASE = 2, 2000
STAGES = {
    "prepare": prepare,
    "predict": predict,
    "watershed": watershed,
    "agglomerate": agglomerate,
    "segment": segment,
    "evaluate": evaluate,
}
# The stages that read what a stage leaves. Networks are read by predict; their own stage needs another environment.
READERS = {
    "prepare": ("predict",),
    "train": ("predict",),
    "predict": ("watershed",),
    "watershed": ("agglomerate", "segment"),
    "agglomerate": ("segment",),
    "segment": ("evaluate",),
    "evaluate": (),
}
# What people read, and what runs record of themselves: no later stage reads it as data.
FOR_PEOPLE = ("runs/", "metrics/", "experiment.toml", "store/blocks/.lock")
# Group metadata are for other programs: no stage reads them, and the next run writes them again.
GROUPS = (".zgroup",)


@dataclass(frozen=True)
class Kind:
    """Files of one kind: the stage that writes them, and their paths in the experiment."""

    name: str
    stage: str
    files: tuple[str, ...]


@dataclass(frozen=True)
class Answer:
    """What verify and the next stages said: exit codes; whether results were those of the undamaged experiment."""

    verify: int
    following: int
    same: bool

    @property
    def is_reported(self) -> bool:
        return bool(self.verify or self.following)


def kind_of(path: str) -> tuple[str, str]:
    """Name of the kind of a file, and the stage that wrote it."""
    parts = Path(path).parts
    name, suffix = parts[-1], Path(path).suffix
    if parts[0] == "manifests":
        stage = Path(path).stem
        return "manifest", "train" if stage.startswith("train-") else stage
    if ".lsdflow" in parts:
        return "report of a volume", "prepare"
    if parts[0] == "results" and name == "manifest.json":
        return "manifest of a result", parts[1]
    if parts[:2] == ("results", "evaluate") and name == "scores.json":
        return "scores of a result", "evaluate"
    if parts[0] == "results":
        return (f"array metadata {name}" if name in (".zarray", ".zattrs", "zarr.json") else "chunk"), parts[1]
    if parts[0] == "train":
        return name, "train"
    if parts[0] == "luts":
        return ("LUT" if suffix == ".npz" else "summary" if name.startswith("thresholds_") else "side-car"), "segment"
    if parts[:2] == ("store", "blocks"):
        return "packed marks", parts[2]
    if parts[:2] == ("store", "evaluate"):
        return f"work {suffix}", "evaluate"
    if parts[0] == "store":
        of = "evaluate" if parts[1].startswith("overlaps") else "watershed"
        return "rows", "agglomerate" if parts[1].startswith("edges_") else of
    assert path == "report/scores.json", f"a file of an unknown kind: {path}"
    return "scores", "evaluate"


def finish(experiment: Experiment, stage: str) -> None:
    """Run a stage; of evaluate only the scores, since the pictures of its report are not read by anybody."""
    if stage == "evaluate":
        collector = Collector()
        scores = score(experiment, experiment.table(stage, EvaluateConfig), collector).scores
        if collector.errors:
            raise collector.errors[0]
        path = experiment.layout.root / "scores_of_the_test.json"
        path.write_text(json.dumps(scores, sort_keys=True))
    else:
        STAGES[stage].run(experiment)


def results(experiment: Experiment, stages: tuple[str, ...]) -> dict[str, Any]:
    """What the stages made: identities, tables, scores."""
    found: dict[str, Any] = {s: read_manifest(experiment.layout, s).identity for s in stages if s != "evaluate"}
    if "segment" in stages:
        found |= {path.name: hash_of_file(path) for path in experiment.layout.luts.rglob("*.npz")}
    if "evaluate" in stages:
        found["scores"] = (experiment.layout.root / "scores_of_the_test.json").read_text()
    return found


def code_of(work: Callable[[], object]) -> int:
    """The exit code that a command would end with."""
    try:
        work()
    except StageError as error:
        return error.exit_code
    except Exception:  # noqa: BLE001 - as the command line does
        return 70
    return 0


class Chain:
    """The experiment as it was after each stage, and what the stages after that made."""

    def __init__(self, laboratory: Laboratory, folder: Path) -> None:
        self.folder = folder
        self.after: dict[str, Path] = {}
        self.expected: dict[str, dict[str, Any]] = {}
        lab = laboratory.lab("train")
        for bundle in lab.layout.root.glob(f"train/*/checkpoints/*/{BUNDLE_JSON}"):
            hash_ = hash_of_description(json.loads(bundle.read_text()))
            bundle.with_name(DESCRIPTION_HASH).write_text(f"{hash_}\n")
        self._keep("train", lab)
        self.after["prepare"] = self.after["train"]
        for stage in ("predict", "watershed", "agglomerate", "segment"):
            STAGES[stage].run(lab.experiment())
            self._keep(stage, lab)
        evaluate.run(lab.experiment())
        self._keep("evaluate", lab)
        for stage, readers in READERS.items():
            copied = self.copy(stage)
            if stage in STAGES:
                STAGES[stage].verify(copied)  # a copy is as good as what was copied
            for reader in readers:
                finish(copied, reader)
            self.expected[stage] = results(copied, readers)

    def _keep(self, stage: str, lab: Lab) -> None:
        self.after[stage] = self.folder / stage
        shutil.copytree(lab.root, self.after[stage])

    def copy(self, stage: str) -> Experiment:
        shutil.rmtree(self.folder / "now", ignore_errors=True)
        shutil.copytree(self.after[stage], self.folder / "now")
        return Lab(self.folder / "now").experiment()

    def kinds(self) -> list[Kind]:
        """All files of the finished chain by their kind; GROUPS and what is FOR_PEOPLE is left out."""
        found: dict[tuple[str, str], list[str]] = {}
        root = self.after["evaluate"] / "exp"
        for file in sorted(p for p in root.rglob("*") if p.is_file() and p.stat().st_size):
            path = file.relative_to(root).as_posix()
            is_group = file.name in GROUPS or (file.name == "zarr.json" and '"group"' in file.read_text())
            in_report = path.startswith("report/") and path != "report/scores.json"
            if not is_group and not in_report and not path.startswith(FOR_PEOPLE):
                found.setdefault(kind_of(path), []).append(path)
        return [Kind(name, stage, tuple(files)) for (name, stage), files in found.items()]

    def flipped(self, kind: Kind, chance: random.Random) -> tuple[str, Answer]:
        """Flip one bit of one file of a kind; where, and what came of it."""
        experiment = self.copy(kind.stage)
        path = chance.choice(kind.files)
        file = experiment.layout.root / path
        content = bytearray(file.read_bytes())
        bit = chance.randrange(8 * len(content))
        content[bit // 8] ^= 1 << bit % 8
        file.write_bytes(content)
        verifying = code_of(lambda: STAGES[kind.stage].verify(experiment)) if kind.stage in STAGES else 0
        return f"{path}, bit {bit}", self._followed(kind, experiment, verifying)

    def _followed(self, kind: Kind, experiment: Experiment, verifying: int) -> Answer:
        readers = READERS[kind.stage]
        following = 0
        for reader in readers:
            following = following or code_of(lambda reader=reader: finish(experiment, reader))
        if kind.stage == "evaluate":
            undamaged = Lab(self.after["evaluate"]).experiment()
            _, present = present_result(experiment.layout, experiment.table("evaluate", EvaluateConfig))
            _, wanted = present_result(undamaged.layout, undamaged.table("evaluate", EvaluateConfig))
            same = present in ({}, wanted)
            return Answer(verifying, 0, same)
        same = bool(following) or results(experiment, readers) == self.expected[kind.stage]
        return Answer(verifying, following, same)


@pytest.fixture(scope="module")
def chain(laboratory: Laboratory, tmp_path_factory: pytest.TempPathFactory) -> Chain:
    return Chain(laboratory, tmp_path_factory.mktemp("flips"))


def flips(kinds: list[Kind], chance: random.Random) -> Iterator[Kind]:
    """The kind of each flip: every kind equally often."""
    wanted = FLIPS_OF_A_RELEASE if os.environ.get("LSDFLOW_FAULTS") == "release" else FLIPS_OF_A_KIND * len(kinds)
    for number in range(wanted):
        yield kinds[number % len(kinds)]


@pytest.mark.proves("NEW-03")
def test_one_flipped_bit_is_reported_or_changes_no_result(chain: Chain) -> None:
    chance, wrong = random.Random(SEED), []
    table: dict[tuple[str, str], Counter[str]] = {}
    for kind in flips(chain.kinds(), chance):
        where, answer = chain.flipped(kind, chance)
        outcome = (
            "silent" if not answer.same else f"{answer.verify}/{answer.following}" if answer.is_reported else "same"
        )
        table.setdefault((kind.stage, kind.name), Counter())[outcome] += 1
        if not answer.same or 70 in (answer.verify, answer.following):
            wrong.append(f"{kind.stage} {kind.name}: {where}: {answer}")
    for (stage, name), counts in sorted(table.items()):
        print(f"| {stage} | {name} | {sum(counts.values())} | {', '.join(f'{n} {k}' for k, n in counts.items())} |")
    assert wrong == []
