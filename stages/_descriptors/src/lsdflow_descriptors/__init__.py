"""lsdflow-descriptors: local shape descriptors of a segmentation, for comparison with predicted ones."""
