"""lsdflow-descriptors: local shape descriptors of a segmentation, to compare with those that a network predicted."""
