"""segment: the region adjacency graph -> lookup tables for all thresholds -> the segmentation of the chosen one."""
