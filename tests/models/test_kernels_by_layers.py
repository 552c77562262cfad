"""The number of kernels that a model needs does not grow with its layers."""

import jax
import pytest
from jax.interpreters import partial_eval as pe

from benchmarks.networks import random_graph, step_on
from eqfuse.ops.primitives import lowering

# With one parity the irreps are the same from the second layer to the last but one.
MODELS = {
    "nequip": {"parity": False, "radial_layers": 1},
    "mace": {"correlation": 2},
    "allegro": {"parity": False, "latent_dim": 8},
}


LAYERS = 9, 12
"""The radial networks of three layers are one kernel: of the first to the third, and so on.

Widths differ in the first and in the last layers, so that from nine on no kernel is new.
"""


def step_of(name, layers):
    graph = random_graph(60)
    return step_on(graph, name, channels=4, lmax=1, layers=layers, **MODELS[name])


def triton_kernels(problem) -> set:
    """Return the distinct Triton kernels of a step, none of them compiled."""
    traced = jax.jit(problem.function("triton")).trace(*problem.args).jaxpr.jaxpr
    used, _ = pe.dce_jaxpr(traced, [True] * len(traced.outvars))
    return set(lowering._specs(used))


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_nine_and_twelve_layers_have_the_same_triton_kernels(name):
    few, many = (triton_kernels(step_of(name, layers)) for layers in LAYERS)
    assert len(few) > 10
    assert few == many
