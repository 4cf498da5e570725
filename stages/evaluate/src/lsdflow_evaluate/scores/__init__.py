"""Scores against truth: from one counting of fragments x truth, for every region and threshold."""
