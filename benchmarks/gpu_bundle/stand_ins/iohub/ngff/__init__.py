"""See iohub/__init__.py."""

TransformationMeta = None
open_ome_zarr = None
