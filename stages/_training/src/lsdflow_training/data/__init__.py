"""Patches of training data: volumes, random locations, augmentation, workers."""
