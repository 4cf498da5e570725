"""Detects the format of a path from its content, never from its name alone, and opens it.

file    HDF5 signature | TIFF signature | JSON {container, offset, size}: a region of another container (z,y,x in nm)
folder  zarr metadata | N5 attributes.json | precomputed info | TIFF slices
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

from lsdflow_contract.errors import BadData, ConfigError, MissingInput, PermissionDenied
from lsdflow_contract.files import read_json
from lsdflow_contract.metadata import understanding_metadata
from lsdflow_runtime.formats import hdf5, n5, precomputed, tiff, zarr_array
from lsdflow_runtime.formats.claims import to_nm3
from lsdflow_runtime.formats.file_stamp import files_below
from lsdflow_runtime.formats.folders import first_folders, folder_of
from lsdflow_runtime.formats.slices import SUFFIXES
from lsdflow_runtime.formats.source import SourceVolume

ROI_JSON_KEYS = ("container", "offset", "size")
FOLDERS_SEARCHED = FILES_SEARCHED = 100
KNOWN_FORMATS = (
    "folder: zarr (.zarray, .zgroup, zarr.json), N5 (attributes.json), neuroglancer precomputed (info), TIFF slices "
    "(*.tif, *.tiff); file: HDF5, TIFF, JSON with container, offset, size"
)
FIJI = "Fiji (File > Open, then File > Save As > Tiff) to a TIFF stack"
BIOFORMATS = "bioformats2raw to OME-Zarr, or Fiji to a TIFF stack"
# What converts files of other formats, by the ending of the name.
CONVERSIONS = {
    **dict.fromkeys(("mrc", "rec", "st", "ali", "map"), "mrc2tif -s of IMOD to a TIFF stack"),
    **dict.fromkeys(("png", "jpg", "jpeg", "bmp", "pgm"), "ImageMagick (mogrify -format tif *) to TIFF slices"),
    **dict.fromkeys(("dm3", "dm4", "nrrd", "nhdr", "mha", "mhd", "avi", "am", "fits"), FIJI),
    **dict.fromkeys(("czi", "lif", "nd2", "oib", "oif", "lsm", "vsi", "sld", "ser", "emd", "mdoc"), BIOFORMATS),
    **dict.fromkeys(("raw", "dat", "bin", "vol", "img"), "Fiji (File > Import > Raw, Save As > Tiff) to a TIFF stack"),
    **dict.fromkeys(("nii", "hdr"), 'Python to zarr: zarr.save("NEW.zarr", nibabel.load("FILE").get_fdata().T)'),
    "npy": 'Python to zarr: zarr.save("NEW.zarr", numpy.load("FILE"))',
    "npz": 'Python to zarr: zarr.save("NEW.zarr", numpy.load("FILE")["NAME"])',
    "mat": 'MATLAB to HDF5: save("NEW.mat", "-v7.3"), or Python: scipy.io.loadmat, then h5py',
    "wkw": "webknossos export-as-tiff to TIFF slices",
    "klb": "Fiji with its KLB plugin to a TIFF stack",
    "gz": "gunzip to a file of one of these formats",
    "zip": "unzip to a folder",
    "tar": "tar -xf to a folder",
}
ANY_CONVERSION = f"convert it with {BIOFORMATS}"
OUR_SUFFIXES = ("h5", "hdf", "hdf5", "tif", "tiff", "json", "ims", "nwb")


def is_roi_json(path: Path) -> bool:
    """True if a file is a JSON ROI container."""
    if not path.is_file() or path.suffix.lower() != ".json":
        return False
    content = read_json(path)
    return isinstance(content, dict) and all(key in content for key in ROI_JSON_KEYS)


FILE_FORMATS: dict[str, Callable[[Path], bool]] = {
    "hdf5": hdf5.is_hdf5,
    "tiff": tiff.is_tiff,
    "json": is_roi_json,
}
FOLDER_FORMATS: dict[str, Callable[[Path], bool]] = {
    "zarr": zarr_array.is_zarr,
    "n5": n5.is_n5,
    "precomputed": precomputed.is_precomputed,
    "tiff": tiff.is_tiff_folder,
}
TREES: dict[str, tuple[Callable[[Path], bool], Callable[[Path, str], SourceVolume]]] = {
    "zarr": (zarr_array.is_image, zarr_array.open_zarr),
    "n5": (n5.is_image, n5.open_n5),
}


def detect_format(path: Path, dataset: str = "") -> str:
    """Name of the format: zarr, n5, hdf5, tiff, precomputed or json.

    zarr and N5 containers need no metadata of their own, because the `dataset` and the first folders are examined.

    Raises:
        MissingInput: the path does not exist.
        BadData: no known format, or more than one; the error lists the known formats.
    """
    _require(path)
    try:
        formats = FOLDER_FORMATS if path.is_dir() else FILE_FORMATS
        found = [name for name, holds in formats.items() if holds(path)]
        if not found and path.is_dir():
            inner = [folder_of(path, dataset), *first_folders(path, FOLDERS_SEARCHED)]
            found = [name for name, (is_image, _) in TREES.items() if any(map(is_image, inner))]
    except PermissionError as error:
        raise PermissionDenied("no permission to read", where=path, found=str(error)) from error
    if len(found) == 1:
        return found[0]
    if found:
        what, fix = "the path holds more than one volume format", "leave the files of one format only"
    else:
        what, fix = "no volume format is recognised", _conversion(path)
    raise BadData(what, where=path, wanted=KNOWN_FORMATS, found=", ".join(found) or "none of these", fix=fix)


def _conversion(path: Path) -> str:
    """What to do with a file of an unknown format, or with a folder of such files."""
    names = [path.name] if not path.is_dir() else [name for name, _ in islice(files_below((path,)), FILES_SEARCHED)]
    suffixes = [Path(name).suffix.lower().removeprefix(".") for name in names]
    inside = next((name for name, suffix in zip(names, suffixes, strict=True) if suffix in OUR_SUFFIXES), None)
    if path.is_dir() and inside is not None:
        place = path / inside
        container = place.parent if place.suffix.lower() in SUFFIXES else place
        return f"name the container itself, not a folder around it: {container}"
    known = next((suffix for suffix in suffixes if suffix in CONVERSIONS), None)
    if known is not None:
        return f"convert it with {CONVERSIONS[known]}"
    if not (path.is_file() or path.is_dir()):
        return "give a file or a folder, not a pipe or a device"
    if path.is_file() and path.stat().st_size == 0:
        return "the file is empty, copy it again"
    if path.is_file() and suffixes[0] in OUR_SUFFIXES:
        return f"the file does not begin as .{suffixes[0]} files do: it is damaged, or the name is wrong; copy it again"
    return "name the container itself, not a folder around it" if path.is_dir() else ANY_CONVERSION


def open_source(path: Path, dataset: str | None = None, default: str = "") -> SourceVolume:
    """Open a volume of any format for reading.

    Args:
        path: container or file.
        dataset: name in the container (precomputed: key of a scale); "" is the container itself; None means the
            container itself if it is a volume (array, OME image, TIFF, precomputed), else `default`.
        default: the usual name of a volume of this kind ("volumes/raw").

    Raises:
        MissingInput, BadData, ConfigError, PermissionDenied: see the formats.
    """
    form = detect_format(path, default if dataset is None else dataset)
    with understanding_metadata(path):
        return _open(form, path, dataset, default)


def _open(form: str, path: Path, dataset: str | None, default: str) -> SourceVolume:
    if form == "json":
        return _open_roi_json(path, dataset, default)
    if form == "tiff":
        return tiff.open_tiff(path, dataset or "")
    if form == "precomputed":
        return precomputed.open_precomputed(path, dataset or "")
    if form == "hdf5":
        return hdf5.open_hdf5(path, default if dataset is None else dataset)
    is_image, opened = TREES[form]
    if dataset is None:
        dataset = "" if is_image(path) else default
    return opened(path, dataset)


def _require(path: Path) -> None:
    """Raise an error if the path does not exist or is not local."""
    if path.exists():
        return
    if ":/" in str(path):
        raise ConfigError(
            "only local paths are read", where=path, fix="mount or copy the volume, then name the local path"
        )
    nearest = next((parent for parent in path.parents if parent.is_dir()), path.parent)
    near = difflib.get_close_matches(path.name, [entry.name for entry in nearest.iterdir()], n=1)
    raise MissingInput(
        "no such file or folder",
        where=path,
        found=f"{nearest} exists",
        fix=f"did you mean {nearest / near[0]}?" if near else "check the path; in a container, check its --bind",
    )


def _open_roi_json(path: Path, dataset: str | None, default: str) -> SourceVolume:
    """Open the container named in the file by a path relative to it; the region is in `roi_nm`.

    Raises BadData if the container is a JSON ROI file itself, or if offset and size are not three numbers.
    """
    content = read_json(path)
    container = (path.parent / str(content["container"])).resolve()
    if is_roi_json(container):
        raise BadData("the container of a JSON ROI file is another JSON ROI file", where=path, found=str(container))
    offset = to_nm3(content["offset"], str(path), "offset")
    size = to_nm3(content["size"], str(path), "size")
    if min(size) <= 0:
        raise BadData("the region of the JSON ROI file is empty", where=path, wanted="a positive size", found=str(size))
    volume = open_source(container, dataset, default)
    return replace(volume, roi_nm=(offset, size), where=f"{volume.where} (region of {path})")
