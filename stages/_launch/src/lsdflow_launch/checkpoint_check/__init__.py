"""Selection of the checkpoint that segments best: a small region is segmented with each checkpoint."""
