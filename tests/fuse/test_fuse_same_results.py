"""`ops.fuse` never raises and never changes a result: plain energies, padding, NumPy, faults."""

import e3nn_jax as e3nn
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from eqfuse.fuse import layers, rewrite
from eqfuse.fuse.moves import STRICT
from tests.ops.parity import UNOPTIMIZED

NODES, EDGES = 4, 6
X, Y = e3nn.Irreps("2x0e+1o"), e3nn.Irreps("0e+1o")
RNG = np.random.default_rng(0)
SENDERS, RECEIVERS = RNG.integers(0, NODES, (2, EDGES)).astype(np.int32)
GRAPH = np.array([0, 0, 1, 1])


@pytest.fixture(autouse=True)
def _float64(x64):
    """All of it is in float64."""


def operands():
    rng = np.random.default_rng(1)
    return [jnp.asarray(rng.normal(size=s)) for s in ((NODES, X.dim), (EDGES, Y.dim))]


def rows(x):
    return e3nn.IrrepsArray(X, x)


def summed(m, receivers=RECEIVERS):
    return e3nn.scatter_sum(m, dst=jnp.asarray(receivers), output_size=NODES)


def nodes(x, y, senders=SENDERS, receivers=RECEIVERS):
    return summed(e3nn.tensor_product(rows(x)[senders], e3nn.IrrepsArray(Y, y)), receivers)


def cotangent(array):
    return jnp.cos(jnp.arange(array.size) + 1.0).reshape(array.shape)


def assert_alike(functions: dict, *arrays, ends=None, gradients=True):
    """Assert that each function has the same values and gradients fused, in one program.

    With `ends`, integers by name, they come last.
    """

    def all_of(wrap):
        def computed(arrays, ends):
            last = () if ends is None else (ends,)

            def values(*arrays):
                return {name: wrap(f)(*arrays, *last) for name, f in functions.items()}

            if not gradients:
                return values(*arrays)
            out, pull = jax.vjp(values, *arrays)
            return out, pull(jax.tree.map(cotangent, out))

        return jax.jit(computed, compiler_options=UNOPTIMIZED)(arrays, ends)

    expected = jax.tree_util.tree_leaves_with_path(all_of(lambda f: f))
    found = all_of(lambda f: ops.fuse(f, patch=True))
    for (path, a), b in zip(expected, jax.tree.leaves(found), strict=True):
        scale = np.abs(a).max(initial=1.0)
        np.testing.assert_allclose(b, a, atol=1e-12 * scale, rtol=0, err_msg=str(path))
        assert a.dtype == b.dtype


def squared(scale):
    for _ in range(60):  # each reads the one before it twice, which takes no time
        scale = scale * scale
    return scale


def scalars(x, y):
    return nodes(x, y).filter("0e").array


ENERGIES = {
    "rows": lambda x, y: e3nn.tensor_product(rows(x)[SENDERS], y[:, :1]).array.sum(),
    "sum": lambda x, y: nodes(x, y).array.sum(),
    "scalars": lambda x, y: scalars(x, y).sum(),
    "mean": lambda x, y: scalars(x, y).mean(),
    "by hand": lambda x, y: (scalars(x, y) @ jnp.arange(3.0)).sum() / 2,
    "axis 0": lambda x, y: nodes(x, y).array.sum(0),
    "axis 1": lambda x, y: nodes(x, y).array.sum(1),
    "tanh": lambda x, y: jnp.tanh(scalars(x, y)).sum(),
    "two": lambda x, y: (scalars(x, y).sum(), nodes(x, y).array),
    "vdot": lambda x, y: jnp.vdot(nodes(x, y).array, jnp.ones((NODES, 20))),
    "masked": lambda x, y: jnp.where(GRAPH[:, None] > 0, nodes(x, y).array, 0.0).sum(),
    "graphs": lambda x, y: e3nn.scatter_sum(nodes(x, y), nel=jnp.array([1, 3])).array,
    "concatenated": lambda x, y: e3nn.mean(e3nn.concatenate([rows(x), nodes(x, y)]), axis=0).array,
    "less the mean": lambda x, y: (lambda a: (a - a.mean(0)) @ jnp.eye(3)[:, 0])(scalars(x, y)),
    "transposed": lambda x, y: scalars(x, y).T @ scalars(x, y),
    "long chain": lambda x, y: nodes(x, y).array * squared(jnp.float64(1.0)),
}


