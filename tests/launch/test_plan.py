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
from lsdflow_contract.manifest import Manifest, Writer
from lsdflow_launch.cli import app
from lsdflow_launch.disk import FreeSpace, disk_use, free_space
from lsdflow_launch.output import duration, money, plain_console, size
from lsdflow_launch.planning import cli as plan_cli
from lsdflow_launch.planning import evidence as evidence_module
from lsdflow_launch.planning import plan as plan_module
from lsdflow_launch.planning.cli import show_plan, text_of
from lsdflow_launch.planning.evidence import Quantity, machines, total
from lsdflow_launch.planning.jobs import Job, local_job
from lsdflow_launch.planning.plan import Machine, Offer, Prices, StageEstimate, cost_of, make_plan, read_prices
from lsdflow_launch.slurm.table import memory_bytes, time_limit_s
from lsdflow_launch.status import planned_seconds

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
def _no_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans know what the test gives them alone."""
    monkeypatch.setattr(evidence_module, "machines", tuple)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))


@pytest.fixture
def shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans know the shipped table of machines, too."""
    monkeypatch.setattr(evidence_module, "machines", machines)


def make(root: Path, text: str = "") -> Experiment:
    """An experiment file; the stages are never asked for real."""
    root.mkdir(parents=True)
    (root / "experiment.toml").write_text('[experiment]\nmode = "mtlsd"\n' + text)
    return load_experiment(root)


def finish(experiment: Experiment, stage: str, seconds: float = 50.0, **facts: Any) -> None:
    """The manifest and the outcome of a stage that has finished."""
    made = {"config": {}, "inputs": {}, "outputs": {}, "facts": facts}
    Manifest(writer=Writer(stage=stage, version="1"), key="k", identity="i", **made).write(experiment.layout)
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
    found = make_plan(experiment, answers(measured=MEASURED), measured=True).estimates["watershed"]
    assert found["seconds"].value == pytest.approx(30.0)
    assert found["seconds"].source == "one block measured on n1"
    # five workers at a time; nothing is known of the start of the command
    assert (found["walltime_s"].value, found["walltime_s"].at_least) == (pytest.approx(6.0), True)
    assert found["cpu_hours"].value == pytest.approx(30.0 * 2 / 3600)
    assert found["bytes_read"].value == 50_000
    assert found["bytes_written"].value == 4000
    assert found["files"].value == 30
    assert found["rss_per_worker_bytes"].value == 250 * MIB
    assert list(experiment.layout.root.glob(".measure*")) == []


def test_nothing_is_guessed_where_nothing_was_measured(tmp_path: Path) -> None:
    found = make_plan(make(tmp_path / "a"), answers())
    watershed = found.estimates["watershed"]
    for name in ("seconds", "walltime_s", "cpu_hours", "bytes_read", "bytes_written", "rss_per_worker_bytes"):
        assert watershed[name].value is None, name
        assert watershed[name].source
    assert watershed["blocks"].value == 10
    assert found.estimates["segment"]["walltime_s"].source == "the stage watershed has not finished"
    assert found.left("cpu_hours").value is None


def test_a_block_measured_on_the_cpu_says_nothing_of_workers_with_gpus(tmp_path: Path) -> None:
    experiment = make(tmp_path / "a", '[cluster.predict]\nworkers = 4\nworker_gres = "gpu:a100:1"\n')

    def ask(stage: str, arguments: Sequence[str]) -> Any:
        if stage != "predict":
            return NOT_YET
        plan = {**WATERSHED, "device": "cpu", "device_memory_per_worker_bytes": 12345}
        return plan if arguments[0] == "plan" else {**MEASURED, "device": "cpu"}

    found = make_plan(experiment, ask, measured=True).estimates["predict"]
    assert found["seconds"].value is None
    assert "on a CPU, its workers have GPUs" in found["seconds"].source
    assert found["bytes_written"].value == 4000
    assert found["vram_per_worker_bytes"].value == 12345
    assert "not measured" in found["vram_per_worker_bytes"].source


