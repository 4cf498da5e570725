"""`lsdflow plan`: every number is scaled from something measured and says from what; what is not known is left out.

The stages are fakes with the same answers; tests/runtime/test_measured_block.py measures real blocks.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from lsdflow_contract.errors import ConfigError, MissingInput
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_launch.cli import app
from lsdflow_launch.output import duration, money, plain_console, size
from lsdflow_launch.planning import cli as plan_cli
from lsdflow_launch.planning import evidence as evidence_module
from lsdflow_launch.planning import plan as plan_module
from lsdflow_launch.planning.cli import show_plan, text_of
from lsdflow_launch.planning.evidence import Quantity, record_of, total
from lsdflow_launch.planning.plan import Offer, PlanOptions, Prices, cost_of, make_plan
from lsdflow_launch.planning.resources import FreeSpace, disk_use, free_space, memory_bytes, time_limit_s
from lsdflow_launch.planning.stored import compare, store_plan

Ask = Callable[[str, Sequence[str]], Any]
MIB = 2**20
WATERSHED = {
    "blocks": 10,
    "block_shape_vox": [10, 10, 10],
    "voxels": 10_000,
    "blocks_done": 0,
    "taken": {},
}
TAKEN = {"records": 4, "seconds_per_block": 7.0, "peak_rss_mib": 100.0}
MEASURED = {
    "seconds": 3.0,
    "voxels": 1000,
    "bytes_read": 5000,
    "bytes_written": 400,
    "files": 3,
    "peak_rss_mib": 250.0,
    "host": "n1",
}
NOT_YET = {"exit_code": 66, "what": "the stage watershed has not finished"}


@pytest.fixture(autouse=True)
def _nothing_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans know what the test gives them alone."""
    monkeypatch.setattr(plan_module, "recorded_run", dict)


def make(root: Path, text: str = "") -> Experiment:
    """An experiment file; the stages are never asked for real."""
    root.mkdir(parents=True)
    (root / "experiment.toml").write_text('[experiment]\nmode = "mtlsd"\n' + text)
    return load_experiment(root)


def finish(experiment: Experiment, stage: str, seconds: float = 50.0, **facts: Any) -> None:
    """The manifest and the outcome of a stage that has finished."""
    manifest = {"contract": "1.0.0", "writer": {"stage": stage, "version": "1"}, "key": "k", "config": {}, "inputs": {}}
    path = experiment.layout.manifest(stage)
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({**manifest, "outputs": {}, "facts": facts, "identity": "i"}))
    runs = experiment.layout.stage_runs(stage) / "20260101T000000-1"
    runs.mkdir(parents=True)
    (runs / "outcome.json").write_text(json.dumps({"exit_code": 0, "seconds": seconds}))


def answers(watershed: dict[str, Any] | None = None, measured: dict[str, Any] | None = None) -> Ask:
    """Stages of which only watershed can run; by folder where the experiments differ."""

    def ask(stage: str, arguments: Sequence[str]) -> Any:
        if stage == "prepare":
            volume = {"shape_vox": [10, 100, 100], "bytes_expected": 1_000_000, "done": False}
            return {"target": volume}
        if stage != "watershed":
            return NOT_YET
        return dict(watershed or WATERSHED) if arguments[0] == "plan" else dict(measured or NOT_YET)

    return ask


def test_a_measured_block_is_scaled_to_all_voxels_and_says_where_it_was_measured(tmp_path: Path) -> None:
    experiment = make(tmp_path / "a", "[compute]\nworkers = 5\nthreads_per_worker = 2\n")
    found = make_plan(experiment, PlanOptions(measure=True), answers(measured=MEASURED)).estimates["watershed"]
    assert found["seconds"].value == pytest.approx(30.0)
    assert found["seconds"].source == "one block measured on n1"
    # five workers at a time, and the start of the command, which is next to nothing here
    assert 6.0 <= (found["walltime_s"].value or 0) < 7.0
    assert found["cpu_hours"].value == pytest.approx(30.0 * 2 / 3600)
    assert found["bytes_read"].value == 50_000
    assert found["bytes_written"].value == 4000
    assert found["files"].value == 30
    assert found["rss_per_worker_bytes"].value == 250 * MIB
    assert list(experiment.layout.root.glob(".measure*")) == []


