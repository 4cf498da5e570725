"""What the pages about volumes of one's own let people type does what they say: really typed, in an empty folder.

The volumes are small ones with the names that the pages use (volumes_of_pages.py).
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from commands_of_pages import commands, shell_lines
from typer.testing import CliRunner
from volumes_of_pages import cremi_zarr, expanded, hdf5, n5_and_others, tiffs

from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import read_manifest
from lsdflow_launch.init.demo import CHECKPOINT
from lsdflow_prepare.cli import app as prepare

REPOSITORY = Path(__file__).resolve().parents[2]
OWN_DATA, CLONE, TRAIN = (
    f"docs/{name}.md" for name in ("your_own_data", "from_clone_to_segmentation", "train_your_own")
)
INIT = "bin/lsdflow init exp --train labelled.zarr --volume big.zarr"
INIT_TRY = "bin/lsdflow init try --train labelled.zarr --volume big.zarr --profile tiny"
INIT_CLUSTER = (
    "bin/lsdflow init /shared/me/exp --train labelled.zarr --volume big.zarr --set cluster.images=/shared/images"
)
INIT_OWN = (
    "bin/lsdflow init own --train labelled.zarr --volume labelled.zarr --truth labelled.zarr"
    " --profile tiny --mode mtlsd"
)
INIT_NETWORK = "bin/lsdflow init exp --volume big.zarr --network fib-sem"
INIT_CHECKPOINT = "lsdflow init exp --volume big.zarr --network FOLDER"
SYNOPSIS = "lsdflow init DIR "
Type = Callable[[str], str]


def page(name: str) -> str:
    return (REPOSITORY / name).read_text(encoding="utf-8")


def tables_of(name: str) -> list[str]:
    """The blocks of toml of a page, as written there."""
    return re.findall(r"^```toml\n(.*?)^```", page(name), re.MULTILINE | re.DOTALL)


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """The folder of a user, with the commands in bin/ and two volumes."""
    (tmp_path / "bin").symlink_to(REPOSITORY / "bin")
    cremi_zarr(tmp_path / "labelled.zarr", (120, 120, 120))
    cremi_zarr(tmp_path / "big.zarr", (130, 140, 140), labels=False)
    return tmp_path


@pytest.fixture
def type_in(desk: Path) -> Type:
    """Types a line there; what it printed. It must end well."""

    def typed(line: str) -> str:
        done = subprocess.run(["bash", "-c", line], cwd=desk, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout

    return typed


def test_every_init_of_the_pages_is_typed_here() -> None:
    found = {c.line for c in commands() if c.program == "lsdflow" and c.words[1:2] == ("init",) and len(c.words) > 4}
    known = {INIT, INIT_TRY, INIT_CLUSTER, INIT_OWN, INIT_NETWORK, INIT_CHECKPOINT, f"{INIT} --profile general"}
    assert {line for line in found if not line.startswith(SYNOPSIS)} == known


def test_a_network_that_comes_with_lsdflow_is_copied_into_the_experiment(desk: Path, type_in: Type) -> None:
    assert INIT_NETWORK.split("`", maxsplit=1)[0] in page("README.md")
    assert "no problems found" in type_in(INIT_NETWORK)
    assert (desk / "exp" / "networks" / "fib-sem" / "weights.safetensors").is_file()


def test_a_network_that_was_trained_elsewhere_leaves_its_training_out(desk: Path, type_in: Type) -> None:
    assert f"`{INIT_CHECKPOINT}`" in page(TRAIN)
    shutil.copytree(CHECKPOINT, desk / "FOLDER")
    cremi_zarr(desk / "big.zarr", (130, 140, 140), size_nm=10, labels=False, overwrite=True)
    type_in(f"bin/{INIT_CHECKPOINT}")
    assert "train-acrlsd" not in json.loads(type_in("bin/lsdflow status exp --json"))


@pytest.mark.slow
def test_your_own_data_from_init_to_prepare(desk: Path, type_in: Type) -> None:
    lines = list(shell_lines(page(OWN_DATA)))
    assert lines == [INIT, "bin/lsdflow validate exp", "bin/lsdflow run exp --to prepare", "bin/prepare status -e exp"]
    proposed = [line for line in type_in(lines[0]).splitlines() if line.startswith("  ")]
    assert {line.split()[0] for line in proposed} >= {"experiment.profile", "compute.workers", "watershed.block_shape"}
    assert all("    # " in line for line in proposed), "README: proposes sizes with reasons"
    assert unexplained(desk / "exp") == [], "README: every option explained"
    assert "no problems found" in type_in(lines[1])
    type_in(lines[2])
    output = type_in(lines[3])
    for words in ("finished: True", "training labelled-0: made", "target: made"):
        assert words in output


@pytest.mark.slow
def test_a_small_trial_beside_it_and_the_general_size(desk: Path, type_in: Type) -> None:
    assert f"`{INIT_TRY}`" in page(OWN_DATA)
    type_in(INIT_TRY)
    roi = {"offset": "0, 0, 0 vox", "shape": "100, 100, 100 vox"}
    file = desk / "try" / "experiment.toml"
    text = file.read_text(encoding="utf-8")
    target = '[prepare.target]\nraw = "../big.zarr"\n'
    assert target in text
    file.write_text(text.replace(target, target + "roi = " + json.dumps(roi).replace('":', '" =')), encoding="utf-8")
    assert "no problems found" in type_in("bin/lsdflow validate try")
    first, second, *_ = shell_lines(page(TRAIN))
    assert (first, second) == (f"{INIT} --profile general", "bin/lsdflow validate exp")
    assert "experiment.profile" not in type_in(first), "what was said is not proposed"
    assert 'profile = "general"\n' in (desk / "exp" / "experiment.toml").read_text(encoding="utf-8")
    assert "no problems found" in type_in(second)


def test_an_experiment_for_a_cluster(desk: Path, type_in: Type) -> None:
    """With this folder's `shared` for /shared, where tests have nothing to write."""
    assert INIT_CLUSTER in shell_lines(page("README.md"))
    type_in(INIT_CLUSTER.replace("/shared", f"{desk}/shared"))
    tables = tomllib.loads((desk / "shared" / "me" / "exp" / "experiment.toml").read_text(encoding="utf-8"))
    assert tables["cluster"] == {"images": f"{desk}/shared/images"}


