"""pipeline.sh: the exact sbatch lines of a chain, and what it refuses."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from .conftest import DIGEST, STAGES, WRAPPERS, Cluster, write_sif

GENERAL = ["--requeue", "--open-mode=append", "--export=NONE", "--signal=B:USR2@120"]
INVALID = "--kill-on-invalid-dep=yes"


def _pipeline(cluster: Cluster, experiment: Path, settings: Path, *options: str) -> list[list[str]]:
    done = cluster.run([WRAPPERS / "pipeline.sh", "--experiment", experiment, "--settings", settings, *options])
    assert done.returncode == 0, done.stderr
    return cluster.calls("sbatch")


def _options(call: list[str], name: str) -> str:
    found = [word.partition("=")[2] for word in call if word.startswith(f"--{name}=")]
    assert len(found) <= 1, call
    return found[0] if found else ""


def test_a_stage_of_blocks_is_a_coordinator_workers_and_a_verify_job(
    cluster: Cluster, experiment: Path, settings: Path
) -> None:
    calls = _pipeline(cluster, experiment, settings, "--from", "predict", "--to", "watershed")
    (submission,) = (experiment / "runs" / "submit").iterdir()
    logs, script = experiment / "runs" / "watershed" / "slurm", submission / "watershed.sbatch"
    cpu = ["--partition=cpu", "--cpus-per-task=1", "--mem=8G"]

    def line(name: str, dependency: str, log: str, *rest: str | Path, array: str = "") -> list[str]:
        return [
            *("--parsable", f"--job-name=my-experiment-watershed{name}", *GENERAL),
            *(f"--dependency={dependency}", INVALID, *([f"--array={array}"] if array else [])),
            *(f"--chdir={experiment}", f"--output={logs}/{log}.log", f"--error={logs}/{log}.log", *map(str, rest)),
        ]

    assert calls[3:] == [
        line("", "afterok:103", "%x.%j", *cpu, "--time=7-00:00:00", script, submission, "coordinate"),
        line(
            "-workers",
            "after:104,afterok:103",
            "%x.%A_%a",
            *(*cpu, "--time=1-00:00:00", script, submission, "work", "104"),
            array="0-7",
        ),
        line("-verify", "afterany:104,afterok:103", "%x.%j", *cpu, "--time=12:00:00", script, submission, "verify"),
    ]


def test_the_workers_of_predict_ask_for_a_gpu_and_its_coordinator_does_not(
    cluster: Cluster, experiment: Path, settings: Path
) -> None:
    coordinator, workers, verify = _pipeline(cluster, experiment, settings, "--from", "predict", "--to", "predict")
    assert (_options(workers, "partition"), _options(workers, "gres")) == ("gpu", "gpu:1")
    for call in (coordinator, verify):
        assert (_options(call, "partition"), _options(call, "gres")) == ("cpu", "")
    assert _options(coordinator, "dependency") == ""


@pytest.mark.proves("SCH-07")
def test_each_stage_waits_for_the_verify_job_of_the_one_before(
    cluster: Cluster, experiment: Path, settings: Path
) -> None:
    calls = _pipeline(cluster, experiment, settings)
    by_name = {_options(call, "job-name").removeprefix("my-experiment-"): n for n, call in enumerate(calls, start=101)}
    assert len(calls) == 3 * 2 + 5 * 3
    for before, stage in itertools.pairwise(STAGES):
        call = calls[by_name[stage] - 101]
        assert _options(call, "dependency") == f"afterok:{by_name[f'{before}-verify']}"
        assert INVALID in call


def test_every_command_is_shown_as_one_could_type_it(cluster: Cluster, experiment: Path, settings: Path) -> None:
    done = cluster.run(
        [WRAPPERS / "pipeline.sh", "--experiment", experiment, "--settings", settings, "--to", "prepare"]
    )
    printed = [line.removeprefix("$ ") for line in done.stdout.splitlines() if line.startswith("$ ")]
    first = cluster.calls("sbatch")
    for line in printed:
        cluster.run(["bash", "-c", line])
    assert cluster.calls("sbatch") == [*first, *first]


def test_a_dry_run_shows_the_same_and_leaves_nothing(cluster: Cluster, experiment: Path, settings: Path) -> None:
    before = sorted(experiment.rglob("*"))
    command = [WRAPPERS / "pipeline.sh", "--experiment", experiment, "--settings", settings, "--dry-run"]
    done = cluster.run([*command])
    assert done.returncode == 0
    assert done.stdout.count("$ sbatch") == 21
    assert cluster.calls("sbatch") == []
    assert sorted(experiment.rglob("*")) == before


@pytest.mark.proves("NEW-02")
def test_a_dry_run_needs_no_image(cluster: Cluster, experiment: Path, settings: Path, tmp_path: Path) -> None:
    for sif in (tmp_path / "images").glob("*.sif"):
        sif.unlink()
    command = [WRAPPERS / "pipeline.sh", "--experiment", experiment, "--settings", settings]
    assert cluster.run([*command]).returncode == 66
    done = cluster.run([*command, "--dry-run"])
    assert (done.returncode, done.stdout.count("$ sbatch")) == (0, 21)


def test_the_experiment_alone_is_submitted_with_the_settings_in_its_folder(
    cluster: Cluster, experiment: Path, settings: Path
) -> None:
    command = [WRAPPERS / "pipeline.sh", experiment, "--to", "prepare"]
    without = cluster.run([*command])
    assert without.returncode == 2
    assert "EXPERIMENT/settings.env" in without.stderr
    settings.rename(experiment / "settings.env")
    done = cluster.run([*command])
    assert done.returncode == 0, done.stderr
    assert len(cluster.calls("sbatch")) == 2


@pytest.mark.proves("SCH-02")
def test_a_stage_has_its_own_partition_else_that_of_the_site_for_its_kind(
    cluster: Cluster, experiment: Path, settings: Path
) -> None:
    lines = (
        "PARTITION_CPU='short'",
        "PARTITION_GPU='a100'",
        "WATERSHED_WORKER_PARTITION='spot'",
        "VERIFY_PARTITION=''",
    )
    settings.write_text(settings.read_text() + "".join(f"{line}\n" for line in lines))
    calls = _pipeline(cluster, experiment, settings, "--from", "predict", "--to", "watershed")
    assert [_options(call, "partition") for call in calls] == ["short", "a100", "", "short", "spot", ""]


def test_modules_are_loaded_before_the_images_are_checked(
    cluster: Cluster, experiment: Path, settings: Path, tmp_path: Path
) -> None:
    settings.write_text(settings.read_text() + "MODULES='nothing'\n")
    command = [WRAPPERS / "pipeline.sh", experiment, "--settings", settings, "--to", "prepare"]
    done = cluster.run([*command], **cluster.module(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "module load nothing failed here" in done.stderr
    loaded = tmp_path / "loaded"
    loaded.mkdir()
    (cluster.folder / "bin" / "singularity").rename(loaded / "singularity")
    settings.write_text(settings.read_text() + "MODULES='singularity'\n")
    checked = len(cluster.calls("singularity"))
    assert cluster.run([*command], **cluster.module(loaded)).returncode == 0
    assert len(cluster.calls("singularity")) == checked + 1


def test_jobs_and_all_they_read_are_kept_with_the_submission(
    cluster: Cluster, experiment: Path, settings: Path
) -> None:
    _pipeline(cluster, experiment, settings, "--from", "segment")
    (submission,) = (experiment / "runs" / "submit").iterdir()
    rows = [line.split("\t")[:3] for line in (submission / "jobs.tsv").read_text().splitlines()]
    assert rows[:3] == [["segment", "coordinator", "101"], ["segment", "workers", "102"], ["segment", "verify", "103"]]
    assert [row[:2] for row in rows[3:]] == [["evaluate", role] for role in ("coordinator", "workers", "verify")]
    assert (submission / "images.env").read_text() == (experiment / "images.env").read_text()
    assert (submission / "_common.sh").read_text() == (WRAPPERS / "_common.sh").read_text()


def test_workers_are_added_to_a_coordinator_in_the_queue_only(
    cluster: Cluster, experiment: Path, settings: Path
) -> None:
    _pipeline(cluster, experiment, settings, "--from", "watershed", "--to", "watershed")
    command = [WRAPPERS / "pipeline.sh", "--experiment", experiment, "--scale", "watershed=3"]
    cluster.answer("squeue", "")
    refused = cluster.run([*command])
    assert refused.returncode == 66
    assert "no coordinator in the queue" in refused.stderr
    cluster.answer("squeue", "RUNNING\n")
    added = cluster.run([*command])
    assert added.returncode == 0
    (call,) = cluster.calls("sbatch")[3:]
    assert (_options(call, "array"), _options(call, "dependency"), call[-2:]) == ("0-2", "after:101", ["work", "101"])


def test_workers_for_an_experiment_that_was_never_submitted_are_refused_with_a_message(
    cluster: Cluster, experiment: Path
) -> None:
    done = cluster.run([WRAPPERS / "pipeline.sh", experiment, "--scale", "watershed=3"])
    assert done.returncode == 66
    assert "nothing was submitted" in done.stderr
    assert str(experiment / "runs" / "submit") in done.stderr
    assert not cluster.calls("sbatch")


def test_a_chain_that_sbatch_refuses_is_cancelled(cluster: Cluster, experiment: Path, settings: Path) -> None:
    settings.write_text(settings.read_text() + "EVALUATE_PARTITION='moon'\n")
    script = cluster.folder / "bin" / "sbatch"
    script.write_text(script.read_text().replace('if name == "sbatch":', REFUSE_MOON))
    done = cluster.run(
        [WRAPPERS / "pipeline.sh", "--experiment", experiment, "--settings", settings, "--from", "segment"]
    )
    assert done.returncode == 78
    assert "invalid partition specified: moon" in done.stderr
    assert cluster.calls("scancel") == [["101"], ["102"], ["103"]]


REFUSE_MOON = """if name == "sbatch" and "--partition=moon" in sys.argv:
    sys.exit("sbatch: error: invalid partition specified: moon")
