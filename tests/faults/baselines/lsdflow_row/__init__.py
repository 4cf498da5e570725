"""A stage for the baselines."""
