"""A stage as small as can be, for tests of the runtime."""
