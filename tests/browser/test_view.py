"""`lsdflow view` in a real browser: the packaged neuroglancer finds every layer, in its place, with its voxels."""

from __future__ import annotations

import io
import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

REPOSITORY = Path(__file__).resolve().parents[2]
VIEW_PYTHON = REPOSITORY / ".venv" / "view" / "bin" / "python"
LAYERS = """() => window.viewer.layerManager.managedLayers.map(managed => {
  const source = managed.layer.dataSources[0].loadState;
  const space = source && source.transform && source.transform.value.outputSpace;
  const progress = managed.layer.renderLayers.map(layer => layer.layerChunkProgressInfo).filter(Boolean);
  return {
    name: managed.name,
    error: source && source.error ? String(source.error) : null,
    begins: space ? Array.from(space.bounds.lowerBounds).slice(-3) : null,
    scales: space ? Array.from(space.scales).slice(-3) : null,
    chunks: progress.reduce((sum, info) => sum + info.numVisibleChunksAvailable, 0),
  };
})"""
SHOW_ALL = "() => window.viewer.layerManager.managedLayers.forEach(layer => layer.setVisible(true))"
IS_READY = "() => window.viewer && window.viewer.layerManager.managedLayers.length > 0 && window.viewer.isReady()"
UNDER_MOUSE = """() => {
  window.viewer.mouseState.updateUnconditionally();
  const found = {};
  for (const managed of window.viewer.layerManager.managedLayers) {
    const value = window.viewer.layerSelectedValues.get(managed.layer);
    found[managed.name] = value === undefined || value === null ? null : JSON.parse(JSON.stringify(value,
      (key, part) => typeof part === "bigint" ? String(part) : part)).value ?? String(value);
  }
  return found;
}"""
SLIDE_TO = """number => {
  const position = Float32Array.from(window.viewer.position.value);
  position[3] = number + 0.5;
  window.viewer.position.value = position;
}"""
PATIENCE_MS = 90_000


