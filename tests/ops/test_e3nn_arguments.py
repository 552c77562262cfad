"""Arguments of ops that e3nn and jax.numpy take, and what they make of them."""

import functools

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from tests.ops import tiers
from tests.ops.parity import assert_close, only

BACKENDS = ["xla", "llvm", "e3nn"]
NATIVE = pytest.mark.parametrize("backend", tiers.slow_unless(["llvm"], *BACKENDS))
ROWS, KEY = 4, jax.random.key(0)


def normal(irreps, dtype=jnp.float32, seed=0, rows=ROWS):
    irreps = e3nn.Irreps(irreps)
    return e3nn.normal(irreps, jax.random.key(seed), (rows,)).astype(dtype)


natively = pytest.mark.parametrize("backend", tiers.NATIVELY)


def product(backend):
    """Return the op, compiled anew, so that its backend is seen to run."""
    return jax.jit(lambda x, y: ops.tensor_product(x, y, backend=backend))


DTYPES = (
    "int32-int32 int32-float32 bfloat16-float32 bfloat16-float16 bfloat16-int32 float64-float32"
)


@natively
@pytest.mark.parametrize("dtypes", DTYPES.split())
@pytest.mark.parametrize("x64", [False, True])
def test_dtypes_are_promoted_as_by_e3nn(dtypes, x64, backend):
    """Whole numbers, so that values agree exactly where coefficients are one."""
    with jax.enable_x64(x64):
        x, y = (
            np.array(a, dtype) for a, dtype in zip(([3, 1], [2]), dtypes.split("-"), strict=True)
        )
        with only(backend):
            found = product(backend)(e3nn.IrrepsArray("2x0e", x), e3nn.IrrepsArray("0e", y))
        expected = e3nn.tensor_product(e3nn.IrrepsArray("2x0e", x), e3nn.IrrepsArray("0e", y))
        assert_close(found.array, expected.array, 0)


@natively
def test_weak_types_count_as_for_e3nn(backend):
    x, weak = jnp.ones(1, jnp.bfloat16), jax.lax.full_like(1.0, 2.0, shape=(1,))
    found, expected = product(backend)(x, weak), e3nn.tensor_product(x, weak)
    assert found.dtype == jnp.float32
    assert_close(found.array, expected.array, 0)


@natively
def test_plain_arrays_are_scalars(backend):
    x, y = jnp.arange(6.0).reshape(2, 3), e3nn.IrrepsArray("1o", jnp.arange(3.0))
    with only(backend):
        found = product(backend)(x, y)
    assert found.irreps == e3nn.tensor_product(x, y).irreps == "3x1o"
    expected = x[:, :, None] * y.array
    np.testing.assert_allclose(found.array, expected.reshape(2, 9), rtol=2e-7)  # two roundings


@pytest.mark.parametrize(
    "keep", ["0e + 1o", "4x1o", e3nn.Irrep("1o"), [e3nn.Irrep("0e"), "1o"], (e3nn.Irrep("2e"),), []]
)
@pytest.mark.parametrize("op", [ops.tensor_product, ops.graph_tensor_product])
def test_filters_of_irreps_are_given_as_to_e3nn(op, keep):
    expected = e3nn.tensor_product("2x0e + 1o", "0e + 1o", filter_ir_out=keep)
    assert op("2x0e + 1o", "0e + 1o", filter_ir_out=keep) == expected


@pytest.mark.parametrize(
    ("option", "values", "ours", "theirs"),
    [
        (
            "irrep_normalization",
            ("component", "norm"),
            lambda x: ops.tensor_product(x, x, backend="xla").array,
            lambda x: e3nn.tensor_product(x, x).array,
        ),
        (
            "gradient_normalization",
            ("element", "path"),
            lambda x: ops.Linear("2x1o", backend="xla").init(KEY, x),
            lambda x: e3nn.flax.Linear("2x1o").init(KEY, x),
        ),
    ],
)
def test_the_configuration_of_e3nn_is_followed(option, values, ours, theirs):
    """That of now, and not of the first call with these irreps."""
    x, before, found = normal("2x1o+3x1o"), e3nn.config(option), []
    try:
        for value in values:
            e3nn.config(option, value)
            found.append(ours(x))
            assert_close(found[-1], theirs(x), 1e-6)
    finally:
        e3nn.config(option, before)
    one, other = map(jax.tree.leaves, found)
    assert abs(one[0] - other[0]).max() > 0.01


