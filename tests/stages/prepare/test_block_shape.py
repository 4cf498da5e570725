"""Blocks consist of whole chunks, and fit into memory."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lsdflow_prepare.volume_passes import MEMORY_BYTES, block_shape

EDGES = st.integers(1, 3000)
SHAPES = st.tuples(EDGES, EDGES, EDGES)


@given(SHAPES, st.sampled_from([1, 20, 40]), st.none() | SHAPES)
def test_blocks_are_whole_chunks_within_memory(shape: tuple, size: int, chunk: tuple | None) -> None:
    edge = block_shape(shape, 64, size, chunk)
    assert all(length % 64 == 0 for length in edge)
    assert np.prod(edge, dtype=object) <= max(MEMORY_BYTES // size, 64**3)


def test_small_planes_are_read_whole() -> None:
    assert block_shape((250, 250, 250), 64, 40) == (64, 256, 256)


def test_a_large_source_chunk_is_decoded_once() -> None:
    assert block_shape((1000, 1000, 1000), 64, 1, (200, 200, 200))[0] == 256
