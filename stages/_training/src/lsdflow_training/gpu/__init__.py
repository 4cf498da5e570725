"""Patches made on the training device (pipeline = "gpu")."""
