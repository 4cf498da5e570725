"""Reports about an experiment: status, report, trace."""