@pytest.mark.parametrize("backend", tiers.KERNELS)
@pytest.mark.parametrize("normalization", tiers.slow_unless(["norm"], "component", "norm", "none"))
def test_normalizations_filters_and_broadcasting_of_a_layer(backend, normalization):
    x, y = (
        e3nn.normal(irreps, jax.random.key(n), shape)
        for n, (irreps, shape) in enumerate((("3x0e+2x1o", (2, 1)), ("0e+1o", (3,))))
    )
    options = {"irrep_normalization": normalization, "filter_ir_out": ["0e", "1o", "1e"]}
    found, expected = (
        ops.TensorProductLinear("4x0e+2x1o", backend=b, **options).init_with_output(KEY, x, y)[0]
        for b in (backend, "e3nn")
    )
    assert found.shape == (2, 3, 10)
    assert_close(found.array, expected.array, 1e-6)


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

    def results():
        parameters = linear.init(KEY, x), gate.init(KEY, x, y)

        def loss(parameters, x):
            p, q = parameters
            return (linear.apply(p, x).array ** 2).sum() + (gate.apply(q, x, y).array ** 2).sum()

        product = ops.tensor_product(x, y, backend=backend)
        return product, parameters, jax.grad(loss, (0, 1))(parameters, x)

    expected = results()
    with jax.disable_jit():
        found = results()
    assert_close(found, expected, 100 * 2**-24)  # sums of fewer than 100 terms


MODULES = {
    "linear": (ops.Linear, {}),
    "indexed": (ops.Linear, {"num_indexed_weights": 2}),
    "product": (ops.TensorProductLinear, {}),
    "gate": (ops.TensorProductLinearGate, {}),
    "skip": (ops.TensorProductLinear, {"force_irreps_out": True}),
}
WIDTHS = {
    "float32-float64": (jnp.float32, jnp.float64),
    "float64-float32": (jnp.float64, jnp.float32),
    "bfloat16-float32": (jnp.bfloat16, jnp.float32),
    "float32-bfloat16": (jnp.float32, jnp.bfloat16),
    "float16-float32": (jnp.float16, jnp.float32),
}


@NATIVE
@pytest.mark.parametrize(
    "widths", tiers.slow_unless(["float32-float64", "bfloat16-float32"], *WIDTHS)
)
@pytest.mark.parametrize("name", tiers.slow_unless(["linear", "gate", "skip"], *MODULES))
def test_operands_and_parameters_of_two_widths_promote(x64, name, widths, backend):
    """The widest of all is the type of the result, as for e3nn, not rounded on the way.

    What has another width than x are the parameters, or the skip.
    """
    (cls, options), (narrow, other) = MODULES[name], WIDTHS[widths]
    module = cls("3x0e+1o", biases=True, backend=backend, **options)
    operands, keywords = [normal("2x0e+2x1o", narrow)], {}
    if cls is not ops.Linear:
        operands.append(normal("0e", narrow, 1))
    if name == "indexed":
        operands.insert(0, jnp.arange(ROWS) % 2)
    params = module.init(KEY, *operands)
    assert {p.dtype for p in jax.tree.leaves(params)} == {jnp.dtype(narrow)}
    if name == "skip":
        keywords = {"skip": normal("3x0e+1o", other, 2)}
    else:
        assert module.apply(params, *operands).dtype == narrow
        params = jax.tree.map(lambda p: (p / 3).astype(other), params)
    out, wide = module.apply(params, *operands, **keywords), jnp.promote_types(narrow, other)
    assert out.dtype == wide

    def widened(a):
        return a if jnp.issubdtype(a.dtype, jnp.integer) else a.astype(wide)

    params, operands, keywords = jax.tree.map(widened, (params, operands, keywords))
    exact, unit = module.apply(params, *operands, **keywords).array, float(jnp.finfo(wide).eps) / 2
    if wide == jnp.float32 and name != "skip" and backend != "e3nn":
        np.testing.assert_array_equal(out.array, exact)
    if backend == "e3nn" and cls is not ops.Linear:  # what it adds or mixes is rounded first
        unit = max(unit, float(jnp.finfo(narrow).eps) / 25)
    assert_close(out.array, exact, 100 * unit)


def test_arguments_of_linear_are_e3nns_in_its_order():
    names = [f for f in e3nn.flax.Linear.__dataclass_fields__ if f not in ("parent", "name")]
    assert [*ops.Linear.__dataclass_fields__][: len(names)] == names
    assert ops.Linear("4x0e", biases=True, name="linear").clone(name="other").biases


@NATIVE
def test_irreps_in_of_linear_are_checked(backend):
    x = normal("2x0e+1o+1x0e")
    module = ops.Linear("4x0e", irreps_in="3x0e+1o", backend=backend)
    assert list(module.init(KEY, x)["params"]) == ["w[0,0] 3x0e,4x0e"]
    with pytest.raises(ValueError, match=r"2x0e\+1x1o\+1x0e.*4x0e"):
        ops.Linear("4x0e", irreps_in="4x0e", backend=backend).init(KEY, x)


EDGES = ops.Edges.from_arrays([0, 1], [1, 2], ROWS)


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
@pytest.mark.parametrize("irreps", [("", ""), ("2x0e", ""), ("", "2x1o")])
def test_channelwise_product_of_no_irreps(irreps, backend):
    x, y = map(normal, irreps)
    out = ops.channelwise_tensor_product(x, y, backend=backend)
    assert (out.irreps, out.shape) == ("", (ROWS, 0))
    out = ops.channelwise_tensor_product(x[:2], y, EDGES, backend=backend)
    assert out.shape == (2, 0)
