"""lsdflow-runtime: opens data, schedules blocks and records which are done."""
