"""The report of an experiment: `collect` reads everything from disk, `page` renders it as HTML."""
