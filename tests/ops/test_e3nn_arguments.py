"""Arguments of ops that e3nn and jax.numpy take, and what they make of them."""

import functools

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from tests.ops import tiers

BACKENDS = ["xla", "llvm", "e3nn"]
NATIVE = pytest.mark.parametrize("backend", tiers.slow_unless(["llvm"], *BACKENDS))
ROWS = 4


def normal(irreps, dtype=jnp.float32, seed=0, rows=ROWS):
    irreps = e3nn.Irreps(irreps)
    return e3nn.normal(irreps, jax.random.key(seed), (rows,)).astype(dtype)


def assert_close(a, b):
    """Return the same but for the order of float32 sums of fewer than 100 terms."""
    np.testing.assert_allclose(a, b, atol=100 * 2**-24 * np.abs(b).max(initial=0), rtol=0)


class TestNegativeIndex:
    """It counts from the last set of weights, as in numpy: in the value and in the gradient."""

    def assert_wraps(self, function, parameters, kind):
        def both(parameters, index):
            value, pull = jax.vjp(lambda p: function(p, index), parameters)
            return value, pull(value)

        wrapped = jax.jit(both)(parameters, jnp.array([2, 0, 1, 2]))
        index = kind([-1, 0, 1, 2])
        on_the_host = jax.jit(lambda p: both(p, index))(parameters)
        jax.tree.map(assert_close, on_the_host, wrapped)
        jax.tree.map(assert_close, jax.jit(both)(parameters, index), wrapped)

    @pytest.mark.parametrize("kind", [np.array, lambda i: jnp.array(i, jnp.int8)])
    @NATIVE
    def test_linear(self, kind, backend):
        module = ops.Linear("3x0e+2x1o", num_indexed_weights=3, backend=backend)
        x = normal("2x0e+2x1o")
        parameters = module.init(jax.random.key(0), jnp.zeros(ROWS, int), x)
        self.assert_wraps(lambda p, i: module.apply(p, i, x).array, parameters, kind)

    @NATIVE
    def test_fused(self, backend):
        options = {"num_indexed_weights": 3, "biases": True, "backend": backend}
        module = ops.TensorProductLinearGate("4x0e+2x1o", **options)
        x, y = normal("2x0e+2x1o"), normal("0e+1o", seed=1)
        parameters = module.init(jax.random.key(0), x, y, index=jnp.zeros(ROWS, int))
        self.assert_wraps(lambda p, i: module.apply(p, x, y, index=i).array, parameters, np.array)


@pytest.mark.parametrize("backend", BACKENDS)
def test_grouped_dense_promotes(backend):
    """Integers times floats, and kernels wider than x or of several types, as `x @ kernel`."""
    x, kernel = jnp.ones((1, 2), jnp.int32), jnp.full((2, 1), 0.3)
    out = ops.grouped_dense(x, [kernel], backend=backend)
    assert out.dtype == jnp.float32
    np.testing.assert_allclose(out, [[0.6]], rtol=2**-23)
    for dtypes in ((jnp.bfloat16, jnp.float32), (jnp.float32, jnp.bfloat16)):
        x, kernel = jnp.full((1, 2), 0.3, dtypes[0]), jnp.full((2, 1), 0.3, dtypes[1])
        out = ops.grouped_dense(x, [kernel, kernel.astype(jnp.bfloat16)], backend=backend)
        assert out.dtype == jnp.float32
        expected = x.astype(jnp.float32) @ kernel.astype(jnp.float32)
        np.testing.assert_allclose(out[:, :1], expected, rtol=2**-22)
    integers = ops.grouped_dense(jnp.ones((1, 2), int), [jnp.ones((2, 1), int)], backend=backend)
    assert integers.dtype == jnp.float32


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["xla", "llvm"])
def test_without_jit(backend):
    """`jax.disable_jit` is for JAX's own functions; the ops compile theirs."""
    x, y = normal("2x0e+2x1o"), normal("0e+1o", seed=1)
    linear = ops.Linear("2x0e+1o", backend=backend)
    gate = ops.TensorProductLinearGate("4x0e+2x1o", backend=backend)
    split = ops.TensorProductLinear("2x0e+1o", backend=backend)

    def results(key):
        parameters = linear.init(key, x), gate.init(key, x, y), split.init(key, x, y)

        def loss(parameters, x):
            p, q, r = parameters
            out = gate.apply(q, x, y), split.apply(r, x, y)
            return (linear.apply(p, x).array ** 2).sum() + sum((z.array**2).sum() for z in out)

        product = ops.tensor_product(x, y, backend=backend)
        return product, parameters, jax.grad(loss, (0, 1))(parameters, x)

    expected = results(jax.random.key(0))
    with jax.disable_jit():
        found = results(jax.random.key(0))
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    jax.tree.map(assert_close, found, expected)


WIDE, NARROW = [jnp.float32, jnp.bfloat16], [jnp.bfloat16, jnp.float32]


