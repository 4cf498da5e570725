"""F23: an artefact of another contract: the next stage refuses it (76) and writes nothing.

Only evaluate makes its report even then: it is what people read, and it shows what is wrong.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from harness import SERIAL, World, store_of, written

# Who reads whose manifest.
PAIRS = (
    ("predict", "watershed"),
    ("watershed", "agglomerate"),
    ("predict", "agglomerate"),
    ("agglomerate", "segment"),
    ("watershed", "segment"),
    ("prepare", "evaluate"),
    ("watershed", "evaluate"),
    ("segment", "evaluate"),
)
OTHERS = {"a later": "3.0.0", "an earlier": "1.8.0", "no": ""}


def results(folder: Path) -> dict[str, tuple[int, int]]:
    return {name: seen for name, seen in written(folder).items() if not name.startswith("report/")}


@pytest.mark.parametrize(("writer", "reader"), PAIRS)
def test_f23_a_stage_refuses_what_another_contract_wrote(world: World, writer: str, reader: str) -> None:
    for number, (kind, contract) in enumerate(OTHERS.items()):
        folder = world.before(reader, f"f23-{writer}-{reader}-{number}", store_of(number))
        path = folder / "manifests" / f"{writer}.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "contract": contract}))
        before = results(folder)
        code = world.server.run(reader, folder, SERIAL)
        same = results(folder) == before
        facts = {"writer": writer, "reader": reader, "kind": f"manifest of {kind} contract"}
        world.note("F23", stage=reader, **facts, **world.outcome(folder, detected=code == 76, whole=same))
        assert (code, same) == (76, True), sorted(set(results(folder)) - set(before))
        world.remove(folder)


@pytest.mark.parametrize("reader", sorted({reader for _, reader in PAIRS}))
def test_f23_an_image_of_a_later_contract_refuses_what_this_one_wrote(world: World, reader: str) -> None:
    folder = world.before(reader, f"f23-later-{reader}")
    before = results(folder)
    code = world.server.run(reader, folder, SERIAL, harm={"contract": 3})
    same = results(folder) == before
    world.note("F23", stage=reader, kind="later image", **world.outcome(folder, detected=code == 76, whole=same))
    assert (code, same) == (76, True)
    world.remove(folder)
