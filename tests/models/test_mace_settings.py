"""The settings of MACE in which networks since 2025 differ from those before, in float64."""

import jax
import numpy as np
import pytest

from eqfuse.models import radial_table
from tests.models.networks import variables_of
from tests.models.settings_variants import mace as network


def test_nonlinear_interactions_have_no_tables(graph, monkeypatch):
    """Compute them by networks for any number of edges, for which others have tables."""
    variables = variables_of(network("nonlinear"), graph)
    arguments = variables, graph.vectors, graph.species, graph.edges
    expected = jax.jit(network("nonlinear", radial="network").apply)(*arguments).array
    monkeypatch.setitem(radial_table.EDGES_PER_KNOT, "cpu", 0)
    assert not radial_table.choose(network("nonlinear"), 10**6).table
    np.testing.assert_array_equal(jax.jit(network("nonlinear").apply)(*arguments).array, expected)
    with pytest.raises(ValueError, match="is not for nonlinear=True"):
        network("nonlinear", radial="table").apply(*arguments)
