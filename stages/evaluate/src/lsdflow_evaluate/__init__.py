"""evaluate: scores against truth, run lengths along skeletons, and the report of the experiment."""