def test_hours_of_a_cluster_are_those_of_the_workers_at_a_time_and_of_their_coordinator(tmp_path: Path) -> None:
    table = "workers = 8\nworkers_at_once = 4\nworker_cpus = 3\ncpus = 2\nworker_partition = 'spot'\n"
    experiment = make(tmp_path / "a", f"[cluster.watershed]\n{table}")
    plan = make_plan(experiment, answers(measured={**MEASURED, "seconds": 3600.0}), measured=True)
    found = plan.estimates["watershed"]
    assert plan.on_slurm
    # 10 blocks of an hour by 4 workers
    assert found["walltime_s"].value == pytest.approx(2.5 * 3600, rel=1e-3)
    # 10 h of workers with 3 cores, and the coordinator's 2 cores for 2.5 h
    assert found["cpu_hours"].value == pytest.approx(30 + 5, rel=1e-3)
    assert (plan.jobs["watershed"].partition, plan.left("cpu_hours").value) == ("spot", pytest.approx(35, rel=1e-3))


def test_limits_of_jobs_and_blocks_that_a_run_would_reach_are_reported(tmp_path: Path) -> None:
    table = 'workers = 1\nworker_mem = "200M"\nworker_time = "30"\ntime = "2:00:00"\n'
    experiment = make(tmp_path / "a", f"[cluster]\nmax_restarts = 1\n[cluster.watershed]\n{table}")
    plan = make_plan(experiment, answers(measured={**MEASURED, "seconds": 3600.0}), measured=True)
    warnings = " | ".join(warn.what for warn in plan.warnings)
    assert "a block needs about 60 min, compute.block_timeout_s allows 15 min" in warnings
    assert "a worker needs about 262 MB, cluster.watershed.worker_mem allows 210 MB" in warnings
    assert "a block needs about 60 min, cluster.watershed.worker_time allows 28 min" in warnings
    assert "cluster.watershed.time, with all restarts, allows 3 h 56" in warnings
    assert not any(warn.certain for warn in plan.warnings)
    quiet = make_plan(make(tmp_path / "b"), answers(measured=MEASURED), measured=True)
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


@pytest.mark.proves("EST-02", "EST-01")
def test_prices_come_from_the_users_file_with_a_line_for_each_stage_and_fixed_costs(tmp_path: Path) -> None:
    experiment = make(tmp_path / "a")
    finish(experiment, "prepare", seconds=1.0)
    (experiment.layout.root / "prices.toml").write_text(
        'currency = "EUR"\nmonths_kept = 2\n[offers.full]\ncpu_hour = 0.1\ngpu_hour = 9\ngb_month = 100\n'
        "fixed_month = { scheduler = 10, database = 20 }\n[offers.part]\ncpu_hour = 0.1\n"
    )
    hour = answers(measured={**MEASURED, "seconds": 3600.0})
    plan = make_plan(experiment, hour, prices=read_prices(experiment, None), measured=True)
    full, part = plan.costs["full"], plan.costs["part"]
    assert full.stages["watershed"].value == pytest.approx(10 * 0.1, rel=1e-3)
    assert {what: price.value for what, price in full.monthly.items()} == {
        "results": pytest.approx(1_004_000 / 1e9 * 100),
        "scheduler": 10,
        "database": 20,
    }
    hours, months = ([price.value or 0 for price in part.values()] for part in (full.stages, full.monthly))
    assert full.total.value == pytest.approx(sum(hours) + 2 * sum(months))
    assert part.stages["watershed"].value == pytest.approx(1.0, rel=1e-3)
    assert (part.monthly["results"].value, part.total.at_least) == (None, True)
    assert plan.as_dict()["currency"] == "EUR"
    printed = io.StringIO()
    show_plan(plan, plain_console(file=printed))
    assert printed.getvalue().splitlines()[0].split()[-2:] == ["full", "part"]
    assert "scheduler 10.00, database 20.00" in printed.getvalue()
    assert "EUR with 2 months" in printed.getvalue()
    assert read_prices(make(tmp_path / "b"), None) is None


def test_nothing_is_left_and_costs_nothing_when_all_is_done(tmp_path: Path) -> None:
    experiment = make(tmp_path / "a")
    (experiment.layout.root / "prices.toml").write_text("[offers.full]\ncpu_hour = 1\ngpu_hour = 1\ngb_month = 0\n")
    for stage in ("prepare", "train-acrlsd", "predict", "watershed", "agglomerate", "segment", "evaluate"):
        finish(experiment, stage)
    plan = make_plan(experiment, answers(), prices=read_prices(experiment, None))
    assert [plan.left(name).value for name in ("cpu_hours", "gpu_hours", "bytes_written")] == [0, 0, 0]
    assert (plan.costs["full"].total.value, plan.warnings) == (0, [])


