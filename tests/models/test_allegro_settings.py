"""The settings of Allegro in which networks of nequip-allegro differ from it, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse.models import Allegro
from eqfuse.models.radial import spline_basis
from tests.models.networks import small, variables_of


def test_splines_are_smooth_and_end_at_one():
    """Check by hand that bump k, of 4 that span 1 other, goes from (k - 1)/4 to (k + 1)/4."""
    x = jnp.array([0.0, 0.25, 0.5, 0.625, 1.0, 1.5])
    expected = [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0.25, 0.25], [0] * 4, [0] * 4]
    np.testing.assert_allclose(spline_basis(x, 4, 1), expected, atol=1e-12)
    slope = jax.jacobian(lambda x: spline_basis(x[None], 4, 1)[0])(jnp.array(1 - 1e-6))
    np.testing.assert_allclose(slope, 0, atol=1e-12)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"two_body": "sum"}, "two_body must be one of concatenate, product, spline"),
        ({"two_body": "product", "embedding_dim": 5}, "needs an even embedding_dim, got 5"),
        ({"two_body": "spline", "spline_span": 17}, "between 0 and num_splines, 16, got 17"),
        ({"pair_cutoffs": ((3.0,),)}, "pair_cutoffs must be 3 rows of as many cutoffs"),
        ({"species_neighbors": (2.0, 3.0)}, "species_neighbors must be 3 positive numbers"),
        ({"readout_layers": 0}, "readout_layers must be positive"),
    ],
)
def test_settings_that_are_impossible_are_refused(graph, settings, message):
    with pytest.raises(ValueError, match=message):
        variables_of(small(Allegro, **settings), graph)
