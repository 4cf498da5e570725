"""A running stage seen from outside: attempts at blocks, what processes use, metrics for Prometheus."""