def test_a_wrong_or_missing_file_of_prices_is_refused(tmp_path: Path) -> None:
    experiment, file = make(tmp_path / "a"), tmp_path / "p.toml"
    with pytest.raises(MissingInput):
        read_prices(experiment, file)
    file.write_text("[offers.spot]\ncpu_hours = 1\n")
    with pytest.raises(ConfigError, match="cpu_hour") as caught:
        read_prices(experiment, file)
    assert str(file) in caught.value.where


def test_json_keeps_what_stages_plan_and_adds_the_estimates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = make(tmp_path / "a")
    monkeypatch.setattr(plan_cli, "choose_ask", lambda _: answers(measured=MEASURED))
    done = CliRunner().invoke(app, ["plan", str(experiment.layout.root), "--measure", "--json"])
    answer = json.loads(done.stdout)
    assert (answer["watershed"]["blocks"], answer["segment"]["not known yet"]) == (10, NOT_YET["what"])
    assert answer["watershed"]["estimate"]["seconds"] == {"value": 30.0, "from": "one block measured on n1"}
    assert answer["experiment"]["left"]["bytes_written"]["at_least"] is True
    kept = json.loads(experiment.layout.plan.read_text())
    assert kept["stages"]["watershed"] == answer["watershed"]["estimate"]
    assert planned_seconds(experiment, "watershed") == kept["stages"]["watershed"]["walltime_s"]["value"]


def test_a_plan_made_after_the_end_predicts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = make(tmp_path / "a")
    finish(experiment, "watershed")
    over = {**WATERSHED, "blocks_done": 10, "taken": TAKEN}
    monkeypatch.setattr(plan_cli, "choose_ask", lambda _: answers(over))
    assert CliRunner().invoke(app, ["plan", str(experiment.layout.root)]).exit_code == 0
    assert planned_seconds(experiment, "watershed") is None


def test_a_measurement_that_fails_leaves_no_folder_and_says_why(tmp_path: Path) -> None:
    experiment = make(tmp_path / "a")
    broken = {"exit_code": 65, "what": "the affinities are not finite"}
    found = make_plan(experiment, answers(measured=broken), measured=True).estimates["watershed"]
    assert "the affinities are not finite" in found["seconds"].source
    assert [path.name for path in experiment.layout.root.iterdir()] == ["experiment.toml"]


