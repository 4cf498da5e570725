"""The middle of a volume, shown to a network: does it find cells there, and what does it see?

raw in the middle --prepare sample--> as a run would convert it --predict patch--> affinities --> bits, picture
"""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsdflow_command.scratch import scratch_folder
from lsdflow_contract.geometry import Vox3
from lsdflow_launch.commands import ask_stage, error_of

Bytes = NDArray[np.uint8]
HALF = 128


@dataclass
class Middle:
    """The middle of the target of an experiment file with only the table of prepare, and a network that looks at it.

    `seen`: planes of raw and of the mean affinity, u8 (y, x), one pair for each look.
    """

    network: str
    shape_vox: Vox3
    experiment_toml: str
    seen: list[tuple[Bytes, Bytes]] = field(default_factory=list)

    def cells(self, inverted: bool) -> float:
        """Let the network look, perhaps with black and white exchanged: the bits of the cells that it finds."""
        with scratch_folder(Path(tempfile.gettempdir()), "lsdflow-init") as scratch:
            experiment, raw, affinities = (scratch / name for name in ("experiment.toml", "raw.npy", "affs.npy"))
            experiment.write_text(self.experiment_toml, encoding="utf-8")
            shape = [str(n) for n in self.shape_vox]
            asked("prepare", ["sample", "--experiment", str(experiment), "--out", str(raw), "--shape", *shape])
            shown = np.load(raw, allow_pickle=False)
            shown = 255 - shown if inverted else shown
            np.save(raw, shown)
            asked("predict", ["patch", "--network", self.network, "--raw", str(raw), "--out", str(affinities)])
            found = np.load(affinities, allow_pickle=False)
        self.seen.append((shown[len(shown) // 2], found[:3, found.shape[1] // 2].mean(axis=0).astype(np.uint8)))
        return separate_cells(found)

    def picture(self) -> bytes:
        """A PNG: for each look a row, raw on the left and the mean affinity on the right, bright = the same cell."""
        from PIL import Image  # takes long to load, and few volumes need a picture

        height = max(len(plane) for pair in self.seen for plane in pair)
        width = max(plane.shape[1] for pair in self.seen for plane in pair)
        rows = [np.hstack([_centred(plane, height, width) for plane in pair]) for pair in self.seen]
        picture = io.BytesIO()
        Image.fromarray(np.vstack(rows)).save(picture, "PNG")
        return picture.getvalue()


def separate_cells(affinities: Bytes) -> float:
    """Entropy (bits) of the parts into which low affinities (3 or more, z, y, x) divide a patch; 0 if it is one part.

    A network that sees what it was trained on divides a patch into cells, .8 to 4 bits on the volumes that were tried;
    with inverted contrast nearly everything was one part, 0 to .2 bits.
    """
    from scipy.ndimage import label  # takes long to load, and only `init` needs it

    parts, _ = label(affinities[:3].min(axis=0) >= HALF)
    sizes = np.bincount(parts.ravel())[1:]
    shares = sizes / max(sizes.sum(), 1)
    return float(-(shares * np.log2(shares)).sum())


def asked(stage: str, arguments: Sequence[str]) -> dict[str, Any]:
    """The answer of a command of a stage. Raises the error that it reports."""
    answer = ask_stage(stage, [*arguments, "--json"])
    if not isinstance(answer, dict) or "exit_code" in answer:
        raise error_of(answer if isinstance(answer, dict) else {"what": json.dumps(answer), "exit_code": 70})
    return answer


def _centred(plane: Bytes, height: int, width: int) -> Bytes:
    """The plane in the middle of a black one."""
    result = np.zeros((height, width), np.uint8)
    top, left = (height - plane.shape[0]) // 2, (width - plane.shape[1]) // 2
    result[top : top + plane.shape[0], left : left + plane.shape[1]] = plane
    return result
