"""lsdflow-runtime: how data is opened, scheduled and marked done."""