def test_bytes_are_those_of_the_files_on_the_disk(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    for number, path in enumerate((tmp_path / "a" / "x", tmp_path / "a" / "b" / "y")):
        path.write_bytes(b"z" * (10 + number))
    assert disk_use([tmp_path / "a", tmp_path / "missing"]).size_bytes == 21


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
    found = make_plan(experiment, answers({**WATERSHED, "blocks_done": 4, "taken": TAKEN}))
    assert found.estimates["watershed"]["walltime_s"].value == pytest.approx(7.0)


def test_a_measured_block_counts_by_its_voxels_and_not_as_one_of_the_blocks(tmp_path: Path) -> None:
    half = answers(measured={**MEASURED, "voxels": 500})
    found = make_plan(make(tmp_path / "a"), half, measured=True).estimates["watershed"]
    assert (found["seconds"].value, found["bytes_written"].value) == (pytest.approx(60.0), 8000)


def test_of_a_stage_that_has_begun_only_the_rest_is_left(tmp_path: Path) -> None:
    experiment = make(tmp_path / "a")
    for stage in ("prepare", "train-acrlsd", "predict", "agglomerate", "segment", "evaluate"):
        finish(experiment, stage)
    begun = {**WATERSHED, "blocks_done": 4, "taken": TAKEN}
    plan = make_plan(experiment, answers(begun, {**MEASURED, "bytes_written": 150}), measured=True)
    assert plan.left("seconds").value == pytest.approx(0.6 * 70)
    assert plan.left("bytes_written").value == pytest.approx(0.6 * 1500)


def test_of_several_passes_the_most_memory_counts_and_their_times_are_added(tmp_path: Path) -> None:
    experiment = make(tmp_path / "a")
    uses = [{**TAKEN, "peak_rss_mib": mib} for mib in (300.0, 100.0)]
    passes = {str(n): {**WATERSHED, "blocks_done": 4, "taken": use} for n, use in enumerate(uses)}
    found = make_plan(experiment, answers({**WATERSHED, "passes": passes})).estimates["watershed"]
    assert found["rss_per_worker_bytes"].value == 300 * MIB
    assert found["seconds"].value == pytest.approx(140.0)


def test_gpu_hours_are_those_in_which_workers_hold_a_gpu(tmp_path: Path) -> None:
    hour = answers(measured={**MEASURED, "seconds": 3600.0})
    on_gpus = "[cluster.watershed]\nworkers = 5\nworker_gres = 'gpu:2'\n"
    found = make_plan(make(tmp_path / "a", on_gpus), hour, measured=True).estimates["watershed"]
    assert found["gpu_hours"].value == pytest.approx(2 * 10, rel=1e-3)
    shared = make(tmp_path / "b", "[compute]\nworkers = 4\n")
    one = local_job(shared, "predict", {"device": "cuda", "gpus": 1})
    assert (one.count, one.gpus) == (1, 1), "a GPU has one worker"
    assert local_job(shared, "train-lsd", {"device": "cuda", "processes": 2}).gpus == 2


@pytest.mark.parametrize(
    ("limit", "restarts", "expected"),
    [("1:15:00", 0, ""), ("40:00", 1, ""), ("40:00", 0, "allows 30 min"), ("35:00", 1, "allows 50 min")],
)
def test_a_job_needs_time_for_its_warning_and_counts_its_first_start_too(
    tmp_path: Path, limit: str, restarts: int, expected: str
) -> None:
    text = f"[cluster]\nwarn_s = 600\nmax_restarts = {restarts}\n[cluster.watershed]\nworkers = 10\ntime = '{limit}'\n"
    # an hour of work: ten blocks of an hour by ten workers
    begun = {**WATERSHED, "taken": {**TAKEN, "seconds_per_block": 3600.0}}
    plan = make_plan(make(tmp_path / "a", text), answers(begun))
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
    numbers = {"cpu_hours": Quantity(0.0, "", at_least=True), "gpu_hours": Quantity(1.0, "")}
    estimates = {"predict": StageEstimate({**numbers, "bytes_written": Quantity(5.0, "")}, 1.0)}
    found = cost_of(Offer(gpu_hour=9.0, gb_month=0.0), 1.0, estimates, {"predict": Job()})
    assert (found.total.value, found.total.at_least) == (9.0, True)


GPU_MACHINE = Machine(type="ND", cores=40, gpus=2, hour=10.0)


@pytest.mark.parametrize(
    ("cpu", "gpu", "machine", "hours"),
    [
        (80.0, 1.0, GPU_MACHINE, 2.0),
        (8.0, 6.0, GPU_MACHINE, 3.0),
        (8.0, None, GPU_MACHINE, None),
        (8.0, 1.0, Machine(type="F", cores=4, hour=1.0), None),
        (8.0, 0.0, Machine(type="F", cores=4, hour=1.0), 2.0),
    ],
)
def test_a_machine_is_paid_for_its_cores_or_gpus_whichever_are_used_more(
    cpu: float, gpu: float | None, machine: Machine, hours: float | None
) -> None:
    numbers = {"cpu_hours": Quantity(cpu, "a"), "gpu_hours": Quantity(gpu, "b"), "bytes_written": Quantity(0.0, "")}
    offer = Offer(gb_month=0.0, machines={"gpu": machine})
    jobs = {"predict": Job(partition="gpu", count=20, cores=4, gpus=1)}
    found = cost_of(offer, 1.0, {"predict": StageEstimate(numbers, 1.0)}, jobs)
    count, kind, time = found.machines["predict"]
    price = found.stages["predict"]
    if hours is None:
        assert price.value is None or price.at_least
        assert time.value is None or time.at_least
        return
    assert (kind, time.value, price.value) == (machine.type, hours, hours * machine.hour)
    assert count == (10 if machine.gpus else 20)


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
    found = make_plan(experiment, of_training(TRAINING, STEPS), measured=True).estimates["train-acrlsd"]
    assert (found["seconds"].value, found["rss_per_worker_bytes"].value) == (250.0, 100 * 2**20)
    assert found["seconds"].source == "50 iterations measured on n1, cpu"
    assert found["vram_per_worker_bytes"] == Quantity(0, "no GPU is used")
    limited = make_plan(experiment, of_training({**TRAINING, "max_minutes": 1}, STEPS), measured=True)
    assert limited.estimates["train-acrlsd"]["seconds"].value == 60.0


def test_of_several_processes_it_is_said_that_one_alone_was_measured(tmp_path: Path) -> None:
    experiment = make(tmp_path / "a")
    plan = make_plan(experiment, of_training({**TRAINING, "processes": 4}, STEPS), measured=True)
    seconds = plan.estimates["train-acrlsd"]["seconds"]
    note = "50 iterations measured on n1, cpu, one process of several, which wait for the slowest"
    assert (seconds.source, seconds.at_least) == (note, True)


def test_a_training_that_is_never_measured_says_why_and_what_would_measure_its_speed(tmp_path: Path) -> None:
    refused = {"exit_code": 2, "what": "a training with tensorflow is not measured", "fix": "its log shows its speed"}
    plan = make_plan(make(tmp_path / "a"), of_training(TRAINING, refused), measured=True)
    printed = io.StringIO()
    show_plan(plan, plain_console(file=printed))
    why = "not measured: a training with tensorflow is not measured (its log shows its speed)"
    assert f"train-acrlsd: {why} (time)\n" in printed.getvalue()
    assert plan.estimates["train-acrlsd"]["seconds"].value is None
    not_yet = make_plan(make(tmp_path / "b"), answers(), measured=True)
    assert not_yet.estimates["watershed"]["seconds"].source == f"nothing can be measured yet: {NOT_YET['what']}"


def test_steps_measured_on_the_cpu_say_nothing_of_a_training_with_a_gpu(tmp_path: Path) -> None:
    experiment = make(tmp_path / "a", "[cluster.train-acrlsd]\ngres = 'gpu:1'\n")
    found = make_plan(experiment, of_training(TRAINING, STEPS), measured=True, on_slurm=True)
    assert found.estimates["train-acrlsd"]["seconds"].value is None
    assert "on a CPU, its workers have GPUs" in found.estimates["train-acrlsd"]["seconds"].source
    on_a_gpu = {**STEPS, "device": "cuda", "device_name": "H200", "device_peak_mib": 2.0}
    found = make_plan(experiment, of_training(TRAINING, on_a_gpu), measured=True, on_slurm=True)
    assert found.estimates["train-acrlsd"]["seconds"].value == 250.0
    assert found.estimates["train-acrlsd"]["vram_per_worker_bytes"].value == 2 * 2**20


def test_a_training_that_reports_its_own_speed_is_not_measured(tmp_path: Path) -> None:
    calls: list[str] = []
    experiment = make(tmp_path / "a")
    losses = experiment.layout.train_dir("train-acrlsd") / "loss.csv"
    losses.parent.mkdir(parents=True)
    losses.write_text("iteration,loss,it_per_s\n10,0.5,2\n")
    begun = {**TRAINING, "done_iterations": 10}
    found = make_plan(experiment, of_training(begun, STEPS, calls), measured=True).estimates["train-acrlsd"]
    assert (found["seconds"].value, set(calls)) == (500.0, {"plan"})


def test_finished_blocks_go_before_a_measured_one_and_that_before_the_table(tmp_path: Path, shipped: None) -> None:
    experiment = make(tmp_path / "a")
    begun = {**WATERSHED, "voxels_read_with_context": 20_000, "blocks_done": 4, "taken": TAKEN}
    estimated = make_plan(experiment, answers(begun, MEASURED), measured=True).estimates["watershed"]
    assert estimated["seconds"] == Quantity(pytest.approx(70.0), "4 finished blocks of this experiment")
    assert estimated.share_left == pytest.approx(0.6)
    fresh = {**begun, "blocks_done": 0, "taken": {}}
    measured = make_plan(experiment, answers(fresh, MEASURED), measured=True).estimates["watershed"]
    assert measured["seconds"].value == pytest.approx(30)
    table = make_plan(experiment, answers(fresh)).estimates["watershed"]
    assert table["seconds"].value == pytest.approx(8.28e-8 * 20_000)
    assert table["rss_per_worker_bytes"].value == pytest.approx(157e6 + 53.6 * 2000)
    assert table["seconds"].source == "table of machines: one core of an Intel Xeon with AVX-512"


def test_a_volume_of_another_shape_is_scaled_from_the_finished_blocks_of_this_experiment(tmp_path: Path) -> None:
    experiment = make(tmp_path / "a")
    (experiment.layout.results / "watershed").mkdir(parents=True)

    def ask(stage: str, arguments: Sequence[str]) -> Any:
        larger = {**WATERSHED, "blocks": 100, "voxels": 100_000}
        done = {**WATERSHED, "blocks_done": 10, "taken": TAKEN}
        return answers(larger if "--descriptions" in arguments else done)(stage, arguments)

    found = make_plan(experiment, ask, volume_shape=(100, 100, 100)).estimates["watershed"]
    assert (found["seconds"].value, found.share_left) == (pytest.approx(700.0), 1)
    assert found["rss_per_worker_bytes"].value == 100 * MIB


GPU_TABLES = {
    "gres": "[cluster.predict]\nworker_gres = 'gpu:1'\n[cluster.train-acrlsd]\ngres = 'gpu:1'\n",
    "type": "[cluster.predict]\nworker_gres = 'gpu:a100:2'\n[cluster.train-acrlsd]\ngres = 'gpu:a100:2'\n",
    "shard": "[cluster]\npartition_cpu = 'all'\npartition_gpu = 'all'\n[cluster.predict]\nworker_gres = 'shard:1'\n"
    "[cluster.train-acrlsd]\ngres = 'tmp:5,mps:50'\n",
    "option": "[cluster]\npartition_gpu = ''\noptions = ['--gpus-per-task=1']\n",
    "partition": "[cluster.predict]\nworker_gres = ''\n[cluster.train-acrlsd]\ngres = ''\n",
    "device": "[compute]\ndevice = 'cuda'\n[cluster]\npartition_gpu = ''\naccount = 'lab'\n",
}


@pytest.mark.parametrize("table", GPU_TABLES)
@pytest.mark.parametrize("where", ["finished", "measured", "table"])
def test_work_on_a_gpu_is_never_planned_or_priced_from_a_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str, where: str
) -> None:
    """Whatever says that the jobs have a GPU, and whatever was done on a CPU."""
    cpus = [machine for machine in machines() if machine["device"] == "cpu"]
    monkeypatch.setattr(evidence_module, "machines", lambda: cpus if where == "table" else [])
    experiment = make(tmp_path / "a", GPU_TABLES[table])
    blocks = {**WATERSHED, "device": "cpu", "multiply_adds": 1e9, "key": "k"}
    training = {**TRAINING, "multiply_adds": 1e9}
    if where == "finished":
        blocks |= {"blocks_done": 4, "taken": TAKEN}
        losses = experiment.layout.train_dir("train-acrlsd") / "loss.csv"
        losses.parent.mkdir(parents=True)
        losses.write_text("iteration,loss,it_per_s\n10,0.5,2\n")

    def ask(stage: str, arguments: Sequence[str]) -> Any:
        plans = {"predict": blocks, "train-acrlsd": training}
        measured = {"predict": {**MEASURED, "device": "cpu"}, "train-acrlsd": STEPS}
        return ({"plan": plans, "measure": measured}[arguments[0]]).get(stage, NOT_YET)

    prices = Prices(offers={"a": Offer(cpu_hour=1.0, gpu_hour=1.0, gb_month=0.0)})
    plan = make_plan(experiment, ask, prices=prices, on_slurm=True, measured=where == "measured")
    for stage in ("predict", "train-acrlsd"):
        estimated = plan.estimates[stage]
        for number in ("seconds", "walltime_s", "cpu_hours", "gpu_hours"):
            assert estimated[number].value is None, (stage, number, estimated[number])
        assert "on a CPU, its workers have GPUs" in estimated["seconds"].source
        assert not plan.costs["a"].stages[stage].value
        assert text_of(plan.costs["a"].stages[stage], str) == "not known"