def test_nothing_is_guessed_where_nothing_was_measured(tmp_path: Path) -> None:
    found = make_plan(make(tmp_path / "a"), PlanOptions(), answers())
    watershed = found.estimates["watershed"]
    for name in ("seconds", "walltime_s", "cpu_hours", "bytes_read", "bytes_written", "files", "rss_per_worker_bytes"):
        assert watershed[name].value is None, name
        assert watershed[name].source
    assert watershed["blocks"].value == 10
    assert found.estimates["segment"]["walltime_s"].source == "the stage watershed has not finished"
    assert found.left("cpu_hours").value is None


def test_finished_blocks_go_before_a_measured_one_and_that_before_another_experiment(tmp_path: Path) -> None:
    here, other = make(tmp_path / "a"), make(tmp_path / "b")
    finish(other, "watershed", blocks=10, seconds_in_blocks=110.0, peak_rss_mib=900.0)
    both = PlanOptions(measure=True, like=other.layout.root)
    begun = {**WATERSHED, "blocks_done": 4, "taken": TAKEN}
    estimated = make_plan(here, both, answers(begun, MEASURED)).estimates["watershed"]
    assert estimated["seconds"].value == pytest.approx(70.0)
    assert estimated.share_left == pytest.approx(0.6)
    assert make_plan(here, both, answers(measured=MEASURED)).estimates["watershed"]["seconds"].value == pytest.approx(
        30
    )
    like = make_plan(here, PlanOptions(like=other.layout.root), answers()).estimates["watershed"]
    assert like["seconds"].value == pytest.approx(110.0)
    assert str(other.layout.root) in like["seconds"].source


def test_another_experiment_is_scaled_by_voxels_and_its_memory_by_those_of_a_block(tmp_path: Path) -> None:
    here, other = make(tmp_path / "a"), make(tmp_path / "b")
    finish(other, "watershed", blocks=10, seconds_in_blocks=110.0, peak_rss_mib=900.0)
    (other.layout.results / "watershed").mkdir(parents=True)
    (other.layout.results / "watershed" / "0").write_bytes(b"x" * 600)

    def ask(stage: str, arguments: Sequence[str]) -> Any:
        mine = {**WATERSHED, "blocks": 2, "voxels": 40_000, "voxels_read_with_context": 48_000}
        mine["block_shape_vox"] = [10, 10, 200]
        other = {**WATERSHED, "voxels_read_with_context": 12_000}
        return answers(mine if str(here.path) in arguments else other)(stage, arguments)

    found = make_plan(here, PlanOptions(like=other.layout.root), ask).estimates["watershed"]
    assert found["seconds"].value == pytest.approx(440.0)
    assert "of another shape" in found["seconds"].source
    assert found["bytes_written"].value == pytest.approx(2400)
    # 750 MiB beyond the process itself for 1200 voxels of a block; here a block reads 24 000
    assert found["rss_per_worker_bytes"].value == pytest.approx((150 + 20 * 750) * MIB)
    assert "another shape" in found["rss_per_worker_bytes"].source


def test_the_time_outside_the_blocks_is_that_of_the_other_experiment_and_unknown_without_it(tmp_path: Path) -> None:
    here, other = make(tmp_path / "a"), make(tmp_path / "b", "[compute]\nworkers = 4\n")
    # 200 s of runs, of which 4 workers spent 25 in blocks
    finish(other, "watershed", seconds=200.0, blocks=10, seconds_in_blocks=100.0, peak_rss_mib=1.0)
    like = make_plan(here, PlanOptions(like=other.layout.root), answers()).estimates["watershed"]["walltime_s"]
    assert like.value == pytest.approx(100 / 2 + 175)
    begun = {**WATERSHED, "blocks_done": 4, "taken": TAKEN}
    alone = make_plan(here, PlanOptions(), answers(begun)).estimates["watershed"]["walltime_s"]
    assert (alone.value, alone.at_least) == (pytest.approx(35.0), True)


def test_a_stage_whose_inputs_are_not_there_yet_is_planned_from_descriptions_of_them(tmp_path: Path) -> None:
    here, other = make(tmp_path / "a"), make(tmp_path / "b")
    finish(other, "watershed", blocks=10, seconds_in_blocks=100.0, peak_rss_mib=1.0)

    def ask(stage: str, arguments: Sequence[str]) -> Any:
        mine, described = str(here.path) in arguments, "--descriptions" in arguments
        if stage == "watershed" and mine:
            return {**WATERSHED, "blocks": 100, "voxels": 100_000} if described else NOT_YET
        return answers()(stage, arguments)

    found = make_plan(here, PlanOptions(like=other.layout.root), ask).estimates["watershed"]
    assert found["seconds"].value == pytest.approx(1000.0)
    assert (found["blocks"].value, found.share_left) == (100, 1)


