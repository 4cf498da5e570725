"""Preparation of an experiment: inspect the volumes, propose sizes, write the experiment file and its schema."""