def test_what_was_recorded_on_a_gpu_plans_gpus_and_no_cpus(tmp_path: Path) -> None:
    experiment = make(tmp_path / "a", GPU_TABLES["gres"])
    result = experiment.layout.result("predict", "0123456789")
    result.mkdir(parents=True)
    (result / "device.json").write_text('{"device": "NVIDIA A100"}')
    finish(experiment, "train-acrlsd", it_per_s=4.0)
    outcome = next(experiment.layout.stage_runs("train-acrlsd").glob("*/outcome.json"))
    outcome.write_text(json.dumps({"exit_code": 0, "seconds": 9.0, "resources": {"gpu": "0: NVIDIA A100"}}))
    blocks = {**WATERSHED, "blocks_done": 4, "taken": TAKEN, "key": "0123456789", "device": "cpu"}

    def ask(stage: str, _arguments: Sequence[str]) -> Any:
        return {"predict": blocks, "train-acrlsd": TRAINING}.get(stage, NOT_YET)

    on_gpus, here = (make_plan(experiment, ask, on_slurm=slurm).estimates for slurm in (True, False))
    assert [on_gpus[s]["seconds"].value for s in ("predict", "train-acrlsd")] == [pytest.approx(70.0), 250.0]
    assert [here[s]["seconds"].value for s in ("predict", "train-acrlsd")] == [None, None]