def test_a_recorded_run_is_used_where_nothing_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = make(tmp_path / "b")
    finish(other, "watershed", blocks=10, seconds_in_blocks=100.0, peak_rss_mib=1.0)
    made = {"watershed": record_of(other, "watershed", WATERSHED, evidence_module.RECORDED_RUN)}
    file = tmp_path / "recorded_run.json"
    file.write_text(evidence_module.text_of(made, "a machine of the lab"))
    monkeypatch.setattr(evidence_module, "files", lambda _package: tmp_path)
    monkeypatch.setattr(plan_module, "recorded_run", evidence_module.recorded_run)
    assert evidence_module.recorded_run() == made
    plan = make_plan(make(tmp_path / "a"), PlanOptions(), answers({**WATERSHED, "voxels": 20_000}))
    assert plan.estimates["watershed"]["seconds"].value == pytest.approx(200.0)
    show_plan(plan, plain_console(file=(text := io.StringIO())))
    assert "the recorded run: a machine of the lab" in text.getvalue()


def test_a_larger_network_takes_longer_by_its_multiplications(tmp_path: Path) -> None:
    here, other = make(tmp_path / "a"), make(tmp_path / "b")
    finish(other, "watershed", blocks=10, seconds_in_blocks=100.0, peak_rss_mib=1.0)

    def ask(stage: str, arguments: Sequence[str]) -> Any:
        work = 6e9 if str(here.path) in arguments else 2e9
        return answers({**WATERSHED, "multiply_adds": work})(stage, arguments)

    found = make_plan(here, PlanOptions(like=other.layout.root), ask).estimates["watershed"]
    assert found["seconds"].value == pytest.approx(300.0)


def test_what_finished_blocks_read_and_held_of_a_gpu_comes_from_their_attempts(tmp_path: Path) -> None:
    experiment = make(tmp_path / "a")
    attempts = experiment.layout.stage_runs("watershed") / "attempts"
    attempts.mkdir(parents=True)
    rows = [("done", 4000, 7), ("failed", 999_999, 999), ("done", 6000, 9)]
    lines = (f"{n}\t1.0\tkeyofthework\t\t{o}\t1\t1\t1\t1\t{r}\t1\tH\t{g}\t\n" for n, (o, r, g) in enumerate(rows))
    (attempts / "20260101T000000-1-n1.tsv").write_text("".join(lines))
    begun = {**WATERSHED, "blocks_done": 2, "taken": TAKEN, "key": "keyoftheworkandmore"}
    found = make_plan(experiment, PlanOptions(), answers(begun)).estimates["watershed"]
    assert found["bytes_read"].value == pytest.approx(5000 * 10)
    assert found["vram_per_worker_bytes"].value == 9
    on_gpus = ["cluster.watershed.worker_gres=gpu:1"]
    assert make_plan(load_experiment(experiment.path, on_gpus), PlanOptions(), answers(begun)).estimates["watershed"][
        "seconds"
    ].value == pytest.approx(70.0)
    path = attempts / "20260101T000000-1-n1.tsv"
    path.write_text(path.read_text().replace("\t7\t\n", "\t0\t\n").replace("\t9\t\n", "\t0\t\n"))
    without = make_plan(load_experiment(experiment.path, on_gpus), PlanOptions(), answers(begun)).estimates["watershed"]
    assert (without["seconds"].value, "done on the CPU" in without["seconds"].source) == (None, True)
    other = make_plan(experiment, PlanOptions(), answers({**begun, "key": "another"})).estimates["watershed"]
    assert other["bytes_read"].value is None


def test_an_experiment_that_has_finished_nothing_teaches_nothing(tmp_path: Path) -> None:
    here, other = make(tmp_path / "a"), make(tmp_path / "b")
    with pytest.raises(MissingInput, match="no stage of that experiment has finished"):
        make_plan(here, PlanOptions(like=other.layout.root), answers())


