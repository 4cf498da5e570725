"""`lsdflow-view show --napari`: the layers of an experiment in a napari window, if napari is installed."""

from __future__ import annotations

import sys

from lsdflow_contract.errors import MissingInput
from lsdflow_contract.geometry import Nm3
from lsdflow_view.gallery import Gallery
from lsdflow_view.napari_layers import first_steps, napari_layers


def open_napari(gallery: Gallery, position_nm: Nm3 | None) -> None:
    """Show the layers until the window is closed. MissingInput if napari is not installed in this environment."""
    try:
        import napari
    except ImportError as error:
        raise MissingInput(
            "napari is not installed",
            where=sys.prefix,
            found=error,
            fix="without --napari the same is shown in neuroglancer; to have napari, in the clone: "
            f"uv pip install --python {sys.executable} 'napari[all]'   (uv: .venv/tools/bin/uv)",
        ) from error
    viewer = napari.Viewer(title="lsdflow")
    for layer in napari_layers(gallery):
        getattr(viewer, layer.method)(layer.data, **layer.arguments)
    viewer.scale_bar.visible = True
    for step in first_steps(gallery):
        viewer.dims.set_point(0, step)
    if position_nm is not None:
        viewer.dims.set_point(range(viewer.dims.ndim - 3, viewer.dims.ndim), position_nm)
        viewer.camera.center = position_nm
    napari.run()