@NATIVE
@pytest.mark.parametrize("dtypes", [WIDE, NARROW], ids=["wide-first", "narrow-first"])
def test_linear_sum_promotes(dtypes, backend):
    """Whatever the order of the inputs: the wide one is not rounded."""
    a, b = (normal("2x0e+2x1o", dtype, seed) for seed, dtype in enumerate(dtypes))
    module = ops.LinearSum("2x0e+1o", ("a", "b"), backend=backend)
    parameters = module.init(jax.random.key(0), a, b)
    for name, dtype in zip("ab", dtypes, strict=True):
        assert {p.dtype for p in parameters["params"][name].values()} == {jnp.dtype(dtype)}
    wide = jax.tree.map(lambda p: p.astype(jnp.float32), (parameters, a, b))
    expected = module.apply(*wide).array
    out = module.apply(*wide[:1], a, b).array
    assert out.dtype == jnp.float32
    assert_close(out, expected)


@NATIVE
@pytest.mark.parametrize("dtypes", [WIDE, NARROW], ids=["wide-skip", "narrow-skip"])
def test_skip_promotes(dtypes, backend):
    x, y = normal("2x0e+2x1o", dtypes[1]), normal("0e+1o", dtypes[1], 1)
    skip = normal("2x0e+1o", dtypes[0], 2)
    module = ops.TensorProductLinear("2x0e+1o", backend=backend)
    parameters = module.init(jax.random.key(0), x, y)
    wide = jax.tree.map(lambda p: p.astype(jnp.float32), (parameters, x, y, skip))
    expected = module.apply(*wide[:3], skip=wide[3]).array
    out = module.apply(wide[0], x, y, skip=skip).array
    assert out.dtype == jnp.float32
    if backend == "e3nn" and dtypes is WIDE:  # its product is rounded before it is promoted
        np.testing.assert_allclose(out, expected, atol=2**-6 * np.abs(expected).max())
    else:
        assert_close(out, expected)


MODULES = {
    "linear": (ops.Linear, {}),
    "indexed": (ops.Linear, {"num_indexed_weights": 2}),
    "product": (ops.TensorProductLinear, {}),
    "gate": (ops.TensorProductLinearGate, {}),
}


WIDTHS = {
    "float32-float64": (jnp.float32, jnp.float64),
    "float64-float32": (jnp.float64, jnp.float32),
    "bfloat16-float32": (jnp.bfloat16, jnp.float32),
    "float16-float32": (jnp.float16, jnp.float32),
}


@NATIVE
@pytest.mark.parametrize(
    "widths", tiers.slow_unless(["float32-float64", "bfloat16-float32"], *WIDTHS)
)
@pytest.mark.parametrize("name", tiers.slow_unless(["linear", "gate"], *MODULES))
def test_features_and_parameters_of_two_widths_promote(x64, name, widths, backend):
    """The wider of both is the type of the result, as for e3nn, not rounded on the way."""
    (cls, options), (features, parameters) = MODULES[name], WIDTHS[widths]
    module = cls("3x0e+1o", biases=True, backend=backend, **options)
    inputs = [normal("2x0e+2x1o", features)]
    if cls is not ops.Linear:
        inputs.append(normal("0e", features, 1))
    index = [jnp.arange(ROWS) % 2] if module.num_indexed_weights else []
    params = module.init(jax.random.key(0), *index, *inputs)
    assert {p.dtype for p in jax.tree.leaves(params)} == {jnp.dtype(features)}
    assert module.apply(params, *index, *inputs).dtype == features
    params = jax.tree.map(lambda p: (p / 3).astype(parameters), params)
    out = module.apply(params, *index, *inputs)
    wide = jnp.promote_types(features, parameters)
    assert out.dtype == wide
    params, inputs = jax.tree.map(lambda a: a.astype(wide), (params, inputs))
    exact = module.apply(params, *index, *inputs).array
    if backend == "e3nn" and len(inputs) == 2:  # its product is rounded before it is promoted
        unit = 100 * 2**-24 if wide == jnp.float64 else 4 * float(jnp.finfo(features).eps)
        np.testing.assert_allclose(out.array, exact, atol=unit * np.abs(exact).max(), rtol=0)
    elif wide == jnp.float32:
        np.testing.assert_array_equal(out.array, exact)
    else:
        np.testing.assert_allclose(
            out.array, exact, atol=100 * 2**-53 * np.abs(exact).max(), rtol=0
        )


