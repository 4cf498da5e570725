"""Done marks and graph rows: files or MongoDB."""
