"""lsdflow-command: the one front of every stage."""