class TestArgumentsOfLinear:
    """They are those of e3nn's Linear, in its order."""

    def test_by_position(self):
        names = [f for f in e3nn.flax.Linear.__dataclass_fields__ if f not in ("parent", "name")]
        assert [*ops.Linear.__dataclass_fields__][: len(names)] == names

    @NATIVE
    def test_irreps_in_are_checked(self, backend):
        x = normal("2x0e+1o+1x0e")
        module = ops.Linear("4x0e", irreps_in="3x0e+1o", backend=backend)
        assert list(module.init(jax.random.key(0), x)["params"]) == ["w[0,0] 3x0e,4x0e"]
        with pytest.raises(ValueError, match=r"2x0e\+1x1o\+1x0e.*4x0e"):
            ops.Linear("4x0e", irreps_in="4x0e", backend=backend).init(jax.random.key(0), x)

    def test_unknown_options(self):
        with pytest.raises(TypeError, match="unexpected keyword argument 'channels'"):
            ops.Linear("4x0e", channels=2)

    def test_an_index_and_weights_are_told_apart(self):
        weights, index = jnp.ones((ROWS, 3)), jnp.zeros(ROWS, int)
        with pytest.raises(ValueError, match="index must be of integers, got float32"):
            ops.Linear("4x0e", num_indexed_weights=2).init(
                jax.random.key(0), weights, normal("2x0e")
            )
        with pytest.raises(ValueError, match="index is needed with num_indexed_weights, and only"):
            ops.Linear("4x0e").init(jax.random.key(0), index, normal("2x0e"))

    @pytest.mark.parametrize("cls", [ops.TensorProductLinear, ops.TensorProductLinearGate])
    def test_fused_ops(self, cls):
        with pytest.raises(TypeError, match="unexpected keyword argument 'channel_out'"):
            cls("4x0e", channel_out=2)
        with pytest.raises(ValueError, match="biases must be True, False, or one of them"):
            cls("4x0e", "2x0e").init(jax.random.key(0), normal("2x0e"), normal("0e"))

    def test_copies(self):
        module = ops.Linear("4x0e", biases=True, name="linear")
        assert module.clone(name="other").biases


class TestEdges:
    """What is no `Edges`, or in the wrong place, is named."""

    SENDERS = jnp.array([0, 1])
    EDGES = ops.Edges.from_arrays([0, 1], [1, 2], ROWS)
    X, Y = normal("2x0e"), normal("1o", rows=2)

    def test_in_the_place_of_the_weights(self):
        module = ops.TensorProductLinear("2x1o")
        calls = [
            lambda: ops.graph_tensor_product(self.X, self.Y, self.EDGES),
            lambda: module.init(jax.random.key(0), self.X, self.Y, self.EDGES),
        ]
        for call in calls:
            with pytest.raises(ValueError, match=r"edges were given as the weights.*edges=edges"):
                call()

    def test_a_tuple(self):
        edges = (self.SENDERS, self.SENDERS)
        module = ops.TensorProductLinear("2x1o")
        calls = [
            lambda: ops.graph_tensor_product(self.X, self.Y, None, edges),
            lambda: ops.channelwise_tensor_product(self.X, self.X, edges),
            lambda: module.init(jax.random.key(0), self.X, self.Y, edges=edges),
        ]
        for call in calls:
            with pytest.raises(
                ValueError, match=r"must be an eqfuse\.ops\.Edges, got tuple: Edges"
            ):
                call()

    def test_a_traced_number_of_nodes(self):
        with pytest.raises(TypeError, match=r"num_nodes is the size .* make it static"):
            jax.jit(lambda n: ops.Edges.from_arrays(self.SENDERS, self.SENDERS, n))(3)


def traced(function):
    """Return what a traced function returns, with blocks known to be zero."""
    found = []
    jax.eval_shape(lambda: found.append(function()))
    return found[0]


@NATIVE
@pytest.mark.parametrize("regroup", [False, True])
@pytest.mark.parametrize("irreps", ["1x4e+2x0e+0x4e", "1o+0x1o+1o", "0x2e+5x0e", "0x0e"])
def test_zero_flags_of_blocks_of_no_channels(irreps, regroup, backend):
    """A block without channels is zero by structure where e3nn says so: never for that alone."""
    irreps = e3nn.Irreps(irreps)
    y = normal("6x0e+0x1o")
    for zero in (None, 0, len(irreps) - 1):
        chunks = [
            None if n == zero else jnp.ones((ROWS, mul, ir.dim))
            for n, (mul, ir) in enumerate(irreps)
        ]
        x = e3nn.from_chunks(irreps, chunks, (ROWS,), jnp.float32)
        for left, right in ((x, y), (y, x), (x, normal("0e+1o"))):
            options = {"regroup_output": regroup, "backend": backend}
            found = traced(functools.partial(ops.tensor_product, left, right, **options))
            theirs = functools.partial(e3nn.tensor_product, left, right, regroup_output=regroup)
            expected = traced(theirs)
            assert repr(found.irreps) == repr(expected.irreps)
            assert found.zero_flags == expected.zero_flags


@NATIVE
class TestNothing:
    """Operands without channels, without irreps, or known to be zero."""

    @pytest.mark.parametrize("irreps", [("", ""), ("2x0e", ""), ("", "2x1o")])
    def test_channelwise_product_of_no_irreps(self, irreps, backend):
        x, y = map(normal, irreps)
        out = ops.channelwise_tensor_product(x, y, backend=backend)
        assert out.irreps == ""
        assert out.shape == (ROWS, 0)
        edges = ops.Edges.from_arrays([0, 1, 2, 0, 1], [1, 0, 0, 2, 3], ROWS)
        x = normal(irreps[0], rows=5)
        assert ops.channelwise_tensor_product(x, y, edges, backend=backend).shape == (5, 0)
