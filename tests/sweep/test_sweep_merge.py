"""A merged sweep: right means, every run that is missing or failed flagged, tables that say so."""

from __future__ import annotations

import csv
import re
import shutil
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lsdflow_command.experiment_lock import experiment_lock
from lsdflow_contract.errors import ContractMismatch
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.files import read_json, write_json
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.sealing import read_sealed, write_sealed
from lsdflow_launch.cli import app
from lsdflow_launch.sweep.file import load_sweep
from lsdflow_launch.sweep.folder import SweepFolder, open_sweep, write_folders
from lsdflow_launch.sweep.merge import merged
from lsdflow_launch.sweep.run import SweepRunner
from lsdflow_launch.sweep.table import markdown, write_merged

from .conftest import FakeStages

# voi of the fake stages is threshold + seed.
GRID = "[axes]\n'segment.threshold' = [0.2, 0.4]\n'experiment.seed' = [0, 1, 2]\n"


@pytest.fixture
def sweep(sweep_file: Callable[[str], Path]) -> SweepFolder:
    found = load_sweep(sweep_file(GRID))
    return write_folders(found, found.default_folder)


def run(sweep: SweepFolder, *numbers: int, fails: Callable[[str, Experiment], int] | None = None) -> None:
    runs = [run for run in sweep.plan.runs if run.number in numbers]
    SweepRunner(sweep, FakeStages(fails) if fails else FakeStages()).run_all(runs)


def seed_2_fails(stage: str, experiment: Experiment) -> int:
    return 65 if (stage, experiment.common.seed) == ("segment", 2) else 0


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_means_and_deviations_over_seeds_are_right(sweep: SweepFolder, tmp_path: Path) -> None:
    run(sweep, *range(1, 7))
    found = merged([sweep])
    assert [mean.state for mean in found.means] == ["complete", "complete"]
    write_merged(found, tmp_path)
    low, high = found.means
    assert low.mean("voi") == pytest.approx(statistics.fmean([0.2, 1.2, 2.2]))
    assert high.deviation("voi") == pytest.approx(1.0)
    assert (low.at, low.done, low.state) == ({"segment.threshold": "0.2"}, 3, "complete")
    assert [float(row["voi"]) for row in rows(tmp_path / "runs.csv")] == [0.2, 1.2, 2.2, 0.4, 1.4, 2.4]
    assert found.best is not None
    assert found.best.at == {"segment.threshold": "0.2"}
    assert "lowest voi: 1.2 at segment.threshold = 0.2" in markdown(found)


@pytest.mark.proves("SWP-06")
def test_missing_and_failed_runs_are_flagged_and_no_part_of_a_mean(sweep: SweepFolder, tmp_path: Path) -> None:
    run(sweep, 1, 2, 3, fails=seed_2_fails)
    found = merged([sweep])
    assert found.counts == {"done": 2, "failed": 1, "running": 0, "missing": 3}
    assert [mean.state for mean in found.means] == ["partial", "missing"]
    assert found.means[0].mean("voi") == pytest.approx(0.7)
    assert found.best is None, "a partial mean wins nothing"
    write_merged(found, tmp_path)
    assert [row["status"] for row in rows(tmp_path / "runs.csv")] == ["done", "done", "failed", *["missing"] * 3]
    assert rows(tmp_path / "runs.csv")[2]["failed stage"] == "segment"
    text = (tmp_path / "table.md").read_text()
    assert "2 of 6 runs done, 1 failed, 3 missing" in text
    assert re.search(r"\| 0\.2 \| 0\.7 ± 0\.71 \|.* 2 of 3 \| partial \|", text)
    assert "| threshold-0.2_seed-2 | failed | segment | segment broke |" in text
    page = (tmp_path / "index.html").read_text()
    assert '<td class="partial">partial</td>' in page
    assert page.count("<meter") == 1