@pytest.mark.slow
def test_from_a_clone_the_divided_volume_is_one_that_validate_and_plan_take(desk: Path, type_in: Type) -> None:
    cremi_zarr(desk / "labelled.zarr", (250, 250, 250), 10, overwrite=True)
    lines = [line for line in shell_lines(page(CLONE)) if line.split()[1] in ("init", "validate", "plan")]
    assert lines == [INIT_OWN, "bin/lsdflow validate own", "bin/lsdflow plan own"]
    output = type_in(lines[0])
    assert "validation_fraction = 0.15" in page(CLONE)
    assert "train-acrlsd.validation_fraction = 0.15" in output
    put_in(desk / "own" / "experiment.toml", *tables_of(CLONE))
    assert "no problems found" in type_in(lines[1])
    type_in(lines[2])
    plan = json.loads((desk / "own" / "plan.json").read_text(encoding="utf-8"))
    assert plan["stages"]["prepare"]["voxels"]["value"] == (150 + 250) * 250**2, "trained on z < 150, all segmented"
    for stage, answer in plan["stages"].items():
        assert "table of machines" in answer["seconds"]["from"], stage
        assert answer["seconds"]["value"] > 0, stage


def put_in(file: Path, in_table: str, at_the_end: str) -> None:
    """As the page says: one line more in a table that is there, the other tables at the end."""
    first, *_, last = in_table.strip().splitlines()
    there = in_table.replace(last, "").strip()
    text = file.read_text(encoding="utf-8")
    assert text.count(there) == text.count(first) == 1
    file.write_text(f"{text.replace(there, in_table.strip())}\n{at_the_end}", encoding="utf-8")


def unexplained(folder: Path) -> list[str]:
    """Keys of the schema's tables, and of those of volumes, that the file does not have in their place.

    Tables of [cluster] for single stages are not written.
    """
    text = (folder / "experiment.toml").read_text(encoding="utf-8")
    written: dict[str, set[str]] = {}
    for heading, below in re.findall(r"^\[+([\w.-]+)\]+\n(.*?)(?=^\[|\Z)", text, re.MULTILINE | re.DOTALL):
        written.setdefault(heading, set()).update(re.findall(r"^(?:# )?([\w-]+) =", below, re.MULTILINE))
    schemas = json.loads((folder / "experiment.schema.json").read_text(encoding="utf-8"))["properties"]
    volumes = schemas["prepare"]["properties"]
    wanted = {**schemas, "prepare.training": volumes["training"]["items"], "prepare.target": volumes["target"]}
    return [f"{table}.{key}" for table, about in wanted.items() for key in plain_keys(about) - written[table]]


