"""Faults of training (F20, F21): killed anywhere, or its checkpoints damaged, it resumes to the same bits."""

from __future__ import annotations

import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gunpowder")

from training_lives import KILLED, Training

from lsdflow_contract.checkpoint import BUNDLE_JSON, RESUME, WEIGHTS, bundle_folder, bundle_iterations

KILLS_CI, KILLS_RELEASE = 25, 200
DAMAGES_CI, DAMAGES_RELEASE = 3, 20
STEP_PLACES = ("step/begin", "step/loss", "step/backward", "step/optimizer", "step/log")
AFTER_THE_LAST_STEP = [
    {"place": "checkpoint/end", "count": 3},
    {"place": "best/end", "count": 3},
    {"place": "old/rename 1", "count": 1},
    {"place": "manifest/replace 1", "count": 1},
]


def random_deaths(draw: random.Random, number: int) -> list[dict[str, Any]]:
    """At a place of a step, or at any moment soon after it."""
    deaths = []
    for _ in range(number):
        seconds = draw.choice([None, draw.uniform(0.0, 0.2)])
        deaths.append({"place": draw.choice(STEP_PLACES), "count": draw.randint(1, 4), "seconds": seconds})
    return deaths


def places_of(training: Training, *scopes: str) -> list[str]:
    """Places that a life of this training met, by scope."""
    met = (training.root / "places").read_text().splitlines()
    return sorted({place for place in met if place.split("/")[0] in scopes})


def agrees(training: Training, wanted: Training) -> bool:
    """Every step in every life so far has the losses and weights of the undisturbed training."""
    right = wanted.steps()
    return all(seen == right[iteration] for iteration, seen in training.steps().items())


def live_on(training: Training, deaths: list[dict[str, Any]], wanted: Training, history: Any, seed: int) -> None:
    """All deaths one after another in one training, then a life to the end: it must equal `wanted`."""
    fault: dict[str, Any] = {}
    for death in [*deaths, {}]:
        code = training.live(**death)
        assert code == (KILLED if death else 0), f"exit code {code} after {death}\n{training.log()[-2000:]}"
        if fault:
            history.add(**fault, resumed_at=training.resumed())
            assert training.resumed() == fault["saved"], f"did not resume from the newest checkpoint: {fault}"
        saved = max((int(path.name) for path in training.checkpoints.glob("[0-9]*")), default=0)
        fault = {"kind": "F20", "seed": seed, **death, "died_at": training.last(), "saved": saved}
        fault |= {"torn": training.torn(), "equal": agrees(training, wanted)}
        assert not fault["torn"], fault
        assert fault["equal"], fault
    assert training.steps() == wanted.steps()
    assert training.left() == wanted.left()


def test_killed_at_every_place_of_a_save_and_at_random_steps(
    server: Any, undisturbed: Callable[..., Training], history: Any, release: bool, fault_seed: int, tmp_path: Path
) -> None:
    short = undisturbed(6)
    saves = places_of(short, "checkpoint", "best", "old", "curves", "snapshot", "beginning")
    assert {"checkpoint/half write 2", "checkpoint/rename 1", "old/unlink 2", "best/replace 1"} <= set(saves)
    for turn in range(4 if release else 1):
        draw = random.Random(fault_seed + turn)
        deaths: list[dict[str, Any]] = [{"place": place} for place in saves] + random_deaths(draw, 10)
        draw.shuffle(deaths)
        wanted = undisturbed(2 * len(deaths) + 20)
        training = Training(server, tmp_path / str(turn), wanted.options)
        live_on(training, deaths, wanted, history, fault_seed + turn)


@pytest.mark.parametrize("death", AFTER_THE_LAST_STEP, ids=lambda death: death["place"])
def test_killed_between_the_last_step_and_the_end(
    server: Any, undisturbed: Callable[..., Training], history: Any, fault_seed: int, tmp_path: Path, death: dict
) -> None:
    wanted = undisturbed(6)
    training = Training(server, tmp_path / "t", wanted.options)
    live_on(training, [death], wanted, history, fault_seed)


def test_killed_with_worker_processes(
    server: Any, undisturbed: Callable[..., Training], history: Any, release: bool, fault_seed: int, tmp_path: Path
) -> None:
    """The same bits as without them."""
    deaths = random_deaths(random.Random(fault_seed), 16 if release else 3)
    wanted = undisturbed(6 * len(deaths) + 6)
    training = Training(server, tmp_path / "t", {**wanted.options, "num_workers": 2, "cache_size": 4})
    live_on(training, deaths, wanted, history, fault_seed)


def test_killed_while_the_lsd_network_is_trained(
    server: Any, undisturbed: Callable[..., Training], history: Any, release: bool, fault_seed: int, tmp_path: Path
) -> None:
    deaths = random_deaths(random.Random(fault_seed), 16 if release else 2)
    wanted = undisturbed(6 * len(deaths) + 6, "train-lsd", "acrlsd")
    training = Training(server, tmp_path / "t", wanted.options, "train-lsd", "acrlsd")
    live_on(training, deaths, wanted, history, fault_seed)