def test_a_block_measured_on_the_cpu_says_nothing_of_workers_with_gpus(tmp_path: Path) -> None:
    experiment = make(tmp_path / "a", '[cluster.predict]\nworkers = 4\nworker_gres = "gpu:a100:1"\n')

    def ask(stage: str, arguments: Sequence[str]) -> Any:
        if stage != "predict":
            return NOT_YET
        plan = {**WATERSHED, "device": "cpu", "device_memory_per_worker_bytes": 12345}
        return plan if arguments[0] == "plan" else {**MEASURED, "device": "cpu"}

    found = make_plan(experiment, PlanOptions(measure=True), ask).estimates["predict"]
    assert found["seconds"].value is None
    assert "measured on the CPU" in found["seconds"].source
    assert found["bytes_written"].value == 4000
    assert found["vram_per_worker_bytes"].value == 12345
    assert "not measured" in found["vram_per_worker_bytes"].source


def test_hours_of_a_cluster_are_reported_by_partition_with_the_workers_at_a_time(tmp_path: Path) -> None:
    table = "workers = 8\nworkers_at_once = 4\nworker_cpus = 3\ncpus = 2\nworker_partition = 'spot'\n"
    experiment = make(tmp_path / "a", f"[cluster.watershed]\n{table}")
    plan = make_plan(experiment, PlanOptions(measure=True), answers(measured={**MEASURED, "seconds": 3600.0}))
    found = plan.estimates["watershed"]
    assert plan.on_slurm
    # 10 blocks of an hour by 4 workers
    assert found["walltime_s"].value == pytest.approx(2.5 * 3600, rel=1e-3)
    # 10 h of workers with 3 cores, and the coordinator's 2 cores for 2.5 h
    assert found["cpu_hours"].value == pytest.approx(30 + 5, rel=1e-3)
    assert plan.by_partition()["spot"]["cpu_hours"].value == pytest.approx(35, rel=1e-3)


def test_limits_of_jobs_and_blocks_that_a_run_would_reach_are_reported(tmp_path: Path) -> None:
    table = 'workers = 1\nworker_mem = "200M"\nworker_time = "30"\ntime = "2:00:00"\n'
    experiment = make(tmp_path / "a", f"[cluster]\nmax_restarts = 1\n[cluster.watershed]\n{table}")
    plan = make_plan(experiment, PlanOptions(measure=True), answers(measured={**MEASURED, "seconds": 3600.0}))
    warnings = " | ".join(warn.what for warn in plan.warnings)
    assert "compute.block_timeout_s is 15 min" in warnings
    assert "a worker needs 262 MB, it asks for 210 MB" in warnings
    assert "no block is ever done" in warnings
    assert "which is not enough" in warnings
    assert not any(warn.certain for warn in plan.warnings)
    quiet = make_plan(make(tmp_path / "b"), PlanOptions(measure=True), answers(measured=MEASURED))
    assert quiet.warnings == []


def test_too_small_a_disk_ends_with_74_only_if_what_is_known_is_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = make(tmp_path / "a")
    finish(experiment, "prepare", seconds=1.0)
    monkeypatch.setattr(plan_cli, "choose_ask", lambda _: answers(measured=MEASURED))

    def code_with(free: int, files: int | None = None) -> tuple[int, str]:
        monkeypatch.setattr(plan_module, "free_space", lambda _: FreeSpace(free, files))
        done = CliRunner().invoke(app, ["plan", str(experiment.layout.root), "--measure"])
        return done.exit_code, done.output

    assert code_with(1_000_000)[0] == 0
    # 4000 bytes are to be written: with a tenth to spare it is too little, but not for certain
    code, text = code_with(4200)
    assert (code, "warning: disk" in text) == (0, True)
    code, text = code_with(3000)
    assert (code, "4 kB are still to be written, 3 kB are free" in text) == (74, True)
    assert code_with(1_000_000, files=20)[0] == 74


def test_prices_come_from_the_users_file_and_a_missing_price_is_reported(tmp_path: Path) -> None:
    experiment = make(tmp_path / "a")
    finish(experiment, "prepare", seconds=1.0)
    (experiment.layout.root / "prices.toml").write_text(
        'currency = "EUR"\nmonths_kept = 2\n[offers.full]\ncpu_hour = 0.1\ngpu_hour = 9\ngb_month = 100\n'
        "[offers.part]\ncpu_hour = 0.1\n"
    )
    plan = make_plan(experiment, PlanOptions(measure=True), answers(measured={**MEASURED, "seconds": 3600.0}))
    written = 4000 * 2 / 1e9 * 100
    assert plan.costs["full"].value == pytest.approx(10 * 0.1 + written, rel=1e-6)
    assert plan.costs["part"].value == pytest.approx(1.0)
    assert plan.costs["part"].at_least
    assert plan.as_dict()["currency"] == "EUR"
    assert make_plan(make(tmp_path / "b"), PlanOptions(), answers()).costs == {}


