"""Skeletons of truth: nodes lie in their neuron, every neuron's skeleton is a forest, its length is plausible."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from lsdflow_contract.testing import voronoi_labels
from lsdflow_evaluate.skeletons.skeletonise import lattice_step_vox, skeletons_of

SPACING = (30.0, 10.0, 10.0)
FIRST = (115.0, 5.0, 5.0)


def node_labels(labels: np.ndarray, positions_nm: np.ndarray) -> np.ndarray:
    z, y, x = np.rint((positions_nm - np.array(FIRST)) / np.array(SPACING)).astype(int).T
    return labels[z, y, x]


@pytest.mark.parametrize("seed", range(3))
def test_nodes_are_in_their_neuron_and_edges_form_a_forest_of_neighbours(seed: int) -> None:
    labels = voronoi_labels((20, 24, 28), 6, seed) * np.uint64(2**40)
    labels[labels == 2**40] = 0
    skeletons = skeletons_of(labels, SPACING, FIRST)
    assert len(skeletons.edges) > 10
    assert np.array_equal(node_labels(labels, skeletons.positions_nm), skeletons.neurons)
    nodes, edges = len(skeletons.neurons), skeletons.edges
    graph = coo_array((np.ones(len(edges)), (edges[:, 0], edges[:, 1])), shape=(nodes, nodes))
    trees, _ = connected_components(graph, directed=False)
    assert len(edges) == nodes - trees
    steps = np.abs(np.diff(skeletons.positions_nm[edges], axis=1)[:, 0] / np.array(SPACING))
    assert np.rint(steps).max() <= 1


def test_a_straight_tube_has_a_skeleton_of_about_its_length() -> None:
    labels = np.zeros((5, 5, 60), np.uint64)
    labels[1:4, 1:4] = 7
    skeletons = skeletons_of(labels, (10.0, 10.0, 10.0), FIRST)
    assert 500 <= skeletons.lengths_nm.sum() <= 620
    assert set(skeletons.neurons.tolist()) == {7}


def test_specks_and_background_have_no_skeleton() -> None:
    labels = np.zeros((4, 4, 4), np.uint64)
    labels[1, 1, 1] = 3
    assert len(skeletons_of(labels, SPACING, FIRST).neurons) == 0


def test_the_lattice_is_nearly_isotropic() -> None:
    assert lattice_step_vox((10.0, 10.0, 10.0)) == (2, 2, 2)
    assert lattice_step_vox((40.0, 8.0, 8.0)) == (1, 5, 5)
    assert lattice_step_vox((30.0, 6.5, 6.5)) == (1, 5, 5)
