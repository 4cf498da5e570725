"""Volumes that prepare has still to make, described from the metadata of their sources.

`lsdflow validate` asks prepare for them (`prepare describe`) and hands them to `<stage> validate --described`, so that
a stage can check its settings against shapes and voxel sizes before anything has run.
"""

from __future__ import annotations

from pydantic import TypeAdapter, ValidationError

from lsdflow_contract.errors import UsageError
from lsdflow_contract.geometry import Geometry, Nm3, Vox3
from lsdflow_contract.model import StrictModel

TRAINING, TARGET = "training/", "target"


class DescribedVolume(StrictModel):
    """A volume as prepare will write it. `where`: its raw source; `labelled`: it has labels (a target: truth)."""

    where: str
    shape_vox: Vox3
    voxel_size_nm: Nm3
    offset_nm: Nm3
    labelled: bool
    probability: float | None = None
    bytes_expected: int = 0

    @property
    def geometry(self) -> Geometry:
        """Its voxels in the world."""
        return Geometry(self.voxel_size_nm, self.offset_nm, self.shape_vox)


# By label: "target", or "training/" and the name of the volume.
Described = dict[str, DescribedVolume]
_DESCRIBED = TypeAdapter(Described)


def read_described(text: str) -> Described:
    """The volumes of a JSON text. UsageError (2) if it is no such description."""
    try:
        return _DESCRIBED.validate_json(text)
    except ValidationError as error:
        raise UsageError("not a description of volumes", where="--described", found=error) from error


def training_volumes(described: Described) -> Described:
    """The training volumes, by name."""
    return {name.removeprefix(TRAINING): v for name, v in described.items() if name.startswith(TRAINING)}
