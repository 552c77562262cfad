"""Where NaN and inf of an operand arrive: kernels multiply them by no coefficient that is zero."""

import functools

import e3nn_jax as e3nn
import jax
import numpy as np
import pytest

from eqfuse import ops
from tests.ops.parity import NEEDS_TRITON

pytestmark = [
    NEEDS_TRITON,
    # the interpreter computes with numpy, which warns of inf - inf
    pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning"),
]

X, Y = e3nn.Irreps("2x0e+2x1o+2x2e"), e3nn.Irreps("0e+1o+2e")
OUT = ops.tensor_product(X, Y)
EDGES = ops.Edges.from_arrays([0, 1, 1], [1, 0, 2], 3)
SIZES = {"x": X.dim, "y": Y.dim, "w": OUT.num_irreps}
PLACES = [("x", 0), ("x", 3), ("x", 9), ("y", 0), ("y", 2), ("y", 6), ("w", 0), ("w", 9)]


@functools.partial(jax.jit, static_argnums=0)
def product(backend, x, y, w=None):
    """Return the product of rows, or with weights that on a graph."""
    x, y = e3nn.IrrepsArray(X, x), e3nn.IrrepsArray(Y, y)
    if w is None:
        return ops.tensor_product(x, y, backend=backend).array
    return ops.graph_tensor_product(x, y, w, EDGES, backend=backend).array


def outputs(backend, operand, column, value, on_graph):
    """Return the product of random operands, one of which holds `value` in its second row."""
    rng = np.random.default_rng(0)
    arrays = {name: rng.normal(size=(3, size)).astype("f") for name, size in SIZES.items()}
    arrays[operand][1, column] = value
    return np.asarray(product(backend, *list(arrays.values())[: 3 if on_graph else 2]))


@pytest.mark.parametrize(
    ("operand", "column", "on_graph"),
    [
        pytest.param(*place, on_graph, marks=[] if place == ("x", 3) else pytest.mark.slow)
        for on_graph in (False, True)
        for place in (PLACES if on_graph else PLACES[:-2])
    ],
)
def test_not_finite_operands_reach_outputs_as_in_e3nn(operand, column, on_graph):
    """Kernels: in all outputs that depend on them, and no other; XLA: in no more than e3nn has.

    e3nn multiplies by the zeros of a whole table of coefficients, and XLA by some of them.
    """
    one, other = (outputs("e3nn", operand, column, value, on_graph) for value in (0.5, 1.5))
    depends = abs(one - other) > 1e-4
    assert 0 < depends.sum() < depends.size
    for value in (np.nan, np.inf, -np.inf):
        lost = {
            name: ~np.isfinite(outputs(name, operand, column, value, on_graph))
            for name in ("e3nn", "xla", "llvm", "triton")
        }
        np.testing.assert_array_equal(lost["llvm"], depends, str(value))
        np.testing.assert_array_equal(lost["triton"], depends, str(value))
        assert (lost["e3nn"] >= lost["xla"]).all()
        assert (lost["xla"] >= depends).all()
