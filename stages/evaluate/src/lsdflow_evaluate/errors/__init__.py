"""The worst splits and merges: which they are, and where each is."""
