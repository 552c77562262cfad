"""Products whose kernels read weights from a table, against those of interpolated weights."""

import dataclasses

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from tests.ops.parity import along_random_directions, only
from tests.parameters import drawn

NODES, EDGES, INTERVALS, ORDER = 4, 11, 3, 4
HARMONICS = "0e+1o"
EQUAL = {"float64": 1e-14, "float32": 3e-6}
"""Of the largest number of a result: the rounding of sums of some hundred products."""


def problem(mul: int, dtype: str = "float64", seed: int = 0):
    """Return x, y, weights, the edges and the module of a product of `mul` channels."""
    rng = np.random.default_rng(seed)
    irreps = f"{mul}x0e+{mul}x1o"
    width = ops.tensor_product(irreps, HARMONICS).num_irreps

    def array(*shape):
        return jnp.asarray(rng.normal(size=shape), dtype)

    ends = rng.integers(NODES, size=(2, EDGES))
    intervals = jnp.asarray(rng.integers(INTERVALS, size=EDGES), jnp.int32)
    factor = jnp.asarray(np.arange(EDGES) < EDGES - 2, dtype)[:, None]  # two edges are padding
    numbers = jnp.asarray(rng.uniform(-1, 1, size=(EDGES, 1)), dtype) * factor
    table = ops.Tabulated(array(INTERVALS, ORDER, width), intervals, numbers, factor)
    arrays = array(NODES, e3nn.Irreps(irreps).dim), array(EDGES, e3nn.Irreps(HARMONICS).dim)
    module = ops.TensorProductLinear(f"{mul}x0e+{mul}x1o+2x1e+1x2e", backend="llvm")
    return irreps, arrays, table, ops.Edges.from_arrays(*ends, NODES), module


def functions(irreps, arrays, table, edges, module):
    """Return the op of (x, y, number, table) by kernels, and of weights that are interpolated."""
    x, y = (e3nn.IrrepsArray(i, a) for i, a in zip((irreps, HARMONICS), arrays, strict=True))
    params = drawn(module.clone(backend="xla"), x, y, table.rows("xla"), edges)
    params = jax.tree.map(lambda p: p.astype(x.dtype), params)

    def op(make):
        def function(x, y, numbers, coefficients=table.table):
            weights = make(table._replace(numbers=numbers, table=coefficients))
            x, y = e3nn.IrrepsArray(irreps, x), e3nn.IrrepsArray(HARMONICS, y)
            return module.apply(params, x, y, weights, edges).array

        return function

    return op(lambda weights: weights), op(lambda weights: weights.rows()), (*arrays, table.numbers)


def assert_close(found, expected):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=0, atol=EQUAL[b.dtype.name] * np.abs(b).max())


def gradients_of(function, wanted=(0, 1, 2)):
    return jax.jit(jax.grad(lambda *arrays: jnp.sum(jnp.sin(function(*arrays))), wanted))


@pytest.mark.parametrize(("mul", "dtype"), [(33, "float64"), (1, "float32")])
def test_value_and_derivatives_by_nodes_harmonics_and_numbers(mul, dtype, x64):
    """33 channels are whole vectors and a rest."""
    kernels, interpolated, point = functions(*problem(mul, dtype))
    orders = ("value", "vjp", "jvp", "vjp of vjp")
    with only("llvm"):
        found = along_random_directions(kernels, *point, orders=orders)
    assert_close(found, along_random_directions(interpolated, *point, orders=orders))


def test_padding_has_no_gradient(x64):
    kernels, _, point = functions(*problem(5))
    _, dy, dnumbers = gradients_of(kernels)(*point)
    assert jnp.concatenate([dy[:-2], dnumbers[:-2]], axis=1).all()
    assert not jnp.concatenate([dy[-2:], dnumbers[-2:]], axis=1).any()


@pytest.mark.parametrize("wanted", [(0,), (1, 2)])
def test_gradients_of_some_operands(wanted, x64):
    kernels, interpolated, point = functions(*problem(5))
    assert_close(*(gradients_of(f, wanted)(*point) for f in (kernels, interpolated)))


def test_no_array_of_weights_in_evaluation(x64):
    """Weights have 30 columns, and neither they nor their gradient is an array of all edges."""
    irreps, arrays, table, edges, module = problem(5)
    kernels, interpolated, point = functions(irreps, arrays, table, edges, module)
    texts = [gradients_of(f).lower(*point).as_text() for f in (kernels, interpolated)]
    weights = f"tensor<{EDGES}x{table.table.shape[-1]}xf64>"
    assert [weights in text for text in texts] == [False, True]


def test_derivatives_by_the_table(x64):
    """First and second ones, which no kernel of the whole computes."""
    irreps, arrays, table, edges, module = problem(5)
    kernels, interpolated, point = functions(irreps, arrays, table, edges, module)
    found, expected = (
        along_random_directions(f, *point, table.table, orders=("vjp", "vjp of vjp"))
        for f in (kernels, interpolated)
    )
    assert_close(found, expected)


def test_vmap(x64):
    kernels, interpolated, point = functions(*problem(5))
    members = [jnp.stack([a, 2 * a]) for a in point]
    assert_close(*(jax.jit(jax.vmap(f))(*members) for f in (kernels, interpolated)))


def test_nodes_that_only_send(x64):
    irreps, arrays, table, edges, module = problem(5)
    senders, receivers = np.asarray(edges.senders), np.asarray(edges.receivers) % 2
    edges = dataclasses.replace(ops.Edges.from_arrays(senders, receivers, NODES), num_receivers=2)
    kernels, interpolated, point = functions(irreps, arrays, table, edges, module)
    assert kernels(*point).shape[0] == 2
    assert_close(*(gradients_of(f)(*point) for f in (kernels, interpolated)))


def test_steps_of_a_sequence(x64):
    kernels, _, point = functions(*problem(5))
    gradients = gradients_of(kernels)
    sequence = ops.sequence(gradients)
    assert_close(jax.jit(sequence)(*point), gradients(*point))


def test_other_backends_interpolate_first(x64):
    irreps, arrays, table, edges, module = problem(5)
    kernels, _, point = functions(irreps, arrays, table, edges, module)
    for backend in ("xla", "e3nn"):
        other, *_ = functions(irreps, arrays, table, edges, module.clone(backend=backend))
        assert_close(*(jax.jit(f)(*point) for f in (other, kernels)))


def test_results_are_repeatable_to_the_bit():
    kernels, _, point = functions(*problem(33, "float32"))
    first, second = (gradients_of(kernels)(*point) for _ in range(2))
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(a, b)


def test_table_of_another_width_is_refused(x64):
    irreps, arrays, table, edges, module = problem(5)
    x, y = e3nn.IrrepsArray(irreps, arrays[0]), e3nn.IrrepsArray(HARMONICS, arrays[1])
    table = table._replace(table=table.table[:, :, 1:])
    with pytest.raises(ValueError, match=r"table must be \[intervals, order, 30 irreps of"):
        module.init(jax.random.key(0), x, y, table, edges)
