"""Agglomerate stage: how likely two touching fragments are one neuron; the edges of the region graph."""
