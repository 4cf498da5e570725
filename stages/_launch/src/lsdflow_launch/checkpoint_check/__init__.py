"""Which checkpoint segments best: a small region through the whole chain, per checkpoint."""