def test_where_all_runs_of_a_mean_failed_it_is_failed(sweep: SweepFolder) -> None:
    run(sweep, 3, fails=seed_2_fails)
    found = merged([sweep])
    assert [mean.state for mean in found.means] == ["failed", "missing"]


def test_before_any_run_is_done_the_tables_exist(sweep: SweepFolder, tmp_path: Path) -> None:
    write_merged(merged([sweep]), tmp_path)
    assert "<meter" not in (tmp_path / "index.html").read_text()
    assert len(rows(tmp_path / "runs.csv")) == 6


@pytest.mark.proves("SWP-06")
def test_folders_of_servers_without_shared_storage_become_one_table(
    sweep: SweepFolder, sweep_file: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    other = write_folders(load_sweep(sweep_file(GRID)), sweep.root.with_name("second"))
    run(sweep, 1, 2, 3, fails=seed_2_fails)
    run(other, 2, 3, 4, 5, 6)
    found = merged([sweep, other])
    assert found.counts["done"] == 6, "what one server failed at, the other has done"
    assert [mean.mean("voi") for mean in found.means] == pytest.approx([1.2, 1.4])
    assert "made twice" not in caplog.text
    path = other.run_folder(other.plan.runs[1]) / "report" / "scores.json"
    write_sealed(path, {**read_sealed(path, fix=""), "voi": 9.9})
    assert merged([sweep, other]).rows[1].scores["voi"] == 1.2
    assert "made twice, with different scores" in caplog.text


def test_a_copy_of_the_folders_without_the_base_has_the_same_table(sweep: SweepFolder, tmp_path: Path) -> None:
    run(sweep, 1, 2, 3, fails=seed_2_fails)
    copy = tmp_path / "elsewhere" / "grid"
    shutil.copytree(sweep.root, copy, symlinks=True)
    found, wanted = merged([open_sweep(copy)]), merged([sweep])
    assert [(row.status, row.scores) for row in found.rows] == [(row.status, row.scores) for row in wanted.rows]


def test_folders_of_different_grids_are_refused(sweep: SweepFolder, sweep_file: Callable[[str], Path]) -> None:
    other = load_sweep(sweep_file("[axes]\n'segment.threshold' = [0.2, 0.4]\n"))
    with pytest.raises(ContractMismatch, match="different sweeps"):
        merged([sweep, write_folders(other, sweep.root.with_name("second"))])


@pytest.mark.proves("SWP-07")
def test_status_and_merge_say_what_there_is_by_server_and_part(sweep: SweepFolder) -> None:
    def output_of(code: int, *arguments: str) -> str:
        done = CliRunner().invoke(app, ["sweep", *arguments])
        assert done.exit_code == code, done.output
        return done.output

    run(sweep, 1, 2, 3, fails=seed_2_fails)
    with experiment_lock(ExperimentLayout(sweep.run_folder(sweep.plan.runs[4]))):
        text = output_of(0, "status", str(sweep.root), "--parts", "2")
    assert "2 of 6 runs done, 1 failed, 1 running, 2 missing" in text
    assert "part 1/2: 3 runs, 1 done, 1 failed, 1 running" in text
    assert "part 2/2: 3 runs, 1 done, 2 missing" in text
    assert "failed: threshold-0.2_seed-2: segment: segment broke" in text
    assert "merged/index.html" in output_of(79, "merge", str(sweep.root))
    run(sweep, *range(1, 7))
    assert "6 of 6 runs done" in output_of(0, "merge", str(sweep.root))
    assert '"done": 6' in output_of(0, "status", str(sweep.root), "--json")


def test_of_two_failures_of_a_run_the_last_counts(sweep: SweepFolder, sweep_file: Callable[[str], Path]) -> None:
    other = write_folders(load_sweep(sweep_file(GRID)), sweep.root.with_name("second"))
    for folder, code, started in ((sweep, 65, 100.0), (other, 66, 200.0)):
        run(folder, 3, fails=lambda stage, _experiment, code=code: code if stage == "segment" else 0)
        (outcome,) = folder.run_folder(folder.plan.runs[2]).glob("runs/segment/*/outcome.json")
        write_json(outcome, {**read_json(outcome), "started": started})
    for folders in ([sweep, other], [other, sweep]):
        assert merged(folders).rows[2].exit_code == 66


def test_grids_of_as_many_runs_with_other_values_are_refused(
    sweep: SweepFolder, sweep_file: Callable[[str], Path]
) -> None:
    other = load_sweep(sweep_file(GRID.replace("0.4", "0.5")))
    with pytest.raises(ContractMismatch, match="different sweeps"):
        merged([sweep, write_folders(other, sweep.root.with_name("second"))])


def test_a_run_whose_scores_are_lost_or_damaged_has_failed_until_they_are_written_again(sweep: SweepFolder) -> None:
    run(sweep, 1, 2, 3)
    lost, damaged = (sweep.run_folder(run) / "report" / "scores.json" for run in sweep.plan.runs[:2])
    lost.unlink()
    damaged.write_text(damaged.read_text()[:10])
    found = merged([sweep])
    assert [row.status for row in found.rows[:3]] == ["failed", "failed", "done"]
    assert found.means[0].mean("voi") == pytest.approx(2.2)
    assert {(row.failed_stage, row.exit_code) for row in found.rows[:2]} == {("evaluate", 66), ("evaluate", 65)}
    assert "| evaluate | scores.json: file not found |" in markdown(found)
    stages = FakeStages()
    outcomes = SweepRunner(sweep, stages).run_all(sweep.plan.runs[:3])
    assert set(outcomes.values()) == {"done"}
    assert stages.calls == [("evaluate", path.parents[1].name) for path in (lost, damaged)]
    assert merged([sweep]).counts["done"] == 3


def test_runs_without_the_score_that_is_compared_are_counted(sweep: SweepFolder) -> None:
    run(sweep, 1, 2)
    path = sweep.run_folder(sweep.plan.runs[0]) / "report" / "scores.json"
    write_sealed(path, {"voi": "low", "has_truth": True})
    assert "2 of 6 runs done, 4 missing, 1 without voi" in markdown(merged([sweep]))


def test_the_page_names_the_sweep_marks_the_best_line_and_links_the_report_of_a_run(
    sweep_file: Callable[[str], Path], tmp_path: Path
) -> None:
    sweep = write_folders(load_sweep(sweep_file("[axes]\n'segment.threshold' = [0.4, 0.2]\n")), tmp_path / "grid")
    run(sweep, 1, 2)
    write_merged(merged([sweep]), sweep.root / "merged", "Sweep <grid>")
    page = (sweep.root / "merged" / "index.html").read_text()
    assert "<title>Sweep &lt;grid&gt;</title>" in page
    (best,) = re.findall(r'<tr class="best">(.*?)</tr>', page)
    assert best.startswith("<td>0.2</td><td>0.2</td>")
    (address,) = re.findall(r'href="(.*?)"', best)
    report = sweep.run_folder(sweep.plan.runs[1]) / "report" / "index.html"
    assert (sweep.root / "merged" / address).resolve() == report.resolve()
    assert "<td>21</td>" in best, "seven stages of 3 s"


def test_the_tables_say_why_a_run_failed_whatever_it_says(sweep: SweepFolder, tmp_path: Path) -> None:
    run(sweep, 3, fails=seed_2_fails)
    (outcome,) = sweep.run_folder(sweep.plan.runs[2]).glob("runs/segment/*/outcome.json")
    write_json(outcome, {"exit_code": 65, "error": {"what": "<b> & <i>"}})
    write_merged(merged([sweep]), tmp_path)
    assert rows(tmp_path / "runs.csv")[2]["error"] == "<b> & <i>"
    assert "<td>&lt;b&gt; &amp; &lt;i&gt;</td>" in (tmp_path / "index.html").read_text()
    write_json(outcome, {"exit_code": 65})
    assert "| failed | segment | exit code 65 |" in markdown(merged([sweep]))
