"""Experiments as jobs of a SLURM cluster: resources, submission, progress and status."""
