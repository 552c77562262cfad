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


def computed(make, name, backend, dtype, variables, graph):
    potential = make(name, **TINY[name], backend=backend)
    variables, graph = jax.tree.map(
        lambda a: np.asarray(a, dtype) if a.dtype == np.float64 else a, (variables, graph)
    )
    run = jax.jit(lambda v, g: everything(potential, v, g))
    found = jax.device_get(run(variables, graph))
    assert {leaf.dtype for leaf in jax.tree.leaves(found)} == {np.dtype(dtype)}
    return jax.tree.leaves(jax.tree.map(lambda a: a.astype(np.float64), found))


@pytest.fixture(scope="module", params=ONE_OF_ALL)
def case(request, small_potential, make_graph, molecule):
    """Return a model, its parameters in float64, a graph, and what e3nn-jax makes of them."""
    name = request.param
    graph = make_graph([molecule(0, 3), molecule(1, 2)], shape=Shape(6, 14, 3))
    potential = small_potential(name, **TINY[name], backend="e3nn")
    init = jax.jit(potential.init)
    variables = init(jax.random.key(0), graph.vectors, graph.species, graph.edges)
    variables = jax.device_get(variables)
    exact = computed(small_potential, name, "e3nn", np.float64, variables, graph)
    return name, variables, graph, exact


@pytest.fixture(scope="module")
def rounded(case, small_potential):
    """Return what e3nn-jax makes of a case in float32."""
    name, variables, graph, _ = case
    return computed(small_potential, name, "e3nn", np.float32, variables, graph)


@pytest.mark.parametrize("backend", tiers.slow_unless(["llvm"], *BACKENDS))
def test_float64(case, small_potential, backend):
    name, variables, graph, exact = case
    with only(backend, forbidden=NOT_IN_GATES):
        found = computed(small_potential, name, backend, np.float64, variables, graph)
    for a, b in zip(found, exact, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-9 * max(1, np.abs(b).max()))


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_float32_is_as_good_as_that_of_e3nn(case, rounded, small_potential, backend):
    """No array is off by more than twice what e3nn-jax is, or by a hundred roundings.

    A layer is some ten products and sums after each other, and there are two, differentiated twice.
    """
    name, variables, graph, exact = case
    with only(backend, forbidden=NOT_IN_GATES):
        found = computed(small_potential, name, backend, np.float32, variables, graph)
    unit = np.finfo(np.float32).eps / 2
    for a, b, e3nn_result in zip(found, exact, rounded, strict=True):
        allowed = max(2 * np.abs(e3nn_result - b).max(), 100 * unit * np.abs(b).max())
        assert np.abs(a - b).max() <= allowed
