"""The merge function that docs/add_a_stage.md adds: its steps, carried out in a copy of agglomerate."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lsdflow_agglomerate.faces import count_faces
from lsdflow_agglomerate.merge_functions import MERGE_FUNCTIONS
from lsdflow_contract.arrays import AFFS, RAW
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_contract.geometry import Geometry
from lsdflow_contract.manifest import Manifest, Writer, read_manifest
from lsdflow_contract.testing import made, noisy_affinities_to, same_partition, voronoi_labels
from lsdflow_runtime.io.volumes import OutputArray, open_volume
from lsdflow_runtime.store.stores import open_store
from lsdflow_segment.stage import Segment
from lsdflow_watershed.stage import Watershed

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = (REPOSITORY / "docs" / "add_a_stage.md").read_text(encoding="utf-8").partition("## A merge function instead")[2]
STEPS = re.findall(r"^```\w+\n# (\S+), below: (.*?)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
PACKAGE, SLOW = Path("stages/agglomerate"), Path("tests/stages/agglomerate/slow_merging.py")
README = PACKAGE / "README.md"
GRID = Geometry((10.0, 7.5, 7.5), (50.0, 0.0, 15.0), (20, 24, 28))
THRESHOLD = 0.4
SETTINGS = f"""[compute]
runner = "serial"
[watershed]
block_shape = "12 vox"
context = "12 vox"
min_seed_distance_vox = 3
[agglomerate]
merge_functions = ["maximum"]
super_block = "12 vox"
[segment]
thresholds_step = 0.1
threshold = {THRESHOLD}
"""
LINES = """import json
from lsdflow_agglomerate.merge_functions import names_by_score
names = {score: ', '.join(f'`{name}`' for name in names) for score, names in names_by_score().items()}
print(json.dumps([f'| {names} | {score} |' for score, names in names.items()]))
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of agglomerate after the steps of the page."""
    root = tmp_path_factory.mktemp("merge_function") / "copy"
    shutil.copytree(REPOSITORY / PACKAGE, root / PACKAGE)
    (root / SLOW).parent.mkdir(parents=True)
    shutil.copy(REPOSITORY / SLOW, root / SLOW)
    for name, place, text in STEPS:
        lines = (root / name).read_text(encoding="utf-8").splitlines(keepends=True)
        assert lines.count(f"{place}\n") == 1, f"{name}: {place}"
        lines.insert(lines.index(f"{place}\n") + 1, text)
        (root / name).write_text("".join(lines), encoding="utf-8")
    return root


def in_copy(copy: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program of this environment, with agglomerate from the copy."""
    variables = {"PYTHONPATH": str(copy / PACKAGE / "src"), "NUMBA_CACHE_DIR": str(copy / "numba")}
    command = [Path(sys.executable).with_name(program), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **variables})


@pytest.fixture(scope="module")
def experiment(copy: Path) -> Experiment:
    """Affinities, fragments, and edges and segmentation by the new merge function."""
    root = copy.with_name("experiment")
    root.mkdir()
    (root / "experiment.toml").write_text(SETTINGS)
    experiment = load_experiment(root)
    container = experiment.layout.result("predict", "affs") / "predictions.zarr"
    for path, spec, values in (
        (experiment.layout.target_volume, RAW, np.zeros(GRID.shape_vox, np.uint8)),
        (container, AFFS, affinities()),
    ):
        output = OutputArray(path, spec, GRID, GRID.box, GRID.shape_vox)
        output.create({"key": spec.dataset})
        output.open().write(GRID.box, values)
    outputs = {"affs": str((container / AFFS.dataset).relative_to(root))}
    facts: dict[str, Any] = {"key": "affs", "config": {}, "inputs": {}, "identity": "affs"}
    Manifest(writer=Writer.of("predict"), outputs=outputs, **facts).write(experiment.layout)
    Watershed().run(experiment)
    done = in_copy(copy, "agglomerate", "run", "--experiment", str(root))
    assert done.returncode == 0, done.stderr
    Segment().run(experiment)
    return experiment


