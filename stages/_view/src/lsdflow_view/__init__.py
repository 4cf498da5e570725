"""lsdflow-view: see an experiment in neuroglancer or napari, and export its volumes."""
