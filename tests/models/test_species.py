"""Networks for some of their species."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import models
from eqfuse.data import Shape, collate

FIELDS = {
    "nequip": {"radial_hidden": 4},
    "allegro": {"latent_dim": 4, "readout_hidden": 2},
    "allegro of the program": {"latent_dim": 4, "dense": True, "two_body": "product"},
    "allegro of splines": {"latent_dim": 4, "dense": True, "two_body": "spline"},
    "mace": {
        "radial_hidden": 4,
        "readout_hidden": 2,
        "species_linear": True,
        "first_skip": True,
        "density_normalization": True,
        "distance_transform": "agnesi",
        "atomic_numbers": (1, 6, 7, 8),
    },
}


@pytest.mark.parametrize("name", FIELDS)
def test_the_parameters_are_those_of_a_network_made_for_the_species(name):
    """No parameter with numbers of a species was forgotten, and those that stay are in order."""
    fields = {"num_species": 4, "channels": 2, "lmax": 1, "layers": 2, **FIELDS[name]}
    model = models.build(name.split()[0], **fields, backend="xla")
    potential = models.Potential(model, scale=(1.0, 2.0, 3.0, 4.0), shift=(0.0,) * 4)
    smaller, params = potential.narrow(_parameters(potential), np.array([0, 3]))
    expected = _parameters(smaller)
    assert smaller.scale == (1.0, 4.0)
    assert smaller.model.num_species == 2
    shapes = [jax.tree.map(jnp.shape, tree) for tree in (params, expected)]
    assert shapes[0] == shapes[1]
    np.testing.assert_array_equal(params["params"]["scale"], [1.0, 4.0])


def _parameters(potential):
    graph = collate([], Shape(2, 2, 1), "float32").graph
    return potential.init(jax.random.key(0), graph.vectors, graph.species, graph.edges)
