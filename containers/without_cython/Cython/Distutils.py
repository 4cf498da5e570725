"""In place of Cython's while lsds is built: without its extension, so that no compiler is needed.

lsds has no wheel for Python 3.11. Its only compiled module belongs to lsd.post (agglomeration), which lsdflow never
imports.
"""

from setuptools.command import build_ext as setuptools


class build_ext(setuptools.build_ext):  # noqa: N801 - the name that lsds imports
    """Builds no extension."""

    def finalize_options(self) -> None:
        """Forget the extensions of the project."""
        super().finalize_options()
        self.extensions = []
