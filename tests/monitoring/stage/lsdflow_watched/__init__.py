"""A stage of blocks that stops before its last block until it is let go, for tests of what is seen meanwhile."""
