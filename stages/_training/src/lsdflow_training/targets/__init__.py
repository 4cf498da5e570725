"""What a network shall answer: LSDs, affinities' boundaries, from labels."""
