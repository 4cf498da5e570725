"""Read variables of TensorFlow 1 checkpoints (`<prefix>.index`, `<prefix>.data-...`) with TensorFlow's own reader."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from lsdflow_contract.errors import BadData, MissingInput
from lsdflow_importers.tf1 import GraphNode

_SHARD = re.compile(r"\.data-(\d{5})-of-(\d{5})$")


def checkpoint_files(prefix: Path) -> list[Path]:
    """The index and all data files of a checkpoint. Raises MissingInput (66) if one of them is absent."""
    index = prefix.with_name(prefix.name + ".index")
    shards = [_SHARD.search(path.name) for path in sorted(prefix.parent.glob(f"{prefix.name}.data-*"))]
    count = max((int(shard[2]) for shard in shards if shard), default=1)
    wanted = [index, *(prefix.with_name(f"{prefix.name}.data-{i:05}-of-{count:05}") for i in range(count))]
    missing = [path.name for path in wanted if not path.is_file()]
    if missing:
        raise MissingInput(
            "a file of the checkpoint is missing",
            where=prefix.parent,
            wanted=", ".join(path.name for path in wanted),
            found=f"no {', '.join(missing)}",
            fix="copy all files of the checkpoint, or correct --from",
        )
    return wanted


def variable_shapes(prefix: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all variables. Raises BadData (65) for a damaged index."""
    with _reading(prefix):
        found: dict[str, Any] = tf.train.load_checkpoint(str(prefix)).get_variable_to_shape_map()
    return {name: tuple(shape) for name, shape in sorted(found.items())}


def variable_values(prefix: Path, names: Iterable[str]) -> dict[str, NDArray[Any]]:
    """Values of some variables, float32. Raises BadData (65) for damaged files: the reader compares checksums."""
    with _reading(prefix):
        reader = tf.train.load_checkpoint(str(prefix))
        return {name: np.asarray(reader.get_tensor(name), np.float32) for name in names}


def graph_nodes(prefix: Path) -> list[GraphNode]:
    """The operations of the graph beside a checkpoint; [] without `<prefix>.meta`. Raises BadData if it is damaged."""
    path = prefix.with_name(prefix.name + ".meta")
    if not path.is_file():
        return []
    graph = tf.compat.v1.MetaGraphDef()
    try:
        graph.ParseFromString(path.read_bytes())
    except DecodeError as error:
        raise BadData("the graph is damaged", where=path, found=error, fix="copy it again") from error
    return [_node(node) for node in graph.graph_def.node]


def _node(node: Any) -> GraphNode:
    sizes = list(node.attr["ksize"].list.i) if "ksize" in node.attr else []
    first = node.attr["data_format"].s == b"NCDHW" if "data_format" in node.attr else False
    window = (sizes[2:] if first else sizes[1:4]) if len(sizes) == 5 else None
    padding = node.attr["padding"].s.decode() if "padding" in node.attr else ""
    return GraphNode(node.name, node.op, padding, None if window is None else (window[0], window[1], window[2]))


@contextmanager
def _reading(prefix: Path) -> Iterator[None]:
    try:
        yield
    except (tf.errors.OpError, RuntimeError, ValueError, LookupError) as error:  # the reader raises all of these
        raise BadData(
            "the checkpoint is damaged or cut short",
            where=prefix,
            found=str(error).splitlines()[0] if str(error) else type(error).__name__,
            fix="copy it again, or use another iteration",
        ) from error