def test_plain_energies():
    """Sums, means and products of nodes, of which only some columns are read."""
    assert_alike(ENERGIES, *operands())


WITHIN = {
    "vmap": lambda x, y: jax.vmap(lambda a: nodes(a, y).array)(jnp.stack([x, 2 * x])),
    "vmap of an activation": lambda x, y: jax.vmap(
        lambda a: e3nn.scalar_activation(nodes(a, y)).array
    )(jnp.stack([x, 2 * x])),
    "pairs": lambda x, y: jnp.tanh(e3nn.tensor_product(rows(x)[:, None], rows(x)[None]).array).sum(
        1
    ),
}


@pytest.mark.parametrize("computed", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_gradients_inside(computed):
    """Gradients and tangents that the fused function takes itself."""

    def gradient(f):
        return lambda x, y: jax.grad(lambda x: jnp.sin(f(x, y)).sum())(x)

    def hessian(f):
        tangents = jnp.ones((NODES, X.dim))
        return lambda x, y: jax.jvp(lambda x: gradient(f)(x, y), (x,), (tangents,))[1]

    inside = {f"gradient of {k}": gradient(f) for k, f in WITHIN.items()}
    functions = WITHIN | inside | {"second": hessian(WITHIN["vmap"])}
    if computed:
        assert_alike(functions, *operands())
    for function in functions.values():  # faults are errors of tracing
        fused = jax.eval_shape(ops.fuse(function, patch=True), *operands())
        assert fused == jax.eval_shape(function, *operands())


class Network(nn.Module):
    """Features beside an unweighted product, summed, a Linear and a gate, several times."""

    layers: int
    gate: bool = True

    @nn.compact
    def __call__(self, x, y):
        x, y = rows(x), e3nn.IrrepsArray(Y, y)
        for _ in range(self.layers):
            m = (e3nn.scalar_activation(x) if not self.gate else x)[SENDERS]
            m = e3nn.concatenate([m, e3nn.tensor_product(m, y)]).regroup()
            m = summed(m)
            x = e3nn.flax.Linear("3x0e+1o" if self.gate else X)(m / 2.0)
            x = e3nn.gate(x) if self.gate else x
        return x.array


@pytest.mark.parametrize(
    ("count", "gate"), [(1, False), pytest.param(2, True, marks=pytest.mark.slow)]
)
def test_layers_of_features_in_chunks(count, gate):
    """A 1o of chunks is three channels of one component beside a product, and no block of 1o."""
    x, y = operands()
    network = Network(count, gate)
    parameters = network.init(jax.random.key(0), x, y)
    assert_alike({"": lambda x, y: network.apply(parameters, x, y)}, x, y, gradients=False)


PADDING = {
    "both N": ([0, 1, NODES, NODES, 2, 1], [1, 2, NODES, NODES, 0, 3]),
    "receivers": ([0, 1, 2, 3, 2, 1], [1, 2, NODES, NODES + 3, 0, 3]),
    "senders": ([0, 1, NODES, NODES + 3, 2, 1], [1, 2, 0, 3, 0, 3]),
    "negative": ([0, -1, 2, -NODES - 2, 2, 1], [-2, 2, 0, 3, -NODES - 9, 3]),
}


def batch(x, y, w, ends, own: bool):
    """Compute two graphs, of the same edges or of their own."""
    pair = jnp.stack([x, 2 * x]), jnp.stack([y, 3 * y])
    ends = jnp.stack([ends, ends[:, ::-1]]) if own else ends
    return jax.vmap(lambda x, y, ends: nodes(x, y, *ends).array, (0, 0, 0 if own else None))(
        *pair, ends
    )


def linear(m, w):
    names = [f"w[{n},{n}] {b},{b}" for n, b in enumerate(X)]
    return ops.linear(m, {n: w[: b.mul, : b.mul] for n, b in zip(names, X, strict=True)}, X)


def linears(x, y, w, ends):
    """Compute a Linear of gathered rows, and one of messages."""
    m = e3nn.tensor_product(linear(rows(x)[ends[0]], w), e3nn.IrrepsArray(Y, y))
    return summed(linear(rows(m.array[:, : X.dim]), w), ends[1]).array


def test_padding_in_vmap_and_around_linears():
    """JAX reads the nearest row for a promised index, adds to none, and has derivatives of it."""
    kinds = {"own": lambda *a: batch(*a, own=True), "shared": lambda *a: batch(*a, own=False)}
    kinds["Linears"] = linears
    functions = {
        f"{kind}, {name}": lambda x, y, w, ends, f=f, name=name: f(x, y, w, ends[name])
        for kind, f in kinds.items()
        for name in PADDING
    }
    w = jnp.asarray(np.random.default_rng(2).normal(size=(2, 2)))
    ends = {name: jnp.asarray(pair) for name, pair in PADDING.items()}
    assert_alike(functions, *operands(), w, ends=ends)


def test_filled_rows_of_dropped_edges_are_in_no_gradient():
    """`jnp.take` fills rows with NaN, whose sum no node has and no Linear reads."""

    def function(x, y, w, ends):
        m = e3nn.tensor_product(rows(jnp.take(x, ends[0], axis=0)), e3nn.IrrepsArray(Y, y))
        n = summed(m, ends[1])
        return linear(rows(n.array[:, : X.dim]), w).array

    ends, w = jnp.asarray(PADDING["both N"]), jnp.eye(2)
    gradients = jax.grad(
        lambda x, w: ops.fuse(function, patch=True)(x, operands()[1], w, ends).sum(), (0, 1)
    )
    assert all(np.isfinite(a).all() for a in gradients(operands()[0], w))
    assert "outputs out[receiver" in str(
        jax.make_jaxpr(ops.fuse(function, patch=True))(*operands(), w, ends)
    )


@pytest.mark.parametrize(
    ("function", "given"),
    [
        (lambda x, n: jnp.repeat(x, n), np.array([1, 2, 3])),
        (lambda x, n: x * int(n.sum()), np.array([1, 2])),
        (lambda x, n: x if n else -x, np.array(False)),
        (lambda x, n: x * int(n.sum()), jnp.array([1, 2])),  # as it runs without `fuse`
        (lambda x, n: (n * 2.5, x), np.ones(2, np.float32)),
    ],
)
def test_arguments_of_numpy_are_numbers(function, given):
    x, other = jnp.arange(3.0), ~given if given.dtype == bool else given + 1
    for argument in (given, other):
        found, expected = ops.fuse(function)(x, argument), function(x, argument)
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            assert type(a) is type(b)
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)


