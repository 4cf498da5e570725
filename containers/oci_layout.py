"""`docker save IMAGE | oci_layout.py FOLDER`: a saved image as an OCI layout, which Apptainer reads as it is.

Asked for an image of an engine, Apptainer compresses every layer only to unpack it again: three quarters of the time of
a conversion. In this layout layers are gzip members that hold their data uncompressed, so both steps cost a copy.
Reads the archives of docker and podman, of old engines and new; writes layers once each, as they come by.
Exit code 65, and why, for what is no such archive.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import sys
import tarfile
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any

PIECE = 1 << 20
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
CONFIG = "application/vnd.oci.image.config.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
GZIP_MAGIC, ZSTD_MAGIC = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
BAD_DATA = 65


class _Hashed:
    """A file that is written, counted and hashed at once."""

    def __init__(self, path: Path) -> None:
        self.path, self.size, self._hash = path, 0, hashlib.sha256()
        self._file = path.open("wb")

    def write(self, data: bytes) -> int:
        self.size += len(data)
        self._hash.update(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def close(self, media_type: str) -> dict[str, Any]:
        """Give the blob the name of its digest; its descriptor."""
        self._file.close()
        digest = self._hash.hexdigest()
        self.path.rename(self.path.with_name(digest))
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": self.size}


def _add_blob(blobs: Path, data: bytes, media_type: str) -> dict[str, Any]:
    blob = _Hashed(blobs / "unnamed")
    blob.write(data)
    return blob.close(media_type)


def _add_layer(blobs: Path, layer: IO[bytes]) -> dict[str, Any]:
    """One layer; gzip stays as it is, a plain tar is wrapped without compressing it."""
    blob = _Hashed(blobs / "unnamed")
    piece = layer.read(PIECE)
    if piece.startswith(ZSTD_MAGIC):
        raise ValueError("a layer compressed by zstd, which not every Apptainer reads")
    if piece.startswith(GZIP_MAGIC):
        while piece:
            blob.write(piece)
            piece = layer.read(PIECE)
    else:
        with gzip.GzipFile(filename="", mode="wb", compresslevel=0, fileobj=blob, mtime=0) as wrapped:
            while piece:
                wrapped.write(piece)
                piece = layer.read(PIECE)
    return blob.close(LAYER)


def write_layout(archive: IO[bytes], folder: Path) -> str:
    """Write the one image of a saved archive as a layout; returns the digest of its manifest.

    Raises ValueError if it is no archive, holds no image or several, or lacks a part of it.
    """
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    try:
        found = _read(archive, blobs)
        (image,) = json.loads(found.texts["manifest.json"])
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": _add_blob(blobs, found.texts[image["Config"]], CONFIG),
            "layers": [found.layer(name, blobs) for name in image["Layers"]],
        }
    except (tarfile.TarError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not the archive of one image: {type(error).__name__}: {error}") from error
    described = _add_blob(blobs, json.dumps(manifest).encode(), MANIFEST)
    named = {**described, "annotations": {"org.opencontainers.image.ref.name": "image"}}
    (folder / "oci-layout").write_text(json.dumps({"imageLayoutVersion": "1.0.0"}))
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [named]}))
    return str(described["digest"])


@dataclass
class _Archive:
    """What came by: descriptors of layers already written, small files, and which names are links to others."""

    layers: dict[str, dict[str, Any]] = field(default_factory=dict)
    texts: dict[str, bytes] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)

    def layer(self, name: str, blobs: Path) -> dict[str, Any]:
        """The descriptor of a layer; equal layers may be links, small ones of new engines look like any small file."""
        real = self.links.get(name, name)
        if real in self.texts:
            self.layers[real] = _add_layer(blobs, io.BytesIO(self.texts[real]))
        if real not in self.layers:
            raise ValueError(f"the layer {name} is missing")
        return self.layers[real]


def _read(archive: IO[bytes], blobs: Path) -> _Archive:
    found = _Archive()
    with tarfile.open(fileobj=archive, mode="r|") as tar:
        for member in tar:
            if member.issym() or member.islnk():
                base = PurePosixPath(member.name).parent if member.issym() else PurePosixPath()
                found.links[member.name] = _plain(base / member.linkname)
            elif (content := tar.extractfile(member)) is not None:
                if member.size < PIECE and not member.name.endswith(".tar"):
                    found.texts[member.name] = content.read()
                else:
                    found.layers[member.name] = _add_layer(blobs, content)
    return found


def _plain(path: PurePosixPath) -> str:
    """The path with its `..` resolved."""
    parts: list[str] = []
    for part in path.parts:
        if part == "..":
            del parts[-1:]
        else:
            parts.append(part)
    return "/".join(parts)


def main(arguments: list[str]) -> int:
    """Entry point; returns the exit code."""
    try:
        write_layout(sys.stdin.buffer, Path(arguments[0]))
    except ValueError as error:
        sys.stderr.write(f"error: {error}\n")
        return BAD_DATA
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