def affinities() -> NDArray[np.uint8]:
    """Affinities (3, z, y, x) u8 of 12 cells, higher from left to right: only some of the fragments are joined."""
    noisy = noisy_affinities_to(voronoi_labels(GRID.shape_vox, 12), ((-1, 0, 0), (0, -1, 0), (0, 0, -1)))
    return (noisy * np.linspace(0.2, 1, GRID.shape_vox[2])).astype(np.uint8)


def voxels(experiment: Experiment, stage: str, name: str) -> NDArray[np.uint64]:
    volume = open_volume(made(experiment.layout, stage), f"volumes/{name}")
    return volume.read(volume.box)


def joined_by_reference(copy: Path, fragments: NDArray[np.uint64]) -> dict[tuple[int, int], float]:
    """Pairs of fragments and the score that joins them, by the slow computation of the copy."""
    spec = importlib.util.spec_from_file_location("slow_merging_of_copy", copy / SLOW)
    assert spec is not None
    assert spec.loader is not None
    slow = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(slow)
    _, joined, _ = slow.slow_merges(count_faces(affinities(), fragments, GRID.box, GRID.box), "maximum")
    return dict(joined)


@pytest.mark.proves("NEW-16")
def test_the_steps_of_the_page_give_the_scores_and_segments_of_the_slow_reference(
    copy: Path, experiment: Experiment
) -> None:
    assert "maximum" not in MERGE_FUNCTIONS
    key, found = read_manifest(experiment.layout, "agglomerate").key, {}
    for edges in open_store(experiment).rag.iter_edges(key, "maximum"):
        found |= dict(
            zip(zip(edges.u.tolist(), edges.v.tolist(), strict=True), edges.merge_score.tolist(), strict=True)
        )
    fragments = voxels(experiment, "watershed", "fragments")
    joined = joined_by_reference(copy, fragments)
    assert {pair: score for pair, score in found.items() if score == score} == joined
    segments = fragments.copy()
    for (u, v), score in joined.items():
        if score <= THRESHOLD:
            ends = [segments[fragments == fragment][0] for fragment in (u, v)]
            segments[segments == max(ends)] = min(ends)
    assert 1 < len(np.unique(segments)) < len(np.unique(fragments))
    assert same_partition(voxels(experiment, "segment", "segmentation"), segments)


def test_fragments_of_blocks_are_refused_as_the_page_says(copy: Path) -> None:
    root = copy.with_name("blocks")
    root.mkdir()
    (root / "experiment.toml").write_text(SETTINGS.replace("[watershed]", '[watershed]\nid_mode = "blocks"'))
    refused = in_copy(copy, "agglomerate", "validate", "--experiment", str(root))
    assert refused.returncode == 78, refused.stderr
    assert "this merge function is scored on complete faces only" in refused.stdout + refused.stderr
    assert '`id_mode = "blocks"` refuses it with exit code 78' in PAGE


def test_the_readme_lists_every_merge_function_with_its_score(copy: Path) -> None:
    for root, variables in ((REPOSITORY, {}), (copy, {"PYTHONPATH": str(copy / PACKAGE / "src")})):
        done = subprocess.run(
            [sys.executable, "-c", LINES], capture_output=True, text=True, check=True, env={**os.environ, **variables}
        )
        written = (root / README).read_text(encoding="utf-8").splitlines()
        assert [line for line in json.loads(done.stdout) if line not in written] == []


def test_all_steps_are_carried_out_and_the_result_is_well_formatted(copy: Path) -> None:
    assert len(STEPS) == PAGE.count("```") / 2 == 5
    checked = [copy / PACKAGE / "src", copy / SLOW]
    for words in (("check",), ("format", "--check")):
        done = in_copy(copy, "ruff", *words, "--config", str(REPOSITORY / "ruff.toml"), *map(str, checked))
        assert done.returncode == 0, done.stdout
