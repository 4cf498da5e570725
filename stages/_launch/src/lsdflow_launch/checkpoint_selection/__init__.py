"""Selection of a checkpoint by VOI: a sweep over checkpoints on a small labelled region."""
