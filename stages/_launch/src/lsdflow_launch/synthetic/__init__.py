"""Synthetic tissue for the demo: neurites, their image, their labels."""
