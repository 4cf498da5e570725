"""Agglomerate stage: scores how likely two touching fragments are one neuron, as edges of the region graph."""
