"""Training targets made from labels: LSDs, and boundaries for affinities."""
