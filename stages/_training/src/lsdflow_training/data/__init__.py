"""Patches of training data: volumes, places, augmentation, workers."""
