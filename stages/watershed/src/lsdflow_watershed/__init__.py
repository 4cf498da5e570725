"""Watershed stage: computes fragments (supervoxels) and the nodes of the region graph from affinities."""