@pytest.fixture(scope="module")
def viewed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A tiny experiment, and what must be seen of it."""
    folder = tmp_path_factory.mktemp("viewed")
    command = [VIEW_PYTHON, REPOSITORY / "tests" / "view" / "reference" / "viewed_experiment.py", folder]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return folder, json.loads(done.stdout)


@pytest.fixture(scope="module", params=["from disk", "with levels"])
def levels(request: pytest.FixtureRequest, viewed: tuple[Path, dict[str, Any]], commands: Path) -> Path | None:
    """An export in three levels, or none."""
    if request.param == "from disk":
        return None
    folder, _ = viewed
    out = folder.with_name("levels")
    subprocess.run([commands / "lsdflow", "export", "ome", folder, out, "--levels=3"], check=True)
    return out


@pytest.fixture(scope="module")
def address(viewed: tuple[Path, dict[str, Any]], levels: Path | None, commands: Path) -> Iterator[str]:
    """What `lsdflow view` prints; Ctrl-C ends it, with exit code 0."""
    folder, facts = viewed
    at = ",".join(map(str, facts["at_nm"]))
    more = [f"--export={levels}"] if levels else []
    command = [commands / "lsdflow", "view", folder, "--no-browser", f"--at={at}", *more]
    # Ctrl-C is heard also where these tests run under nohup or behind `&`.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        yield str(server.stdout.readline().strip()) if server.stdout else ""
        server.send_signal(signal.SIGINT)
        try:
            assert server.wait(600) == 0
        finally:
            server.kill()  # nothing, if it has ended


@pytest.fixture(scope="module")
def opened(drawing_visit: Any, address: str) -> Any:
    """The viewer, with the chunks that it shows at first."""
    drawing_visit.page.goto("about:blank")
    drawing_visit.console_errors.clear()  # of a server before, which has ended
    drawing_visit.requests.clear()
    drawing_visit.page.goto(address)
    drawing_visit.page.wait_for_function(IS_READY, timeout=PATIENCE_MS)
    return drawing_visit


@pytest.mark.proves("VIS-02")
def test_every_layer_loads_at_its_scale_and_offset(opened: Any, viewed: tuple[Path, dict[str, Any]]) -> None:
    opened.page.evaluate(SHOW_ALL)
    opened.page.wait_for_function(f"() => ({LAYERS})().every(layer => layer.chunks > 0)", timeout=PATIENCE_MS)
    layers = {layer["name"]: layer for layer in opened.page.evaluate(LAYERS) if layer["name"] != "meshes"}
    _, facts = viewed
    assert {name: layer["error"] for name, layer in layers.items() if layer["error"]} == {}
    assert set(layers) == set(facts["begins_vox"])
    for name, begin in facts["begins_vox"].items():
        assert layers[name]["begins"] == pytest.approx(begin), name
        assert layers[name]["scales"] == pytest.approx([v * 1e-9 for v in facts["voxel_size_nm"]]), name
    assert [text for text in opened.console_errors if "404" not in text] == []


def test_the_3_d_panel_shows_meshes_of_several_segments_in_their_colours(opened: Any) -> None:
    opened.page.wait_for_function(f"() => ({LAYERS})().find(l => l.name === 'meshes').chunks >= 5", timeout=PATIENCE_MS)
    opened.page.wait_for_timeout(500)
    panel = opened.page.query_selector_all(".neuroglancer-rendered-data-panel")[2].bounding_box()
    shot = opened.page.screenshot(clip={key: panel[key] for key in ("x", "y", "width", "height")})
    seen = np.asarray(Image.open(io.BytesIO(shot)).convert("HSV"))
    coloured = seen[(seen[..., 1] > 100) & (seen[..., 2] > 80)][:, 0]
    counts = np.histogram(coloured, 12, (0, 256))[0]
    assert (counts > 200).sum() >= 3, "surfaces of at least three colours, not the yellow frame alone"


def test_it_opens_at_the_given_position_and_the_voxels_there_are_those_of_the_disk_at_every_threshold(
    opened: Any, viewed: tuple[Path, dict[str, Any]]
) -> None:
    _, facts = viewed
    opened.page.evaluate("() => { window.viewer.navigationState.zoomFactor.value = 0.02; }")  # pixels of a voxel: 50
    opened.page.wait_for_function(IS_READY, timeout=PATIENCE_MS)
    panel = opened.page.query_selector(".neuroglancer-rendered-data-panel").bounding_box()
    opened.page.mouse.move(panel["x"] + panel["width"] / 2, panel["y"] + panel["height"] / 2, steps=3)
    opened.page.wait_for_function(f"() => ({UNDER_MOUSE})().raw !== null", timeout=PATIENCE_MS)
    seen = opened.page.evaluate(UNDER_MOUSE)
    # With levels, a coarser one may have come first.
    opened.page.wait_for_function(f"raw => ({UNDER_MOUSE})().raw == raw", arg=facts["raw"], timeout=PATIENCE_MS)
    assert int(seen["thresholds hist_quant_75"]) == facts["segment"]
    assert len(set(facts["segments"])) == 3
    for number, segment in enumerate(facts["segments"]):
        opened.page.evaluate(SLIDE_TO, number)
        opened.page.wait_for_function(
            f"wanted => ({UNDER_MOUSE})()['thresholds hist_quant_75'] === wanted", arg=str(segment), timeout=PATIENCE_MS
        )


def test_the_canvas_shows_the_raw_and_not_black(opened: Any) -> None:
    opened.page.evaluate("() => window.viewer.layerManager.managedLayers.forEach((l, i) => l.setVisible(i === 0))")
    opened.page.evaluate("() => { window.viewer.navigationState.zoomFactor.value = 0.25; }")
    opened.page.wait_for_function(IS_READY, timeout=PATIENCE_MS)
    opened.page.wait_for_timeout(500)
    panel = opened.page.query_selector(".neuroglancer-rendered-data-panel").bounding_box()
    middle = {"x": panel["x"] + panel["width"] / 2 - 60, "y": panel["y"] + panel["height"] / 2 + 10}
    shot = opened.page.screenshot(clip={**middle, "width": 50, "height": 40})
    grey = np.asarray(Image.open(io.BytesIO(shot)).convert("RGB")).astype(int)
    assert np.ptp(grey, axis=2).max() <= 2, "raw is grey"
    assert grey.mean() > 30
    assert grey.std() > 5, "one colour is no image"


def test_far_out_a_coarser_level_is_read_where_there_is_one(opened: Any, address: str, levels: Path | None) -> None:
    opened.page.evaluate(SHOW_ALL)
    opened.page.evaluate("() => { window.viewer.navigationState.zoomFactor.value = 8; }")  # voxels of a pixel
    opened.page.wait_for_function(IS_READY, timeout=PATIENCE_MS)
    for name in ("volumes/raw", "thresholds/hist_quant_75"):
        coarser = [url for url in opened.network_requests() if url.startswith(f"{address}{name}/2/c/")]
        assert bool(coarser) == (levels is not None), name


def test_no_request_leaves_the_machine(opened: Any, address: str) -> None:
    assert {url for url in opened.network_requests() if not url.startswith(address)} == set()
