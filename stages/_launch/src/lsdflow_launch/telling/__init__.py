"""What is told of an experiment: status, report, trace."""
