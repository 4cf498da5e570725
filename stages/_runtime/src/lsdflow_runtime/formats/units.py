"""Length units as they are spelled in zarr, OME, ImageJ and N5 metadata, in nanometres."""

from __future__ import annotations

from lsdflow_contract.errors import BadData

NM_PER_UNIT = {
    "angstrom": 0.1, "ångström": 0.1, "å": 0.1,
    "nm": 1.0, "nanometer": 1.0, "nanometre": 1.0, "nanometers": 1.0,
    "um": 1e3, "µm": 1e3, "μm": 1e3, "micron": 1e3, "microns": 1e3, "micrometer": 1e3, "micrometre": 1e3,
    "mm": 1e6, "millimeter": 1e6, "millimetre": 1e6,
    "cm": 1e7, "centimeter": 1e7, "centimetre": 1e7,
    "m": 1e9, "meter": 1e9, "metre": 1e9,
    "inch": 2.54e7, "in": 2.54e7, "\"": 2.54e7,
}  # fmt: skip


def nm_per(unit: str, where: str) -> float:
    """Nanometres in one `unit`.

    Raises:
        BadData: the unit is no length we know ("pixel", "second", a typing error).
    """
    spelled = unit.strip().replace("\\u00B5", "µ")
    factor = NM_PER_UNIT.get(spelled, NM_PER_UNIT.get(spelled.lower()))
    if factor is None:
        raise BadData(
            f"unknown unit of length {unit!r}",
            where=where,
            wanted="one of " + ", ".join(sorted(set(NM_PER_UNIT), key=lambda name: (NM_PER_UNIT[name], name))),
            found=repr(unit),
            hint='correct the metadata, or give the size yourself: voxel_size = "40, 8, 8 nm"',
        )
    return factor


def is_length(unit: str) -> bool:
    """Whether `unit` is a length that can be turned into nanometres."""
    spelled = unit.strip().replace("\\u00B5", "µ")
    return spelled in NM_PER_UNIT or spelled.lower() in NM_PER_UNIT
