"""Augmentation of patches: what is drawn (description), and two executors: gunpowder on the CPU, torch on a device."""