def plain_keys(schema: dict[str, Any]) -> set[str]:
    """Keys of a table that are none themselves."""
    return {key for key, about in schema["properties"].items() if '"properties"' not in json.dumps(about)}


def _whole(shape: tuple[int, int, int], size_nm: tuple[float, float, float], **more: Any) -> dict[str, Any]:
    return {"shape_vox": list(shape), "voxel_size_nm": list(size_nm), "offset_nm": [0.0, 0.0, 0.0], **more}


def _lot_of_labels(folder: Path) -> None:
    cremi_zarr(folder / "a.zarr", (24, 520, 520))


def _fine(folder: Path) -> None:
    cremi_zarr(folder / "fine.zarr", (24, 24, 24), size_nm=4, labels=False)


def _big(folder: Path) -> None:
    cremi_zarr(folder / "big.zarr", (450, 512, 512), labels=False)


# By a name in the block: what makes its volumes, and what prepare must make of them.
BLOCKS: dict[str, tuple[Callable[[Path], None], dict[str, dict[str, Any]]]] = {
    "slices/": (tiffs, {"training/cube": _whole((12, 24, 24), (30, 6, 6), neurons=4), "target": {"format": "tiff"}}),
    "sample_A.hdf": (hdf5, {"training/a": _whole((24, 24, 24), (40, 4, 4), labelled_voxels=16**3)}),
    "volume.n5": (
        n5_and_others,
        {
            "training/n5": _whole((12, 16, 24), (8, 6, 4), neurons=2),
            "training/ome": _whole((12, 16, 24), (30, 8, 8), neurons=2),
            "target": _whole((12, 16, 24), (8, 8, 8), format="precomputed"),
        },
    ),
    "fine.zarr": (_fine, {"target": _whole((12, 12, 12), (8, 8, 8))}),
    "exm.tif": (expanded, {"target": _whole((12, 24, 24), (25, 9.375, 9.375))}),
    "ignore_ids": (_lot_of_labels, {"training/a": {"shape_vox": [24, 520, 520]}}),
    "big.zarr": (_big, {"target": {"shape_vox": [250, 512, 512], "offset_nm": [1600.0, 0.0, 0.0]}}),
}


def _blocks() -> Iterator[tuple[str, str]]:
    for text in tables_of(OWN_DATA):
        if "prepare" in tomllib.loads(text):
            (name,) = (name for name in BLOCKS if name in text)
            yield name, text


def test_there_is_a_volume_for_every_table_of_the_page() -> None:
    assert [name for name, _ in _blocks()] == list(BLOCKS)


@pytest.mark.parametrize(("name", "text"), [pytest.param(*block, id=block[0]) for block in _blocks()])
def test_prepare_makes_of_the_tables_what_the_page_says(tmp_path: Path, name: str, text: str) -> None:
    make, wanted = BLOCKS[name]
    make(tmp_path)
    (tmp_path / "experiment.toml").write_text(text, encoding="utf-8")
    done = CliRunner().invoke(prepare, ["run", "-e", str(tmp_path)])
    assert done.exit_code == 0, done.output
    made = read_manifest(ExperimentLayout(tmp_path), "prepare").facts["volumes"]
    assert {label: {key: made[label][key] for key in facts} for label, facts in wanted.items()} == wanted
    assert set(made) == set(wanted)


def test_without_sparse_chunks_that_were_never_written_are_lost_data(tmp_path: Path) -> None:
    ((_, text),) = (block for block in _blocks() if block[0] == "volume.n5")
    n5_and_others(tmp_path)
    (tmp_path / "experiment.toml").write_text(text.replace("sparse = true", "sparse = false"), encoding="utf-8")
    done = CliRunner().invoke(prepare, ["run", "-e", str(tmp_path), "--json"])
    assert done.exit_code == 65, done.output
    assert "precomputed" in done.output


def test_a_voxel_size_that_nobody_gives_is_asked_for(tmp_path: Path) -> None:
    tiffs(tmp_path)
    (tmp_path / "experiment.toml").write_text('[prepare.target]\nraw = "slices/"\n', encoding="utf-8")
    done = CliRunner().invoke(prepare, ["validate", "-e", str(tmp_path), "--json"])
    (problem,) = json.loads(done.stdout.splitlines()[-1])
    assert (done.exit_code, problem["exit_code"], problem["error"]) == (65, 65, "NoVoxelSize")
    assert "slices" in problem["where"]
