"""Every backend gives the same energies, forces, stresses and parameter gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse.data import Shape
from eqfuse.models import predict
from tests.models.conftest import ONE_OF_ALL
from tests.ops import tiers
from tests.ops.parity import BACKENDS, only

TINY = {
    "nequip": {"layers": 2, "channels": 2},
    "allegro": {"layers": 2, "channels": 2},
    "mace": {"layers": 2, "channels": 2, "correlation": 2},
}
# e3nn.gate is an elementwise product
NOT_IN_GATES = ("tensor_product",)


def everything(potential, variables, graph):
    """Prediction, and the gradient of a loss on all of it, which differentiates twice."""

    def loss(variables):
        prediction = predict(potential, variables, graph, stress=True)
        return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(prediction)), prediction

    return jax.grad(loss, has_aux=True)(variables)


def computed(make, name, backend, variables, graph):
    potential = make(name, **TINY[name], backend=backend)
    run = jax.jit(lambda v, g: everything(potential, v, g))
    return jax.tree.leaves(jax.device_get(run(variables, graph)))


@pytest.fixture(scope="module", params=ONE_OF_ALL)
def case(request, small_potential, make_graph, molecule):
    """Return a model, its parameters in float64, a graph, and what e3nn-jax makes of them."""
    name = request.param
    graph = make_graph([molecule(0, 3), molecule(1, 2)], shape=Shape(6, 14, 3))
    potential = small_potential(name, **TINY[name], backend="e3nn")
    init = jax.jit(potential.init)
    variables = init(jax.random.key(0), graph.vectors, graph.species, graph.edges)
    variables = jax.device_get(variables)
    exact = computed(small_potential, name, "e3nn", variables, graph)
    return name, variables, graph, exact


@pytest.mark.parametrize("backend", tiers.slow_unless(["llvm"], *BACKENDS))
def test_float64(case, small_potential, backend):
    name, variables, graph, exact = case
    with only(backend, forbidden=NOT_IN_GATES):
        found = computed(small_potential, name, backend, variables, graph)
    for a, b in zip(found, exact, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-9 * max(1, np.abs(b).max()))