def test_nothing_is_left_and_costs_nothing_when_all_is_done(tmp_path: Path) -> None:
    experiment = make(tmp_path / "a")
    (experiment.layout.root / "prices.toml").write_text("[offers.full]\ncpu_hour = 1\ngpu_hour = 1\ngb_month = 0\n")
    for stage in ("prepare", "train-acrlsd", "predict", "watershed", "agglomerate", "segment", "evaluate"):
        finish(experiment, stage)
    plan = make_plan(experiment, PlanOptions(), answers())
    assert [plan.left(name).value for name in ("cpu_hours", "gpu_hours", "bytes_written")] == [0, 0, 0]
    assert (plan.costs["full"].value, plan.warnings) == (0, [])


def test_a_wrong_or_missing_file_of_prices_is_refused(tmp_path: Path) -> None:
    experiment, file = make(tmp_path / "a"), tmp_path / "p.toml"
    with pytest.raises(MissingInput):
        make_plan(experiment, PlanOptions(prices=file), answers())
    file.write_text("[offers.spot]\ncpu_hours = 1\n")
    with pytest.raises(ConfigError, match="cpu_hour") as caught:
        make_plan(experiment, PlanOptions(prices=file), answers())
    assert str(file) in caught.value.where


def test_a_plan_is_kept_when_the_stage_has_finished_and_compared_with_what_happened(tmp_path: Path) -> None:
    experiment = make(tmp_path / "a")
    with pytest.raises(MissingInput, match="no plan"):
        compare(experiment, {})
    store_plan(experiment, make_plan(experiment, PlanOptions(measure=True), answers(measured=MEASURED)))
    finish(experiment, "watershed", seconds=45.0, blocks=10, seconds_in_blocks=60.0, peak_rss_mib=500.0)
    over = {**WATERSHED, "blocks_done": 10, "taken": {**TAKEN, "seconds_per_block": 6.0, "peak_rss_mib": 500.0}}
    # made again after the end: the prediction of before stays
    store_plan(experiment, make_plan(experiment, PlanOptions(), answers(over)))
    found = {line.name: line for line in compare(experiment, {"watershed": record_of(experiment, "watershed", over)})}
    assert (found["seconds"].predicted, found["seconds"].actual) == (pytest.approx(30.0), pytest.approx(60.0))
    assert found["seconds"].ratio == pytest.approx(2.0)
    assert found["rss_per_worker_bytes"].ratio == pytest.approx(2.0)
    assert found["walltime_s"].actual == 45.0


def test_before_any_stage_has_finished_there_is_nothing_to_compare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = make(tmp_path / "a")
    monkeypatch.setattr(plan_cli, "choose_ask", lambda _: answers())
    assert CliRunner().invoke(app, ["plan", str(experiment.layout.root)]).exit_code == 0
    done = CliRunner().invoke(app, ["plan", str(experiment.layout.root), "--compare"])
    assert (done.exit_code, "no stage has finished yet" in done.output) == (0, True)
    done = CliRunner().invoke(app, ["plan", str(experiment.layout.root), "--compare", "--json"])
    assert json.loads(done.stdout) == {}


def test_json_keeps_what_stages_plan_and_adds_the_estimates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = make(tmp_path / "a")
    monkeypatch.setattr(plan_cli, "choose_ask", lambda _: answers(measured=MEASURED))
    done = CliRunner().invoke(app, ["plan", str(experiment.layout.root), "--measure", "--json"])
    answer = json.loads(done.stdout)
    assert (answer["watershed"]["blocks"], answer["segment"]["not known yet"]) == (10, NOT_YET["what"])
    assert answer["watershed"]["estimate"]["seconds"] == {"value": 30.0, "from": "one block measured on n1"}
    assert answer["experiment"]["bytes_to_come"]["at_least"] is True
    kept = json.loads(experiment.layout.plan.read_text())
    assert kept["stages"]["watershed"] == answer["watershed"]["estimate"]


