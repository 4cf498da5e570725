"""A stage of blocks that do nothing but look at the clock, for the benchmark of what a block costs."""
