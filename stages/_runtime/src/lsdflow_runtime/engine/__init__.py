"""Passes over blocks: planning, running, committing, verifying."""