def test_a_plan_made_after_the_end_predicts_nothing(tmp_path: Path) -> None:
    experiment = make(tmp_path / "a")
    finish(experiment, "watershed", blocks=10, seconds_in_blocks=60.0, peak_rss_mib=500.0)
    store_plan(experiment, make_plan(experiment, PlanOptions(), answers()))
    found = compare(experiment, {"watershed": record_of(experiment, "watershed", WATERSHED)})
    assert found
    assert all(line.predicted is None for line in found)


def test_a_measurement_that_fails_leaves_no_folder_and_says_why(tmp_path: Path) -> None:
    experiment = make(tmp_path / "a")
    broken = {"exit_code": 65, "what": "the affinities are not finite"}
    found = make_plan(experiment, PlanOptions(measure=True), answers(measured=broken)).estimates["watershed"]
    assert "the affinities are not finite" in found["seconds"].source
    assert [path.name for path in experiment.layout.root.iterdir()] == ["experiment.toml"]


def test_bytes_and_files_are_those_on_the_disk(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    for number, path in enumerate((tmp_path / "a" / "x", tmp_path / "a" / "b" / "y")):
        path.write_bytes(b"z" * (10 + number))
    found = disk_use([tmp_path / "a", tmp_path / "missing"])
    assert (found.files, found.size_bytes, found.complete) == (2, 21, True)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30", 1800), ("30:15", 1815), ("2:00:00", 7200), ("1-12", 129600), ("2-00:30", 174600), ("1-02:03:04", 93784)],
)
def test_time_limits_are_read_as_sbatch_reads_them(text: str, seconds: int) -> None:
    assert time_limit_s(text) == seconds


def test_memory_is_read_as_sbatch_reads_it() -> None:
    assert [memory_bytes(text) for text in ("512", "16G", "2T")] == [512 * MIB, 2**34, 2**41]


def test_numbers_are_worded_for_people() -> None:
    assert [size(n) for n in (0, 999, 999_600, 1.5e12)] == ["0 B", "999 B", "1 MB", "1.5 TB"]
    assert [duration(s) for s in (0.5, 90, 600, 11100, 200_000)] == ["0.5 s", "90 s", "10 min", "3 h 05", "2 d 7 h"]
    assert [money(v) for v in (0, 0.001, 12.345)] == ["0.00", "< 0.01", "12.35"]


def test_no_more_workers_work_than_there_are_blocks(tmp_path: Path) -> None:
    experiment = make(tmp_path / "a", "[compute]\nworkers = 50\n")
    found = make_plan(experiment, PlanOptions(), answers({**WATERSHED, "blocks_done": 4, "taken": TAKEN}))
    assert found.estimates["watershed"]["walltime_s"].value == pytest.approx(7.0)


def test_a_measured_block_counts_by_its_voxels_and_not_as_one_of_the_blocks(tmp_path: Path) -> None:
    half = answers(measured={**MEASURED, "voxels": 500})
    found = make_plan(make(tmp_path / "a"), PlanOptions(measure=True), half).estimates["watershed"]
    assert (found["seconds"].value, found["bytes_written"].value) == (pytest.approx(60.0), 8000)


def test_of_a_stage_that_has_begun_the_disk_is_scaled_and_only_the_rest_is_left(tmp_path: Path) -> None:
    experiment = make(tmp_path / "a")
    (experiment.layout.results / "watershed").mkdir(parents=True)
    (experiment.layout.results / "watershed" / "0").write_bytes(b"x" * 600)
    (experiment.layout.results / "watershed" / "1").write_bytes(b"")
    for stage in ("prepare", "train-acrlsd", "predict", "agglomerate", "segment", "evaluate"):
        finish(experiment, stage)
    plan = make_plan(experiment, PlanOptions(), answers({**WATERSHED, "blocks_done": 4, "taken": TAKEN}))
    found = plan.estimates["watershed"]
    assert (found["bytes_written"].value, found["files"].value) == (1500, 5)
    assert plan.left("seconds").value == pytest.approx(0.6 * 70)
    assert plan.left("bytes_written").value == pytest.approx(900)