elif name == "sbatch":"""


@pytest.mark.parametrize(
    ("line", "code"),
    [("WATERSHED_MEM=8G", 78), ("NAME='a'b'", 78), ("NAME=$(touch {mark})", 78), ("touch {mark}", 78)],
)
def test_a_line_that_is_no_setting_is_refused_and_not_executed(
    cluster: Cluster, experiment: Path, settings: Path, tmp_path: Path, line: str, code: int
) -> None:
    mark = tmp_path / "executed"
    settings.write_text(settings.read_text() + line.format(mark=mark) + "\n")
    done = cluster.run([WRAPPERS / "pipeline.sh", "--experiment", experiment, "--settings", settings])
    assert done.returncode == code
    assert "settings.env, line" in done.stderr
    assert not mark.exists()
    assert cluster.calls("sbatch") == []


def test_a_value_that_looks_like_a_command_stays_a_value(
    cluster: Cluster, experiment: Path, settings: Path, tmp_path: Path
) -> None:
    mark = tmp_path / "executed"
    settings.write_text(settings.read_text() + f"PREPARE_PARTITION='$(touch {mark})`touch {mark}`'\n")
    calls = _pipeline(cluster, experiment, settings, "--to", "prepare")
    assert _options(calls[0], "partition") == f"$(touch {mark})`touch {mark}`"
    assert not mark.exists()


@pytest.mark.parametrize("name", ["a:b", "a,b", "a%b", "a$(b)", "a'b", 'a"b', "a\nb"])
def test_a_path_that_means_something_to_sbatch_or_the_container_is_refused(
    cluster: Cluster, settings: Path, tmp_path: Path, name: str
) -> None:
    folder = tmp_path / name
    folder.mkdir()
    (folder / "experiment.toml").touch()
    done = cluster.run([WRAPPERS / "pipeline.sh", "--experiment", folder, "--settings", settings])
    assert done.returncode == 78
    assert cluster.calls("sbatch") == []


def test_a_sif_of_another_digest_is_refused_before_anything_is_submitted(
    cluster: Cluster, experiment: Path, settings: Path, tmp_path: Path
) -> None:
    other = "sha256:" + "cd34" * 16
    write_sif(tmp_path / "images", "watershed", digest=other, name=f"watershed_0.1.0_{DIGEST[7:19]}.sif")
    done = cluster.run([WRAPPERS / "pipeline.sh", "--experiment", experiment, "--settings", settings])
    assert done.returncode == 76
    assert (DIGEST in done.stderr, other in done.stderr) == (True, True)
    assert cluster.calls("sbatch") == []
    assert not (experiment / "runs").exists()


# --- limits of partitions -------------------------------------------------------------------------------------------
NODES = "cpu*|1-00:00:00|4|8000\ncpu*|1-00:00:00|64|256000\ngpu|12:00:00|64|512000\nlong|infinite|64|128000\n"


def _refusal(cluster: Cluster, experiment: Path, settings: Path, *lines: str) -> str:
    """What pipeline.sh says of the chain with these settings; nothing if it submits the chain."""
    cluster.answer("sinfo", NODES)
    # The last line of a key counts.
    usual = [f"{line.partition('=')[0]}='8:00:00'" for line in settings.read_text().splitlines() if "_TIME=" in line]
    given = settings.with_name("more.env")
    given.write_text(settings.read_text() + "".join(f"{line}\n" for line in (*usual, *lines)))
    done = cluster.run([WRAPPERS / "pipeline.sh", "--experiment", experiment, "--settings", given])
    assert done.returncode == (78 if cluster.calls("sbatch") == [] else 0), done.stderr
    assert (experiment / "runs").exists() == bool(cluster.calls("sbatch"))
    return "" if cluster.calls("sbatch") else done.stderr


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["WATERSHED_TIME='2-00:00:00'"], "watershed: time 2-00:00:00, but partition cpu allows 1-00:00:00"),
        (["PREDICT_WORKER_TIME='721'"], "predict, workers: time 721, but partition gpu allows 12:00:00"),
        (
            ["VERIFY_TIME='1-01'", "VERIFY_PARTITION=''"],
            "verify: time 1-01, but the default partition allows 1-00:00:00",
        ),
        (
            ["TRAIN_LSD_TIME='48:00:00'", "TRAIN_LSD_PARTITION='cpu,gpu'"],
            "train-lsd: time 48:00:00, but partition cpu,gpu",
        ),
        (["SEGMENT_MEM='251G'"], "segment: 251G of memory, but a node of partition cpu has 256000M"),
        (["SEGMENT_CPUS='65'"], "segment: 65 cores, but a node of partition cpu has 64"),
    ],
)
def test_a_job_above_the_limits_of_its_partition_is_refused_before_anything_is_submitted(
    cluster: Cluster, experiment: Path, settings: Path, lines: list[str], message: str
) -> None:
    refusal = _refusal(cluster, experiment, settings, *lines)
    assert message in refusal
    assert refusal.count("but ") == 1


@pytest.mark.parametrize(
    "lines",
    [
        ["WATERSHED_TIME='1-00:00:00'", "WATERSHED_MEM='250G'", "WATERSHED_CPUS='64'"],
        ["WATERSHED_TIME='9-00:00:00'", "WATERSHED_PARTITION='long'"],
        ["WATERSHED_TIME='9-00:00:00'", "QOS='patient'"],
        ["WATERSHED_TIME='9-00:00:00'", "WATERSHED_PARTITION='of-another-cluster'"],
    ],
)
def test_a_job_within_its_limits_or_of_unknown_limits_is_submitted(
    cluster: Cluster, experiment: Path, settings: Path, lines: list[str]
) -> None:
    assert _refusal(cluster, experiment, settings, *lines) == ""


def test_the_chain_is_submitted_where_sinfo_does_not_answer(cluster: Cluster, experiment: Path, settings: Path) -> None:
    cluster.answer("sinfo", "", code=1)
    assert len(_pipeline(cluster, experiment, settings)) == 21


# --- more workers, and what else is refused --------------------------------------------------------------------------
@pytest.mark.parametrize(("answer", "code"), [("sbatch: error: invalid qos", 78), ("Unable to contact slurm", 69)])
def test_workers_that_sbatch_refuses_leave_the_chain_in_the_queue(
    cluster: Cluster, experiment: Path, settings: Path, answer: str, code: int
) -> None:
    _pipeline(cluster, experiment, settings, "--from", "watershed", "--to", "watershed")
    cluster.answer("squeue", "RUNNING\n")
    cluster.answer("sbatch", f"{answer}\n", code=1)
    done = cluster.run([WRAPPERS / "pipeline.sh", experiment, "--scale", "watershed=3"])
    assert done.returncode == code
    assert answer in done.stderr
    assert cluster.calls("scancel") == []


def test_workers_are_refused_in_a_wrong_number_for_a_wrong_stage_and_above_the_limits(
    cluster: Cluster, experiment: Path, settings: Path
) -> None:
    submitted = len(_pipeline(cluster, experiment, settings, "--from", "watershed", "--to", "watershed"))
    cluster.answer("squeue", "RUNNING\n")
    for words, code in (("prepare=2", 2), ("watershed=0", 78), ("watershed=1001", 78), ("watershed=x", 78)):
        assert cluster.run([WRAPPERS / "pipeline.sh", experiment, "--scale", words]).returncode == code
    cluster.answer("sinfo", "cpu*|0:10|64|256000\n")
    done = cluster.run([WRAPPERS / "pipeline.sh", experiment, "--scale", "watershed=2"])
    assert done.returncode == 78
    assert "jobs that could never start" in done.stderr
    assert len(cluster.calls("sbatch")) == submitted


def test_workers_are_added_to_the_newest_submission(cluster: Cluster, experiment: Path, settings: Path) -> None:
    _pipeline(cluster, experiment, settings, "--from", "watershed", "--to", "watershed")
    older = experiment / "runs" / "submit" / "20000101T000000-1"
    older.mkdir()
    (older / "settings.env").write_text(settings.read_text())
    (older / "jobs.tsv").write_text("watershed\tcoordinator\t1\tthen\n")
    cluster.answer("squeue", "RUNNING\n")
    assert cluster.run([WRAPPERS / "pipeline.sh", experiment, "--scale", "watershed=2"]).returncode == 0
    assert _options(cluster.calls("sbatch")[-1], "dependency") == "after:101"


def test_the_number_of_a_job_stands_after_warnings_and_before_the_cluster(
    cluster: Cluster, experiment: Path, settings: Path
) -> None:
    cluster.answer("sbatch", "sbatch: warning: an old option\n7;lab\n")
    _pipeline(cluster, experiment, settings, "--to", "prepare")
    (submission,) = (experiment / "runs" / "submit").iterdir()
    assert [line.split("\t")[2] for line in (submission / "jobs.tsv").read_text().splitlines()] == ["7", "7"]


@pytest.mark.proves("SCH-01", "SCH-03")
def test_every_job_has_the_options_of_the_site(cluster: Cluster, experiment: Path, settings: Path) -> None:
    lines = ("ACCOUNT='lab'", "QOS='patient'", "SBATCH_OPTION='--exclusive'", "WARN_S='300'")
    more = (*lines, "WATERSHED_WORKERS_AT_ONCE='4'")
    settings.write_text(settings.read_text() + "".join(f"{line}\n" for line in more))
    file = experiment / "experiment.toml"
    calls = _pipeline(cluster, file, settings, "--from", "watershed", "--to", "watershed")
    assert len(calls) == 3
    for call in calls:
        assert {"--account=lab", "--qos=patient", "--exclusive", "--signal=B:USR2@300"} <= set(call)
    assert _options(calls[1], "array") == "0-7%4"


def test_wrong_words_and_settings_of_another_experiment_are_refused(
    cluster: Cluster, experiment: Path, settings: Path
) -> None:
    command = [WRAPPERS / "pipeline.sh", experiment, "--settings", settings]
    for words in (["--form", "predict"], ["--from", "segment", "--to", "predict"], ["--to", "nothing"], ["second"]):
        assert cluster.run([*command, *words]).returncode == 2, words
    settings.write_text(settings.read_text() + "EXPERIMENT='/another'\n")
    done = cluster.run([*command])
    assert done.returncode == 78
    assert "the settings are of another experiment" in done.stderr
    assert cluster.calls("sbatch") == []
