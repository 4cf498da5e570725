"""Import checkpoints that other programs trained as bundles of lsdflow."""
