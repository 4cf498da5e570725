"""Implements `lsdflow plan`: estimate a run from measured blocks, and compare the estimate with the finished run."""
