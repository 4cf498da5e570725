"""Readers of the volume formats of the field: one file per format, one interface (`source.SourceVolume`) for all."""
