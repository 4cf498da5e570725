"""Sweeps: one experiment per combination of values, run in parts, gathered into a table."""