@pytest.mark.parametrize(("gres", "known"), [("gpu:1", True), ("gpu:h100:1", True), ("gpu:a100:1", False)])
def test_the_table_says_what_an_h100_does_unless_the_jobs_ask_for_another_gpu(
    tmp_path: Path, shipped: None, gres: str, known: bool
) -> None:
    text = f"[cluster.predict]\nworkers = 2\nworker_gres = '{gres}'\n[cluster.train-acrlsd]\ngres = '{gres}'\n"
    voxels = 768**3
    blocks = {**WATERSHED, "blocks": 1000, "voxels": voxels, "multiply_adds": 1.0209e6 * voxels}
    training = {**TRAINING, "multiply_adds": 1.242e12}

    def ask(stage: str, _arguments: Sequence[str]) -> Any:
        return {"predict": blocks, "train-acrlsd": training}.get(stage, NOT_YET)

    found = make_plan(make(tmp_path / "a", text), ask, on_slurm=True).estimates
    predict, trained = found["predict"]["seconds"], found["train-acrlsd"]["seconds"]
    if not known:
        assert (predict.value, trained.value, "has no a100" in predict.source) == (None, None, True)
        return
    # machines.toml: 50 Mvoxel/s, between the two modes; 16.5 iterations a second
    assert predict.value == pytest.approx(voxels / 50e6, rel=0.02)
    assert (trained.value, trained.at_least) == (pytest.approx(1000 / 16.5, rel=0.02), True)
    assert "H100" in predict.source


