"""Skeletons: traced ones from files and MongoDB, or truth made thin; the fragment of each of their nodes."""
