"""Experiments as jobs of a SLURM cluster: what is asked for, submitted, followed and told."""
