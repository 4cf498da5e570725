"""Sweeps: one experiment per combination of values, run in parts, with a table of all results."""
