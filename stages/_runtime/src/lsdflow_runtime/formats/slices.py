"""The TIFF slices of a folder: one series of files, in the order of the numbers in their names."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

from lsdflow_contract.errors import BadData

SUFFIXES = (".tif", ".tiff")
NAMES_LISTED = 5


def slices_in(folder: Path) -> list[Path]:
    """The TIFF files of a folder without hidden ones, as macOS leaves them beside each file (._name)."""
    return [f for f in folder.iterdir() if f.suffix.lower() in SUFFIXES and not f.name.startswith(".")]


def refuse_other_series(files: list[Path], folder: Path) -> None:
    """BadData for files that are not one series of sections, and for sections that are missing in their numbering.

    All names are the same but for their numbers, of which one differs in every name: that of the section.
    """
    patterns = Counter(re.sub(r"\d+", "#", file.stem) for file in files)
    if len(patterns) > 1:
        listed = [f"{count} like {name}" for name, count in patterns.most_common(NAMES_LISTED)]
        raise BadData(
            "the folder has more than one series of TIFF files",
            where=folder,
            wanted="names that differ in the number of the section",
            found=", ".join(listed) + " ..." * (len(patterns) > NAMES_LISTED),
            fix="move each series, and other pictures, to a folder of its own; rename sections that were repaired",
        )
    columns = [
        [int(text) for text in column] for column in zip(*(re.findall(r"\d+", f.stem) for f in files), strict=True)
    ]
    varying = [number for number, column in enumerate(columns) if len(set(column)) > 1]
    own = [number for number in varying if len(set(columns[number])) == len(files)]
    if len(varying) > 1 and (not own or columns[own[0]] != sorted(columns[own[0]])):
        words = re.split(r"\d+", files[0].stem)
        series = [sorted({f"{words[n].lstrip('_-. ')}{value}" for value in columns[n]}) for n in varying]
        raise BadData(
            f"the names of the slices have {len(varying)} series of numbers",
            where=folder,
            wanted="one, that of the sections",
            found="; ".join(", ".join(names[:NAMES_LISTED]) + " ..." * (len(names) > NAMES_LISTED) for names in series),
            fix="move the slices of each channel or stack to a folder of its own",
        )
    if varying:
        _refuse_missing_slices(files, columns[own[0] if own else varying[0]], folder)


def _refuse_missing_slices(files: list[Path], numbers: list[int], folder: Path) -> None:
    """BadData naming the first slices that are missing in `numbers`. A constant step of any size counts as complete."""
    steps = {after - before for before, after in pairwise(numbers)}
    if len(steps) < 2:
        return
    step = max(1, min(steps))
    missing = [n for before, after in pairwise(numbers) for n in range(before + step, after, step)]
    place = next(i for i, (before, after) in enumerate(pairwise(numbers)) if after - before != step)
    raise BadData(
        f"{len(missing)} slices are missing in the folder" if missing else "two slices have the same number",
        where=folder,
        wanted=f"numbers in steps of {step}"
        + (f", also {', '.join(map(str, missing[:NAMES_LISTED]))}" * bool(missing)),
        found=f"{files[place + 1].name} follows {files[place].name}",
        fix="copy the missing slices; if they do not exist, put copies of their neighbours in their place; if the "
        "numbers are not those of sections, number the files again",
    )


def natural_order(path: Path) -> list[tuple[int, int, str]]:
    """Sort key by which slice_9 comes before slice_10."""
    parts = re.split(r"(\d+)", path.name)
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in parts]
