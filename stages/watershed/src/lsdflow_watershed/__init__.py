"""Watershed stage: from affinities to fragments (supervoxels) and the nodes of the region graph."""
