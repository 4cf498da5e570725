"""Before anything runs: volumes are looked at, sizes proposed, the experiment file and its schema written."""
