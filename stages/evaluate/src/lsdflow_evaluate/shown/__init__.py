"""What the report shows, as it lies in the experiment: volumes, records of stages, maps of blocks."""