@pytest.mark.parametrize("text", ["", "[cluster.watershed]\nworkers = 3\nworkers_at_once = 2\n"])
@pytest.mark.parametrize("backend", ["local", "slurm"])
def test_as_many_workers_are_planned_as_were_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, backend: str
) -> None:
    experiment = make(tmp_path / "a", f"[compute]\nrunner = 'serial'\n{text}")
    many = {**WATERSHED, "blocks": 100, "taken": TAKEN}
    monkeypatch.setattr(plan_cli, "choose_ask", lambda _: answers(many))
    words = ["plan", str(experiment.layout.root), "--workers", "20", "--backend", backend, "--json"]
    estimate = json.loads(CliRunner().invoke(app, words).stdout)["watershed"]["estimate"]
    assert estimate["walltime_s"]["value"] == pytest.approx(100 * 7.0 / 20)


def test_every_stage_has_a_time_on_the_machine_without_a_gpu_of_the_table() -> None:
    (cpu,) = (machine for machine in machines() if machine["device"] == "cpu")
    stages = {key.partition(".")[0] for key, numbers in cpu["stages"].items() if "seconds" in numbers}
    assert stages == {"prepare", "training", "predict", "watershed", "agglomerate", "segment", "evaluate"}


@pytest.mark.proves("EST-03")
def test_a_phase_ends_when_all_phases_before_it_have_ended(tmp_path: Path) -> None:
    begun = {**WATERSHED, "blocks_done": 4, "taken": TAKEN}
    found = make_plan(make(tmp_path / "a"), answers(begun)).estimates
    assert found["prepare"]["ends_s"].value is None
    # nothing is known of the stages before it: its own time alone is a lower bound
    assert (found["watershed"]["ends_s"].value, found["watershed"]["ends_s"].at_least) == (pytest.approx(21.0), True)
    assert found["segment"]["ends_s"].value == pytest.approx(21.0)


