"""The bad-input matrix: a mistake is reported before work starts, with file, field and fix, and nothing is written.

The experiments are real small ones, made by the stages themselves. `docs/bad_input.md` is written from the same cases.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from bad_input.asking import ask, results_changed, without_paths
from bad_input.case import Case, answer_of
from bad_input.cases import CASES
from bad_input.lab import STEPS, Laboratory, edit_json
from bad_input.write_table import TABLE, Rows, table_text

from lsdflow_contract.errors import StageError

MOST_SECONDS = 10
DOCUMENTED = {kind.exit_code for kind in StageError.__subclasses__()} - {StageError.exit_code}


@pytest.fixture(scope="session")
def rows() -> Rows:
    """What the cases answered so far, for the table."""
    return {}


@pytest.mark.parametrize("case", CASES, ids=[case.wrong.replace(" ", "-") for case in CASES])
def test_a_bad_input_is_refused_with_file_field_and_fix(case: Case, laboratory: Laboratory, rows: Rows) -> None:
    answer, lab = answer_of(case, laboratory)
    text = without_paths(answer.text, lab.root)
    rows[case.wrong] = text
    assert not answer.crash, answer.crash
    assert answer.exit_code == case.exit_code, text
    assert [word for word in case.says if word not in text] == [], text
    changed = results_changed(answer) if "run" in case.command else list(answer.changed)
    assert changed == []
    # A process of its own first imports every stage.
    assert answer.core_seconds <= MOST_SECONDS * (2 if case.unprivileged else 1)


def test_the_matrix_holds_at_least_sixty_cases_each_once() -> None:
    assert len(CASES) >= 60
    assert len({case.wrong for case in CASES}) == len(CASES)
    assert {case.exit_code for case in CASES} <= DOCUMENTED


@pytest.mark.parametrize("after", STEPS)
def test_the_unspoilt_experiment_has_no_problem(after: str, laboratory: Laboratory) -> None:
    lab = laboratory.lab(after)
    answer = ask(["lsdflow", "validate", str(lab.toml.parent)], lab.root, training=False)
    assert (answer.exit_code, answer.text.strip().splitlines()[-1]) == (0, "no problems found")
    assert answer.changed == ()


def test_training_stages_find_no_problem_in_the_unspoilt_experiment(laboratory: Laboratory) -> None:
    lab = laboratory.lab("train")
    for stage in ("train-lsd", "train-acrlsd"):
        lab.layout.manifest(stage).unlink()  # networks that were imported need no training, and no check of it
    answer = ask(["lsdflow", "validate", str(lab.toml.parent)], lab.root, training=True)
    assert (answer.exit_code, answer.text.strip().splitlines()[-1]) == (0, "no problems found")


def test_what_cannot_be_checked_yet_is_listed_by_the_stage_that_it_needs(laboratory: Laboratory) -> None:
    lab = laboratory.lab()
    lab.set("predict", mask="volumes/labels/mask", checkpoint=5)
    folder = str(lab.toml.parent)
    text = ask(["lsdflow", "validate", folder], lab.root, training=False).text
    assert "not checked before prepare: grey values, ids and masks of all voxels" in text
    answer = json.loads(ask(["lsdflow", "validate", folder, "--json"], lab.root, training=False).text)["not_checked"]
    assert list(answer) == ["prepare", "train-lsd", "train-acrlsd", "agglomerate"]
    assert "predict.mask" in answer["prepare"]
    assert "predict.checkpoint" in answer["train-acrlsd"]
    done = laboratory.lab("segment")
    left = ask(["lsdflow", "validate", str(done.toml.parent), "--json"], done.root, training=False)
    assert json.loads(left.text)["not_checked"] == {}


def test_a_valid_experiment_is_shown_with_what_its_volumes_contain(laboratory: Laboratory) -> None:
    lab = laboratory.lab()
    text = ask(["lsdflow", "validate", str(lab.toml.parent)], lab.root, training=False).text
    (line,) = re.findall("^training/a: .*$", text, re.MULTILINE)
    assert " voxels of 10 x 8 x 8 nm, zarr 2 uint8, grey values " in line
    answer = ask(["lsdflow", "validate", str(lab.toml.parent), "--json"], lab.root, training=False)
    volumes = json.loads(answer.text)["volumes"]
    assert f"; {volumes['training/a']['labels']['neurons']} neurons" in line
    assert "target" in volumes


def test_settings_and_unreadable_volumes_are_reported_together(laboratory: Laboratory) -> None:
    lab = laboratory.lab()
    lab.set_training(raw_dataset="volumes/row")
    lab.set("watershed", block_shape="100 nm")
    answer = json.loads(ask(["lsdflow", "validate", str(lab.toml.parent), "--json"], lab.root, training=False).text)
    assert "volumes/row" in json.dumps(answer["prepare"])
    assert "watershed.block_shape" in answer["watershed"][0]["what"], "the target could be opened"
    assert answer["not_checked"]["prepare"][0].endswith("volumes that cannot be opened")


def test_five_problems_of_an_experiment_are_listed_at_once(laboratory: Laboratory) -> None:
    """Two in volumes, three in tables of three stages; the exit code is that of the first."""
    lab = laboratory.lab("prepare")
    edit_json(lab.source("train", "volumes/raw") / ".zattrs", resolution=None)
    lab.set_target(raw_dataset="volumes/row")
    lab.set("watershed", context="-4 vox")
    lab.set("agglomerate", merge_functions=["medium"])
    lab.set("segment", thresholds_step=0.0)
    answer = ask(["lsdflow", "validate", str(lab.toml.parent)], lab.root, training=False)
    assert answer.exit_code == 65
    assert answer.changed == ()
    wanted = (
        "voxel size",
        "volumes/row",
        "watershed.context",
        "agglomerate.merge_functions",
        "segment.thresholds_step",
    )
    assert [word for word in wanted if word not in answer.text] == []
    answer = ask(["lsdflow", "validate", str(lab.toml.parent), "--json"], lab.root, training=False)
    found = json.loads(answer.text.split("\n")[0])
    assert list(found.pop("not_checked")) == ["train-lsd", "train-acrlsd", "agglomerate"], "prepare has finished"
    problems = [problem for listed in found.values() for problem in listed]
    assert {problem["exit_code"] for problem in problems} == {65, 66, 78}
    assert len(problems) == len(wanted)


def test_a_name_with_quotes_blanks_and_a_command_is_a_name(laboratory: Laboratory, tmp_path: Path) -> None:
    """What a shell would run is only a file name: the volume is read, and nothing is executed."""
    lab = laboratory.lab()
    odd = f"a b'\"$(touch {'x' * 3}) µ;é.zarr"
    (lab.root / "input" / "train.zarr").rename(lab.root / "input" / odd)
    lab.set_training(raw=f"../input/{odd}")
    answer = ask(["lsdflow", "validate", str(lab.toml.parent)], lab.root, training=False)
    assert (answer.exit_code, answer.changed) == (0, ())
    assert not Path("xxx").exists()


def test_the_table_of_messages_in_the_documentation_is_up_to_date(laboratory: Laboratory, rows: Rows) -> None:
    """Run alone, this asks every case; else it takes the answers of the tests above."""
    found, there = table_text(laboratory, rows).splitlines(), TABLE.read_text(encoding="utf-8").splitlines()
    changed = [line for line in found if line not in there] + [line for line in there if line not in found]
    assert changed == [], "write it again: .venv/blocks/bin/python tests/bad_input/write_table.py"
    assert found == there
