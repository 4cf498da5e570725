"""lsdflow-command: the common command-line interface of all stages."""