@pytest.mark.parametrize(("blocks", "processes"), [(7, 1), (8, 4), (100, 4)])
def test_prepare_computes_many_blocks_in_as_many_processes_as_there_are_workers(
    tmp_path: Path, shipped: None, blocks: int, processes: int
) -> None:
    """Also as one job of a cluster, whose processes share its cores."""
    text = '[compute]\nrunner = "daisy"\nworkers = 4\n[cluster.prepare]\ncpus = 8\n'
    volume = {"shape_vox": [1000] * 3, "bytes_expected": 10**9, "done": False, "blocks": blocks}

    def ask(stage: str, _arguments: Sequence[str]) -> Any:
        return {"target": volume} if stage == "prepare" else NOT_YET

    for on_slurm in (False, True):
        plan = make_plan(make(tmp_path / str(on_slurm), text), ask, on_slurm=on_slurm)
        found = plan.estimates["prepare"]
        assert found["seconds"].value is not None
        alone = (found["walltime_s"].value or 0) - found["seconds"].value / processes
        assert 0 <= alone < 10, "its start"
        assert plan.jobs["prepare"].count == (1 if on_slurm else 4)


def test_what_one_process_computes_outside_blocks_takes_time_of_a_core(tmp_path: Path, shipped: None) -> None:
    planned = {**WATERSHED, "blocks": 1000, "voxels": 10**12}

    def ask(stage: str, _arguments: Sequence[str]) -> Any:
        return planned if stage == "segment" else NOT_YET

    found = make_plan(make(tmp_path / "a", "[compute]\nworkers = 20\n"), ask).estimates["segment"]
    blocks_h, wall_h = ((found[name].value or 0) / 3600 for name in ("seconds", "walltime_s"))
    assert found["cpu_hours"].value == pytest.approx(blocks_h + wall_h - blocks_h / 20)


def test_a_time_measured_while_other_programs_ran_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for load, said in ((0.1, False), (5.3, True)):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, 0.0, 0.0))
        found = make_plan(make(tmp_path / str(load)), answers(measured=MEASURED), measured=True).estimates["watershed"]
        assert ("load was already 5.3" in found["seconds"].source) is said


def test_more_workers_than_cores_here_are_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_module, "available_cores", lambda: 2)
    experiment, begun = make(tmp_path / "a"), answers({**WATERSHED, "blocks_done": 4, "taken": TAKEN})
    for workers, warned in ((2, False), (20, True)):
        plan = make_plan(experiment, begun, workers=workers, on_slurm=False)
        what = " ".join(warn.what for warn in plan.warnings if warn.stage == "watershed")
        assert ("use 20 cores, this machine has 2" in what) is warned


@pytest.mark.parametrize("threads", [1, 4])
def test_the_time_of_a_network_grows_with_its_multiply_adds_and_falls_with_its_threads(
    tmp_path: Path, shipped: None, threads: int
) -> None:
    experiment = make(tmp_path / "a", f"[compute]\nthreads_per_worker = {threads}\n")

    def seconds(multiply_adds: float) -> float:
        blocks = {**WATERSHED, "multiply_adds": multiply_adds, "device": "cpu"}
        found = make_plan(experiment, lambda stage, _: blocks if stage == "predict" else NOT_YET)
        return found.estimates["predict"]["seconds"].value or 0.0

    assert seconds(1e13) == pytest.approx(10 * seconds(1e12))
    assert seconds(1e13) == pytest.approx(1e13 * 1.68e-11 / threads)
