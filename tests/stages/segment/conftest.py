"""The first call of a compiled kernel takes a second: property tests here have no deadline."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("compiled-kernels", deadline=None)
settings.load_profile("compiled-kernels")
