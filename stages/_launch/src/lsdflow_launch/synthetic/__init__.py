"""Made-up tissue for the demo: neurites, their image, their truth."""
