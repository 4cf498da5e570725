"""The environment that `make setup-view` makes holds what the viewer serves and the exports write with."""

from __future__ import annotations

from importlib.metadata import version
from importlib.resources import files


def test_the_packaged_client_of_neuroglancer_is_in_the_wheel() -> None:
    client = files("neuroglancer") / "static" / "client"
    assert "<script" in (client / "index.html").read_text()


def test_libraries_of_exports_are_there() -> None:
    import cloudvolume
    import kimimaro
    import zmesh

    assert cloudvolume.CloudVolume
    assert kimimaro.skeletonize
    assert zmesh.Mesher
    assert version("lsdflow-view")
