"""Products whose kernels read weights from a table, against those of interpolated weights."""

import dataclasses
import functools

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from tests.ops.parity import along_random_directions, assert_close, only
from tests.parameters import drawn

NODES, EDGES, INTERVALS, ORDER = 4, 11, 3, 4
HARMONICS = "0e+1o"
# of the largest number of a result: the rounding of sums of some hundred products
assert_close64 = functools.partial(assert_close, tolerance=1e-14)


def problem(
    mul: int = 5, dtype: str = "float64", backend: str = "llvm", receivers: int | None = None
):
    """Return a product of x, y, numbers and a table by kernels, by interpolated weights, and these.

    Two edges are padding.
    """
    rng = np.random.default_rng(0)
    irreps = f"{mul}x0e+{mul}x1o"
    width = ops.tensor_product(irreps, HARMONICS).num_irreps

    def array(*shape):
        return jnp.asarray(rng.normal(size=shape), dtype)

    ends = rng.integers(NODES, size=(2, EDGES)) % np.array([[NODES], [receivers or NODES]])
    edges = dataclasses.replace(ops.Edges.from_arrays(*ends, NODES), num_receivers=receivers)
    intervals = jnp.asarray(rng.integers(INTERVALS, size=EDGES), jnp.int32)
    factor = jnp.asarray(np.arange(EDGES) < EDGES - 2, dtype)[:, None]
    numbers = jnp.asarray(rng.uniform(-1, 1, size=(EDGES, 1)), dtype) * factor
    table = ops.Tabulated(array(INTERVALS, ORDER, width), intervals, numbers, factor)
    x, y = array(NODES, e3nn.Irreps(irreps).dim), array(EDGES, e3nn.Irreps(HARMONICS).dim)
    module = ops.TensorProductLinear(f"{mul}x0e+{mul}x1o+2x1e+1x2e", backend=backend)

    def operands(x, y):
        return e3nn.IrrepsArray(irreps, x), e3nn.IrrepsArray(HARMONICS, y)

    params = drawn(module.clone(backend="xla"), *operands(x, y), table.rows("xla"), edges)
    params = jax.tree.map(lambda p: p.astype(dtype), params)

    def op(make):
        def function(x, y, numbers, coefficients=table.table):
            weights = make(table._replace(numbers=numbers, table=coefficients))
            return module.apply(params, *operands(x, y), weights, edges).array

        return function

    point = x, y, numbers, table.table
    return op(lambda weights: weights), op(lambda weights: weights.rows()), point


def gradients_of(function, wanted=(0, 1, 2)):
    return jax.jit(jax.grad(lambda *arrays: jnp.sum(jnp.sin(function(*arrays))), wanted))


@pytest.mark.parametrize(("mul", "dtype"), [(33, "float64"), (1, "float32")])
def test_value_and_derivatives_by_nodes_harmonics_and_numbers(mul, dtype, x64):
    """33 channels are whole vectors and a rest."""
    kernels, interpolated, (*point, _) = problem(mul, dtype)
    orders = ("value", "vjp", "jvp", "vjp of vjp")
    with only("llvm"):
        found = along_random_directions(kernels, *point, orders=orders)
    expected = along_random_directions(interpolated, *point, orders=orders)
    assert_close(found, expected, 1e-14 if dtype == "float64" else 3e-6)


def test_padding_has_no_gradient(x64):
    kernels, _, point = problem()
    _, dy, dnumbers = gradients_of(kernels)(*point)
    assert jnp.concatenate([dy[:-2], dnumbers[:-2]], axis=1).all()
    assert not jnp.concatenate([dy[-2:], dnumbers[-2:]], axis=1).any()


def test_no_array_of_weights_in_evaluation(x64):
    """Weights have 30 columns, and neither they nor their gradient is an array of all edges."""
    *functions, (*point, table) = problem()
    texts = [gradients_of(f).lower(*point).as_text() for f in functions]
    weights = f"tensor<{EDGES}x{table.shape[-1]}xf64>"
    assert [weights in text for text in texts] == [False, True]


def derivatives_of_all(function):
    """Return derivatives, also by the table: first and second ones, which no kernel computes."""
    orders = ("vjp", "vjp of vjp")
    return lambda *point: along_random_directions(function, *point, orders=orders)


def members(function):
    return lambda *point: jax.jit(jax.vmap(function))(*(jnp.stack([a, 2 * a]) for a in point))


TRANSFORMS = {
    "gradient of nodes": lambda f: gradients_of(f, (0,)),
    "gradients of harmonics and numbers": lambda f: gradients_of(f, (1, 2)),
    "derivatives by the table": derivatives_of_all,
    "vmap": members,
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transformations(name, x64):
    *functions, (*point, table) = problem()
    point += [table] if "table" in name else []
    assert_close64(*(TRANSFORMS[name](f)(*point) for f in functions))


def test_nodes_that_only_send(x64):
    kernels, interpolated, point = problem(receivers=2)
    assert kernels(*point).shape[0] == 2
    assert_close64(*(gradients_of(f)(*point) for f in (kernels, interpolated)))


def test_steps_of_a_sequence(x64):
    kernels, _, point = problem()
    gradients = gradients_of(kernels)
    assert_close64(jax.jit(ops.sequence(gradients))(*point), gradients(*point))


@pytest.mark.parametrize("backend", ["xla", "e3nn"])
def test_other_backends_interpolate_first(backend, x64):
    kernels, _, point = problem()
    assert_close64(*(jax.jit(f)(*point) for f in (problem(backend=backend)[0], kernels)))


def test_results_are_repeatable_to_the_bit():
    kernels, _, point = problem(33, "float32")
    first, second = (gradients_of(kernels)(*point) for _ in range(2))
    assert_close(first, second, 0)


def test_table_of_another_width_is_refused(x64):
    kernels, _, (*point, table) = problem()
    with pytest.raises(ValueError, match=r"table must be \[intervals, order, 30 irreps of"):
        kernels(*point, table[:, :, 1:])


def test_intervals_may_be_int64():
    table = jnp.array([[[0.0], [1.0]], [[1.0], [3.0]]])
    with jax.enable_x64(True):
        rows = ops.group_by_interval(jnp.array([0, 1]), 2)
        found = ops.interpolate([table], rows, jnp.array([[1.0, 0.5], [1.0, 0.5]]))
    np.testing.assert_allclose(np.ravel(found), [0.5, 2.5])