def test_filter_of_an_iterator():
    x, y = rows(operands()[0]), e3nn.IrrepsArray(Y, operands()[1])
    for backend in ("xla", "llvm", "e3nn"):
        keep = (e3nn.Irrep(ir) for ir in ("0e", "1o"))
        m = ops.tensor_product(x[SENDERS], y, filter_ir_out=keep, backend=backend)
        assert m.irreps == "3x0e+3x1o"


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_linear_of_a_sum_of_another_dtype(scale):
    """A Linear in float32 of a sum in bfloat16 is no layer of one dtype."""

    def function(x, y):
        m = ops.tensor_product(rows(x)[SENDERS], e3nn.IrrepsArray(Y, y), filter_ir_out="0e")
        n = summed(m).astype(jnp.float32) / scale
        return ops.linear(n, {"w[0,0] 3x0e,2x0e": jnp.eye(3, 2, dtype="float32")}, "2x0e").array

    x, y = (a.astype(jnp.bfloat16) for a in operands())
    found, exact = ops.fuse(function)(x, y), function(*(a.astype(jnp.float32) for a in (x, y)))
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, exact, atol=2**-7 * np.abs(exact).max())


@pytest.mark.parametrize("given", [np.asarray, jnp.asarray, jnp.flip])
def test_one_end_is_known(given):
    """Indices of which one end is an array and the other is computed in the trace."""
    (x, y), receivers = operands(), given(RECEIVERS)

    def function(x, y):
        m = ops.tensor_product(rows(x)[SENDERS], e3nn.IrrepsArray(Y, y))
        return jax.ops.segment_sum(m.array, receivers, NODES)

    assert "out[receiver" in str(jax.make_jaxpr(ops.fuse(function))(x, y))
    np.testing.assert_allclose(ops.fuse(function)(x, y), function(x, y), atol=1e-12)


def failing(*args, **kwargs):
    raise IndexError("no such place\nmore")


