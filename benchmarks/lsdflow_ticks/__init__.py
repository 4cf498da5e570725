"""A stage of blocks that do nothing but read the clock, for the benchmark of what a block costs."""
