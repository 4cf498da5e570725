"""Measures that need no truth: seams at block faces, and where segmentation and network disagree."""
