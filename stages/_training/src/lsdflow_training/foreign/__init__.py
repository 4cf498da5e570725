"""Checkpoints that other programs trained, as bundles of ours."""
