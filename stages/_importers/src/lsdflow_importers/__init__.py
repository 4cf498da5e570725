"""Import checkpoints of other programs as bundles of lsdflow."""
