"""`lsdflow-view show`: serve a folder, print the address, open a browser, and run until the user stops it."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from queue import SimpleQueue

import typer

from lsdflow_command.scratch import scratch_folder
from lsdflow_contract.errors import UsageError
from lsdflow_contract.experiment import load_experiment
from lsdflow_contract.geometry import Lengths, Nm3
from lsdflow_contract.no_experiment import is_snapshot, require_viewable
from lsdflow_view.layers import ViewerLayers, open_export, open_viewer_layers
from lsdflow_view.napari_layers import open_napari
from lsdflow_view.server import Site, ViewServer, client_folder
from lsdflow_view.snapshot import snapshot_layers

ENDS = (signal.SIGINT, signal.SIGTERM)
POLL_S = 0.2
DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")
# A panel that shows a whole volume of this edge or more requests thousands of chunks.
LARGE_VOX = 2048


@dataclass(frozen=True)
class Listening:
    """Where the server listens, and whether a browser is opened on it."""

    host: str = "127.0.0.1"
    port: int = 0
    browser: bool = True


def show_folder(folder: Path, listening: Listening | None, at: str | None = None, export: Path | None = None) -> None:
    """Show an experiment, an export or a training snapshot until the user stops it, in napari if `listening` is None.

    export: the levels of this folder, for an experiment. Raises MissingInput (66) for another folder or file, and for
    an experiment without volumes, UsageError (2) for a wrong position or address, and the errors of `exported_images`
    and `snapshot_layers`.
    """
    if is_snapshot(folder):
        if export:
            raise UsageError("a snapshot has no coarser levels", where="--export", fix="leave --export out")
        with snapshot_layers(folder) as layers:
            _show(layers, listening, at)
        return
    require_viewable(folder)
    exported = open_export(folder)
    if listening is None and (exported or export):
        where = "--export" if export else folder
        raise UsageError("napari shows the volumes of an experiment", where=where, fix="leave --napari or --export out")
    if exported and export:
        raise UsageError("that folder is an export itself", where=folder, fix="leave --export out")
    _show(exported or open_viewer_layers(load_experiment(folder), export), listening, at)


def _show(layers: ViewerLayers, listening: Listening | None, at: str | None) -> None:
    layers = replace(layers, position_nm=position_of(layers, at))
    if listening is None:
        open_napari(layers, layers.position_nm)
    else:
        serve(Site(layers, client_folder()), listening)


def serve(site: Site, listening: Listening) -> None:
    """Serve until SIGINT or SIGTERM."""
    with ViewServer(site, listening.host, listening.port) as server, _until_ended() as wait:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        # What the state needs is read while the browser starts.
        threading.Thread(target=site.layers.meshes.layers, daemon=True).start()
        typer.echo(server.url)
        typer.echo(_instructions(site.layers, server), err=True)
        with browser_on(server.url if listening.browser else None):
            wait()
        site.layers.meshes.is_needed = False
        server.shutdown()
        thread.join()
    typer.echo("the viewer has ended", err=True)


def position_of(layers: ViewerLayers, at: str | None) -> Nm3 | None:
    """The position in nm: `z,y,x` in nm of the world or in another unit; "48, 80, 80 vox" is the centre of that voxel.

    UsageError for anything else.
    """
    if at is None:
        return None
    plain = not any(letter.isalpha() and letter not in "eE" for letter in at)
    try:
        lengths = Lengths.parse(f"{at} nm" if plain else at)
    except ValueError as error:
        raise UsageError("that is no position", where="--at", wanted="z,y,x", found=error) from error
    grid = layers.layers()[0]  # raw, if it exists: the first volume that is written
    along = lengths.to_nm(grid.voxel_size_nm)
    if lengths.unit != "vox":
        return along
    z, y, x = (o + n + v / 2 for o, n, v in zip(grid.offset_nm, along, grid.voxel_size_nm, strict=True))
    return z, y, x


def _instructions(layers: ViewerLayers, server: ViewServer) -> str:
    names = ", ".join(layer.name for layer in layers.layers())
    port = server.server_address[1]
    return (
        f"layers: {names}\n"
        f"{_advice(layers, server)}"
        f"from another machine: ssh -L {port}:127.0.0.1:{port} {os.uname().nodename}, then the same address\n"
        "whoever knows the address can read these volumes; Ctrl-C ends it"
    )


def _advice(layers: ViewerLayers, server: ViewServer) -> str:
    if layers.is_export:
        return f"in another neuroglancer: its address, then #!{server.url}state.json\n"
    if layers.images or max(max(v.geometry.shape_vox) for v in layers.volumes.values()) < LARGE_VOX:
        return ""
    return "far out it is slow, without coarser levels: lsdflow export ome DIR FOLDER, then --export FOLDER\n"


@contextmanager
def _until_ended() -> Iterator[Callable[[], None]]:
    """Yields a function that waits for SIGINT or SIGTERM; the handlers are restored afterwards.

    Handlers run in the main thread, between two of its instructions. So they must not use a lock that the wait itself
    may hold (an Event has one, a SimpleQueue has none), and the wait must return regularly: a signal that arrives as
    it begins does not wake it.
    """
    ended: SimpleQueue[int] = SimpleQueue()

    def wait() -> None:
        """Return once a signal has come."""
        while ended.empty():
            time.sleep(POLL_S)

    before = {number: signal.signal(number, lambda caught, _: ended.put(caught)) for number in ENDS}
    try:
        yield wait
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def browser_on(url: str | None) -> Iterator[None]:
    """Open a browser if there is a screen.

    The address is passed in a file that only its user can read, because everybody on the machine can read the arguments
    of a program.
    """
    if url is None or not any(os.environ.get(name) for name in DISPLAYS):
        yield
        return
    with scratch_folder(Path(tempfile.gettempdir()), "lsdflow-view") as folder:
        page = folder / "open.html"
        page.write_text(f'<!doctype html><meta http-equiv="refresh" content="0;url={escape(url, quote=True)}">')
        webbrowser.open(page.as_uri())
        yield
