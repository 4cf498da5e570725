"""`lsdflow view EXPORT`: all layers of an export, also for another neuroglancer page that has the token."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from served import Served, serving
from typer.testing import CliRunner
from viewed_experiment import GRID, SEGMENTED, VOXEL_SIZE_NM

from lsdflow_contract.errors import BadData, MissingInput
from lsdflow_contract.experiment import Experiment
from lsdflow_view import show
from lsdflow_view.cli import app
from lsdflow_view.export.ngff import export_ome
from lsdflow_view.export.precomputed import VolumeOptions, export_precomputed
from lsdflow_view.export.shapes import ShapeOptions
from lsdflow_view.layers import ViewerLayers, open_export, open_viewer_layers

SERVED = "http://127.0.0.1:1/t"
OTHER = "https://neuroglancer.example"
FORMS = ("ome", "precomputed", "with meshes")


@pytest.fixture(autouse=True)
def _serves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that should refuse a folder, and does not, fails instead of waiting for Ctrl-C."""
    monkeypatch.setattr(show, "serve", lambda site, listening: pytest.fail("it is shown"))


@pytest.fixture(scope="module")
def exports(viewed_experiment: Experiment, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Read only: an export of each format; of the third, five segments have meshes and three have skeletons."""
    root = tmp_path_factory.mktemp("exports")
    places = {name: root / name for name in FORMS}
    export_ome(viewed_experiment, places["ome"], ("raw", "affinities", "segmentation", "truth"), 2)
    export_precomputed(viewed_experiment, places["precomputed"], (), VolumeOptions(2), ShapeOptions())
    names, shapes = ("raw", "affinities", "segmentation"), ShapeOptions(meshes=5, skeletons=3)
    export_precomputed(viewed_experiment, places["with meshes"], names, VolumeOptions(2), shapes)
    return places


def opened(folder: Path) -> ViewerLayers:
    """The layers of an export."""
    found = open_export(folder)
    assert found is not None
    return found


def layers_of(folder: Path) -> dict[str, dict[str, Any]]:
    """The layers of the state, by name."""
    return {layer["name"]: layer for layer in opened(folder).state(SERVED)["layers"]}


@pytest.fixture(scope="module", params=FORMS)
def served(request: pytest.FixtureRequest, exports: dict[str, Path]) -> Iterator[Served]:
    """A server on each export, with a secret beside it and a link in it that leads there."""
    folder = exports[request.param]
    (folder.parent / "secret.txt").write_bytes(b"outside")
    (folder / "link.txt").unlink(missing_ok=True)
    (folder / "link.txt").symlink_to(folder.parent / "secret.txt")
    with serving(opened(folder), folder) as found:
        yield found


def test_all_layers_of_an_ome_export_are_shown_in_their_levels_with_meshes(exports: dict[str, Path]) -> None:
    layers = layers_of(exports["ome"])
    assert set(layers) == {"raw", "meshes", "affinities", "segmentation", "truth"}
    for name in ("raw", "segmentation", "truth"):
        assert layers[name]["source"]["url"] == f"zarr://{SERVED}/volumes/{name}"
        assert [row[-1] for row in layers[name]["source"]["transform"]["matrix"]] == [0.5] * 3
    assert [name for name, layer in layers.items() if layer["visible"]] == ["raw", "meshes", "segmentation"]
    assert len(layers["meshes"]["segments"]) > 5


def test_all_layers_of_a_precomputed_export_are_shown_and_meshes_are_made_if_it_has_none(
    exports: dict[str, Path], viewed_experiment: Experiment
) -> None:
    layers = layers_of(exports["precomputed"])
    assert set(layers) == {"raw", "meshes", "fragments", "segmentation", "truth"}
    assert {layer["source"]["url"] for name, layer in layers.items() if name != "meshes"} == {
        f"precomputed://{SERVED}/volumes/{name}" for name in layers if name != "meshes"
    }
    there = open_viewer_layers(viewed_experiment)
    made = next(layer for layer in there.state(SERVED)["layers"] if layer["name"] == "meshes")
    assert layers["meshes"]["segments"] == made["segments"]
    (layer,) = opened(exports["precomputed"]).meshes.layers()
    exact = GRID.position_nm(SEGMENTED.begin_vox)
    assert all(abs(a - b) <= v / 2 for a, b, v in zip(layer.offset_nm, exact, VOXEL_SIZE_NM, strict=True))


def test_exported_meshes_and_skeletons_of_the_largest_segments_are_chosen_and_sections_show_all(
    exports: dict[str, Path],
) -> None:
    layers = layers_of(exports["with meshes"])
    assert set(layers) == {"raw", "affinities", "segmentation"}
    segmentation = layers["segmentation"]
    assert layers_of(exports["ome"])["meshes"]["segments"][:5] == segmentation["segments"]
    assert segmentation["visible"]
    assert segmentation["notSelectedAlpha"] == segmentation["selectedAlpha"]


def test_the_list_of_segments_has_all_that_have_a_mesh_or_a_skeleton(exports: dict[str, Path]) -> None:
    folder = exports["with meshes"] / "segmentation"
    listed = json.loads((folder / "segment_properties" / "info").read_text())["inline"]["ids"]
    assert len(listed) == 5
    assert {f"{n}:0" for n in listed} <= {path.name for path in (folder / "mesh").iterdir()}
    assert set(listed[:3]) <= {path.name for path in (folder / "skeletons").iterdir()}


def test_another_neuroglancer_may_read_an_export_with_the_token_also_in_ranges(served: Served) -> None:
    state = json.loads(served.get("state.json", Origin=OTHER)[2])
    name = next(iter(state["layers"]))["source"]["url"].partition("/volumes/")[2]
    record = "zarr.json" if (served.root / "zarr.json").exists() else "info"
    status, headers, part = served.get(f"volumes/{name}/{record}", Origin=OTHER, Range="bytes=0-3")
    assert (status, len(part)) == (206, 4)
    assert headers["Access-Control-Allow-Origin"] == "*"
    assert "Content-Range" in headers["Access-Control-Expose-Headers"]
    assert headers["Cross-Origin-Resource-Policy"] == "cross-origin"
    status, headers, _ = served.get(f"volumes/{name}/no_such_chunk", Origin=OTHER)
    assert (status, headers["Access-Control-Allow-Origin"]) == (404, "*"), "neuroglancer has to see that it is a 404"
    asked = {"Access-Control-Request-Method": "GET", "Access-Control-Request-Headers": "range"}
    status, headers, _ = served.get(f"volumes/{name}/{record}", "OPTIONS", Origin=OTHER, **asked)
    assert status == 204
    assert headers["Access-Control-Allow-Headers"] == "Range"


@pytest.mark.parametrize("method", ["GET", "OPTIONS"])
def test_without_the_token_or_by_another_name_an_export_lets_nobody_in(served: Served, method: str) -> None:
    for status, headers, _ in (
        served.ask("/TOKEN/state.json", method, Origin=OTHER),
        served.get("state.json", method, Origin=OTHER, Host="evil.example"),
    ):
        assert status in (403, 404, 501)
        assert "Access-Control-Allow-Origin" not in headers


@pytest.mark.parametrize(
    "path",
    [
        "volumes/raw/../../secret.txt",
        "volumes/raw/..%2f..%2fsecret.txt",
        "volumes/raw/link.txt",
        "volumes/../secret.txt",
    ],
)
def test_nothing_beside_an_export_is_found(served: Served, path: str) -> None:
    status, _, content = served.get(path)
    assert (status, b"outside" in content) == (404, False)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_an_export_is_only_read(served: Served, method: str) -> None:
    assert served.get("volumes/raw/info", method)[0] == 501


def test_only_layers_of_exports_are_followed_from_a_record_that_names_other_folders(tmp_path: Path) -> None:
    (tmp_path / "lsdflow_export.json").write_text(json.dumps({"layers": {"../..": "k", "/etc": "k"}}))
    with pytest.raises(MissingInput, match="without layers"):
        open_export(tmp_path)


def test_a_damaged_export_and_a_lost_layer_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "lsdflow_export.json").write_text(json.dumps({"layers": {"raw": "k"}}))
    with pytest.raises((MissingInput, BadData), match="raw"):
        open_export(tmp_path)
    for content in ("[]", "{", "{}"):
        (tmp_path / "lsdflow_export.json").write_text(content)
        assert run("show", tmp_path)[0] == 65


def test_what_is_neither_an_experiment_nor_an_export_is_refused_in_one_message(tmp_path: Path) -> None:
    for folder, mark in (("empty", None), ("zarr", "zarr.json"), ("absent", None)):
        if folder != "absent":
            (tmp_path / folder).mkdir()
        if mark:
            (tmp_path / folder / mark).write_text('{"zarr_format": 3, "node_type": "group"}')
        code, output = run("show", tmp_path / folder)
        assert (code, output.count("error:")) == (66, 1), folder
        assert "no experiment file" in output


def run(*arguments: object) -> tuple[int, str]:
    """Exit code and output of lsdflow-view."""
    done = CliRunner().invoke(app, [*map(str, arguments)])
    return done.exit_code, done.output