def test_of_several_passes_the_most_memory_counts_and_so_it_is_compared(tmp_path: Path) -> None:
    experiment = make(tmp_path / "a")
    uses = [{**TAKEN, "peak_rss_mib": mib} for mib in (300.0, 100.0)]
    passes = {str(n): {**WATERSHED, "blocks_done": 4, "taken": use} for n, use in enumerate(uses)}
    plan = make_plan(experiment, PlanOptions(), answers({**WATERSHED, "passes": passes}))
    assert plan.estimates["watershed"]["rss_per_worker_bytes"].value == 300 * MIB
    store_plan(experiment, plan)
    finish(experiment, "watershed", blocks=10)
    made = {"watershed": record_of(experiment, "watershed", {**WATERSHED, "passes": passes})}
    actual = {line.name: line.actual for line in compare(experiment, made)}
    assert actual["rss_per_worker_bytes"] == 300 * MIB


def test_gpu_hours_are_those_in_which_workers_hold_a_gpu_or_a_part_of_one(tmp_path: Path) -> None:
    hour = answers(measured={**MEASURED, "seconds": 3600.0})
    on_gpus = "[cluster.watershed]\nworkers = 5\nworker_gres = 'gpu:2'\n"
    found = make_plan(make(tmp_path / "a", on_gpus), PlanOptions(measure=True), hour).estimates["watershed"]
    assert found["gpu_hours"].value == pytest.approx(2 * 10, rel=1e-3)
    shared = make(tmp_path / "b", "[compute]\nworkers = 4\n")
    facts = {**WATERSHED, "device": "cuda", "gpus": 1, "blocks_done": 4, "taken": TAKEN}
    # 70 s in blocks of four workers that share one GPU: it is held for 17.5 s
    plan = make_plan(shared, PlanOptions(), answers(facts))
    assert plan.estimates["watershed"]["gpu_hours"].value == pytest.approx(17.5 / 3600)


@pytest.mark.parametrize(
    ("limit", "restarts", "expected"),
    [("1:05:00", 1, "resumes"), ("1:15:00", 1, ""), ("40:00", 1, "resumes"), ("40:00", 0, "not enough")],
)
def test_a_job_needs_time_for_its_warning_and_counts_its_first_start_too(
    tmp_path: Path, limit: str, restarts: int, expected: str
) -> None:
    text = f"[cluster]\nwarn_s = 600\nmax_restarts = {restarts}\n[cluster.watershed]\nworkers = 10\ntime = '{limit}'\n"
    # an hour of work: ten blocks of an hour by ten workers
    begun = {**WATERSHED, "taken": {**TAKEN, "seconds_per_block": 3600.0}}
    plan = make_plan(make(tmp_path / "a", text), PlanOptions(), answers(begun))
    warnings = " | ".join(warn.what for warn in plan.warnings if "cluster.watershed.time" in warn.what)
    assert expected in warnings
    assert bool(expected) == bool(warnings)


def test_a_sum_of_which_a_part_is_not_known_is_never_reported_as_complete() -> None:
    partly = Quantity(1.0, "a", at_least=True)
    assert total([partly, Quantity(2.0, "b")]).at_least
    assert not total([Quantity(1.0, "a"), Quantity(2.0, "b")]).at_least
    assert text_of(Quantity(0.0, "a", at_least=True), str) == "not known"
    assert text_of(partly, str) == "> 1.0"
    assert text_of(Quantity(0.0, "a"), str) == "0.0"


def test_hours_of_which_nothing_is_known_yet_do_not_cost_nothing() -> None:
    prices = Prices(offers={"spot": Offer(gpu_hour=9.0, gb_month=0.0)})
    hours = {"cpu_hours": Quantity(0.0, "", at_least=True), "gpu_hours": Quantity(1.0, "")}
    found = cost_of(prices, hours, Quantity(5.0, ""))["spot"]
    assert (found.value, found.at_least) == (9.0, True)


def test_room_is_what_this_user_may_write_and_not_what_root_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stats = SimpleNamespace(f_bavail=3, f_bfree=9, f_frsize=10, f_bsize=1000, f_files=7, f_favail=5, f_ffree=6)
    monkeypatch.setattr(os, "statvfs", lambda _: stats)
    assert free_space(tmp_path) == FreeSpace(30, 5)
    stats.f_files = 0
    assert free_space(tmp_path) == FreeSpace(30, None)


TRAINING = {"kind": "mtlsd", "max_iteration": 1000, "max_minutes": None, "done_iterations": 0, "device": "cpu"}
STEPS = {"it_per_s": 4.0, "iteration": 50, "seconds": 15.0, "peak_rss_mib": 100.0, "device": "cpu", "host": "n1"}