@pytest.fixture(scope="module")
def cut(server: Any, undisturbed: Callable[..., Training], tmp_path_factory: pytest.TempPathFactory) -> Training:
    """A training with checkpoints 2 and 4, killed in step 6 of 6."""
    training = Training(server, tmp_path_factory.mktemp("cut") / "t", undisturbed(6).options)
    assert training.live(place="step/begin", count=6) == KILLED
    assert bundle_iterations(training.checkpoints) == [2, 4]
    return training


def damage(path: Path, how: str, draw: random.Random) -> None:
    """Truncate, flip one bit of, empty or remove a file."""
    content = bytearray(path.read_bytes())
    if how == "truncated":
        path.write_bytes(content[: draw.randrange(1, len(content))])
    elif how == "bit flipped":
        low, high = contents_of(path)
        content[draw.randrange(low, high)] ^= 1 << draw.randrange(8)
        path.write_bytes(content)
    elif how == "emptied":
        path.write_bytes(b"")
    else:
        path.unlink()


def contents_of(path: Path) -> tuple[int, int]:
    """Bytes that mean something: in a zip file those of its largest member, elsewhere all."""
    if path.name != RESUME:
        return 0, path.stat().st_size
    with zipfile.ZipFile(path) as archive:
        member = max(archive.infolist(), key=lambda info: info.file_size)
        with archive.open(member):
            begin = archive.fp.tell() if archive.fp else 0
        header = path.read_bytes()[member.header_offset : member.header_offset + 30]
        begin = member.header_offset + 30 + int.from_bytes(header[26:28], "little")
        begin += int.from_bytes(header[28:30], "little")
    return begin, begin + member.compress_size


@pytest.mark.parametrize("name", [WEIGHTS, RESUME, BUNDLE_JSON])
@pytest.mark.parametrize("how", ["truncated", "bit flipped", "emptied", "removed"])
def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(
    cut: Training, undisturbed: Callable[..., Training], history: Any, release: bool, fault_seed: int,
    tmp_path: Path, how: str, name: str,
) -> None:  # fmt: skip
    wanted = undisturbed(6)
    for turn in range(fault_seed, fault_seed + (2 if release else 1)):
        training = cut.copy(tmp_path / str(turn))
        damaged = bundle_folder(training.checkpoints, 4) / name
        damage(damaged, how, random.Random(turn))
        assert training.live() == 0, training.log()[-3000:]
        warnings = [line for line in training.log().splitlines() if "cannot be used" in line]
        assert len(warnings) == 1
        assert str(damaged) in warnings[0] or (how == "removed" and str(damaged.parent) in warnings[0])
        equal = training.left() == wanted.left() and training.steps() == wanted.steps()
        history.add(
            kind="F21", seed=turn, place=f"{name} {how}", died_at=5, saved=2, resumed_at=training.resumed(), torn=[],
            equal=equal,
        )  # fmt: skip
        assert training.resumed() == 2
        assert equal


@pytest.mark.parametrize("name", [WEIGHTS, RESUME, BUNDLE_JSON])
def test_no_valid_checkpoint_ends_with_65_names_all_and_deletes_nothing(
    cut: Training, fault_seed: int, tmp_path: Path, name: str
) -> None:
    training = cut.copy(tmp_path / "t")
    draw = random.Random(fault_seed)
    damaged = [bundle_folder(training.checkpoints, iteration) / name for iteration in (2, 4)]
    damage(damaged[0], "bit flipped", draw)
    damage(damaged[1], "removed" if name == BUNDLE_JSON else "truncated", draw)
    (training.checkpoints / ".00000006.ab.partial").mkdir()
    before = {p: p.read_bytes() if p.is_file() else b"" for p in training.folder.rglob("*")}
    assert training.live() == 65
    message = training.log().rpartition("error:")[2]
    assert all(str(path) in message for path in damaged)
    assert {p: p.read_bytes() if p.is_file() else b"" for p in training.folder.rglob("*")} == before


def test_nothing_was_torn_or_different_and_all_went_on_alone(history: Any, release: bool) -> None:
    """Over the history of this run; last in the file."""
    kills = [fault for fault in history.faults if fault["kind"] == "F20"]
    damages = [fault for fault in history.faults if fault["kind"] == "F21"]
    print(f"{len(kills)} kills, {len(damages)} damaged checkpoints: {history.path}")
    assert len(kills) >= (KILLS_RELEASE if release else KILLS_CI)
    assert len(damages) >= (DAMAGES_RELEASE if release else DAMAGES_CI)
    assert sum(len(fault["torn"]) for fault in history.faults) == 0
    assert [fault for fault in history.faults if not fault["equal"] or fault["resumed_at"] != fault["saved"]] == []