FAULTS = {
    "matcher": ((rewrite.MATCHERS, "scatter-add"), "as written"),
    "op": ((layers.GraphProduct, "compute"), "as written"),
    "columns": ((rewrite, "columns_read"), "all of it is"),
    "rules": ((rewrite, "commuted"), "the whole function"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_leave_the_code_as_it_is(name, monkeypatch, capsys):
    (owner, place), said = FAULTS[name]
    put = monkeypatch.setitem if isinstance(owner, dict) else monkeypatch.setattr
    put(owner, place, failing)
    x, y = operands()
    token = STRICT.set(False)
    try:
        found = ops.fuse(lambda x, y: nodes(x, y).array, patch=True, report=True)(x, y)
    finally:
        STRICT.reset(token)
    np.testing.assert_allclose(found, nodes(x, y).array, atol=1e-12)
    report = capsys.readouterr().out
    assert said in report
    if name != "columns":
        assert "all of it is" not in report
        assert "IndexError: no such place" in report
        with pytest.raises(IndexError, match="no such place"):
            ops.fuse(nodes, patch=True)(x, y)


def test_errors_of_the_function_pass():
    with pytest.raises(KeyError, match="mine"):
        ops.fuse(lambda x: {}["mine"])(jnp.ones(2))


def test_check_compares_values_and_gradients(monkeypatch, capsys):
    x, y = operands()
    assert ops.fuse(nodes, patch=True, check=True)(x, y).shape == (NODES, 20)
    with pytest.warns(UserWarning, match="compares numbers"):
        jax.eval_shape(ops.fuse(nodes, patch=True, check=True), x, y)
    compute = layers.GraphProduct.compute
    for wrong in (lambda a: a * 1.001, lambda a: a + 1e-3 * (a - jax.lax.stop_gradient(a))):
        monkeypatch.setattr(layers.GraphProduct, "compute", lambda *a, f=wrong: f(compute(*a)))
        with pytest.raises(ValueError, match="changes the results: WRONG"):
            ops.fuse(nodes, patch=True, check=True)(x, y)
        ops.fuse(nodes, patch=True, report=True)(x, y)
        assert "WRONG" in capsys.readouterr().out.splitlines()[-1]


SQUARE = e3nn.Irreps("4x0e")


def square_messages(x):
    return ops.tensor_product(e3nn.IrrepsArray(SQUARE, x)[SENDERS], jnp.ones((EDGES, 1)))


def square_linear(x, w):
    return ops.linear(x, {"w[0,0] 4x0e,4x0e": w}, SQUARE)


def of_transposed(x, w):
    """Transpose sums of nodes, which are as many as each has numbers."""
    return square_linear(e3nn.IrrepsArray(SQUARE, summed(square_messages(x)).array.T), w).array


def two_counts(x, w):
    """Gather parts of a row from arrays of different length by one index."""
    parts = [e3nn.IrrepsArray("2x0e", a)[SENDERS] for a in (x[:, :2], jnp.tile(w[:, :2], (2, 1)))]
    m = ops.tensor_product(e3nn.concatenate(parts).simplify(), jnp.ones((EDGES, 1)))
    return summed(square_linear(m, w)).array


def by_nodes(x, w):
    """Multiply messages with a number of their senders behind a Linear."""
    return summed(square_linear(square_messages(x), w) * w[SENDERS, :1]).array


def rounded(x, w):
    """Sum in a narrower dtype over channels, before the sum over edges."""
    axes = (((1,), (0,)), ((), ()))
    options = {"preferred_element_type": "float32"}
    m = jax.lax.dot_general(square_messages(x).array, jnp.eye(4), axes, **options)
    return jax.ops.segment_sum(m.astype(x.dtype), RECEIVERS, NODES)


def test_shapes_that_are_alike():
    """Matrices that are transposed, counts of nodes, numbers of nodes, and dtypes between."""
    x = jnp.asarray(np.random.default_rng(3).normal(size=(NODES, 4)))
    functions = {f.__name__: f for f in (of_transposed, two_counts, by_nodes, rounded)}
    assert_alike(functions, x, x[::-1] + 0.5)


def test_derivatives_with_tangents_that_are_zeros():
    """JAX gives arrays of zeros as tangents within `remat` and `scan`."""
    x, y = operands()
    w = jnp.eye(2)
    product = lambda x, y: nodes(x, y).array  # noqa: E731
    for function, other in (
        (ops.fuse(product, patch=True), y),
        (lambda x, w: linear(rows(x), w).array, w),
    ):
        linearized = lambda t, f=function, o=other: jax.jvp(f, (x, o), (t, jnp.zeros_like(o)))[1]  # noqa: E731
        ct = cotangent(function(x, other))
        [found] = jax.linear_transpose(linearized, x)(ct)
        np.testing.assert_allclose(found, jax.vjp(function, x, other)[1](ct)[0], atol=1e-12)
