"""Export of an experiment's volumes to the formats of the field: OME-NGFF and neuroglancer precomputed."""
