"""Readers of the volume formats of the field: one file per format, one face (`source.SourceVolume`) for all."""