def of_training(plan: dict[str, Any], steps: dict[str, Any], calls: list[str] | None = None) -> Ask:
    """Stages of which only train-acrlsd can run."""

    def ask(stage: str, arguments: Sequence[str]) -> Any:
        if stage != "train-acrlsd":
            return answers()(stage, arguments) if stage == "prepare" else NOT_YET
        if calls is not None:
            calls.append(arguments[0])
        return plan if arguments[0] == "plan" else steps

    return ask


def test_measured_steps_of_a_training_are_scaled_to_all_its_iterations(tmp_path: Path) -> None:
    experiment = make(tmp_path / "a")
    found = make_plan(experiment, PlanOptions(measure=True), of_training(TRAINING, STEPS)).estimates["train-acrlsd"]
    assert (found["seconds"].value, found["rss_per_worker_bytes"].value) == (250.0, 100 * 2**20)
    assert found["seconds"].source == "50 iterations measured on n1, cpu"
    assert found["vram_per_worker_bytes"].value is None
    limited = make_plan(experiment, PlanOptions(measure=True), of_training({**TRAINING, "max_minutes": 1}, STEPS))
    assert limited.estimates["train-acrlsd"]["seconds"].value == 60.0


def test_of_several_processes_it_is_said_that_one_alone_was_measured(tmp_path: Path) -> None:
    experiment = make(tmp_path / "a")
    plan = make_plan(experiment, PlanOptions(measure=True), of_training({**TRAINING, "processes": 4}, STEPS))
    estimated = plan.estimates["train-acrlsd"]
    note = "50 iterations measured on n1, cpu, one of the 4 processes that will train together"
    assert estimated["seconds"].source == f"{note}: their steps take longer, each waits for the slowest"
    assert estimated["rss_per_worker_bytes"].source == note
    printed = io.StringIO()
    show_plan(plan, plain_console(file=printed))
    assert printed.getvalue().count(note) == 2


def test_a_training_that_is_never_measured_says_why_and_what_would_measure_its_speed(tmp_path: Path) -> None:
    refused = {"exit_code": 2, "what": "a training with tensorflow is not measured", "fix": "its log shows its speed"}
    plan = make_plan(make(tmp_path / "a"), PlanOptions(measure=True), of_training(TRAINING, refused))
    printed = io.StringIO()
    show_plan(plan, plain_console(file=printed))
    why = "not measured: a training with tensorflow is not measured (its log shows its speed)"
    assert f"train-acrlsd: {why}\n" in printed.getvalue()
    assert plan.estimates["train-acrlsd"]["seconds"].value is None
    not_yet = make_plan(make(tmp_path / "b"), PlanOptions(measure=True), answers())
    assert not_yet.estimates["watershed"]["seconds"].source == f"nothing can be measured yet: {NOT_YET['what']}"


def test_steps_measured_on_the_cpu_say_nothing_of_a_training_with_a_gpu(tmp_path: Path) -> None:
    experiment = make(tmp_path / "a", "[cluster.train-acrlsd]\ngres = 'gpu:1'\n")
    found = make_plan(experiment, PlanOptions(measure=True, on_slurm=True), of_training(TRAINING, STEPS))
    assert found.estimates["train-acrlsd"]["seconds"].value is None
    assert "measured on the CPU" in found.estimates["train-acrlsd"]["seconds"].source
    on_a_gpu = {**STEPS, "device": "cuda", "device_name": "H200", "device_peak_mib": 2.0}
    found = make_plan(experiment, PlanOptions(measure=True, on_slurm=True), of_training(TRAINING, on_a_gpu))
    assert found.estimates["train-acrlsd"]["seconds"].value == 250.0
    assert found.estimates["train-acrlsd"]["vram_per_worker_bytes"].value == 2 * 2**20


def test_a_training_that_reports_its_own_speed_is_not_measured(tmp_path: Path) -> None:
    calls: list[str] = []
    experiment = make(tmp_path / "a")
    losses = experiment.layout.train_dir("train-acrlsd") / "loss.csv"
    losses.parent.mkdir(parents=True)
    losses.write_text("iteration,loss,it_per_s\n10,0.5,2\n")
    found = make_plan(experiment, PlanOptions(measure=True), of_training(TRAINING, STEPS, calls)).estimates[
        "train-acrlsd"
    ]
    assert (found["seconds"].value, set(calls)) == (500.0, {"plan"})
