"""lsdflow-predict: affinities (and LSDs) of a whole volume, block by block, from checkpoint bundles."""
