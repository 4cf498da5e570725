"""A stage of many blocks that do nothing, for tests of what is kept of each."""
