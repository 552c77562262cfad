"""Products without a file of their own, against e3nn-jax's or their definition.

Those are elementwise, channelwise, `weighted_channels`, `tensor_square` and `interpolate`.
"""

import dataclasses
import functools

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from tests.ops import tiers
from tests.ops.cases import (
    CHANNELWISE,
    ELEMENTWISE,
    SMALL,
    WEIGHTED_CHANNELWISE,
    Case,
    random_arrays,
)
from tests.ops.parity import (
    PORTABLE,
    assert_equivariant,
    assert_one_rounding,
    assert_parity,
    only,
)

kernels = pytest.mark.parametrize("backend", tiers.KERNELS)
natively = pytest.mark.parametrize("backend", tiers.NATIVELY)


@dataclasses.dataclass(frozen=True)
class Weighted(Case):
    """Scalars `irreps_x`, a block of weights for each irrep of `irreps_y`."""

    @property
    def on_graph(self) -> bool:
        return False

    @functools.cached_property
    def irreps_out(self) -> e3nn.Irreps:
        weights, y = e3nn.Irreps(self.irreps_x), e3nn.Irreps(self.irreps_y)
        return e3nn.Irreps([(w.mul, one.ir) for w, one in zip(weights, y, strict=True)])

    def function(self, backend: str):
        def function(weights, y):
            y = e3nn.IrrepsArray(self.irreps_y, y)
            return ops.weighted_channels(y, weights, backend=backend).array

        return function

    def reference(self, weights, y):
        channels = e3nn.Irreps(self.irreps_x)[0].mul
        chunks = e3nn.IrrepsArray(self.irreps_y, y).chunks
        chunks = [jnp.repeat(chunk, channels, axis=-2) for chunk in chunks]
        repeated = e3nn.from_chunks(self.irreps_out, chunks, y.shape[:-1], y.dtype)
        weights = e3nn.IrrepsArray(self.irreps_x, weights)
        return e3nn.elementwise_tensor_product(weights, repeated).array


@dataclasses.dataclass(frozen=True)
class Interpolation:
    """Tables of `widths`, read by rows of these intervals; results side by side.

    Interval 1 has most rows, interval 2 none.
    """

    widths: tuple[int, ...]
    order: int = 6
    intervals: tuple[int, ...] = (1, 0, 1, 3, 1, 1)
    num_intervals: int = 4

    @property
    def names(self) -> tuple[str, ...]:
        return ("weights", *(f"table {k}" for k in range(len(self.widths))))

    def shapes(self):
        rows = len(self.intervals)
        tables = [(self.num_intervals, self.order, width) for width in self.widths]
        return (rows, self.order), *tables, (rows, sum(self.widths))

    def operands(self, seed: int = 0, held_by=np.float32):
        return random_arrays(self.shapes()[:-1], seed, held_by)

    def function(self, backend: str):
        def function(weights, *tables):
            index = jnp.asarray(self.intervals, jnp.int32)
            intervals = ops.group_by_interval(index, self.num_intervals)
            return jnp.concatenate(
                ops.interpolate(tables, intervals, weights, backend=backend), axis=1
            )

        return function

    def reference(self, weights, *tables):
        index = np.array(self.intervals, int)
        rows = jax.nn.one_hot(index, self.num_intervals, dtype=weights.dtype)
        return jnp.concatenate(
            [jnp.einsum("ek,en,knu->eu", rows, weights, table) for table in tables], axis=1
        )


WEIGHTED = {
    name: Weighted("weighted_channels", *arguments, **shapes)
    for name, arguments, shapes in (
        ("allegro", ("64x0e+64x0e+64x0e", "0e+1o+2e"), {}),
        ("not sorted", ("5x0e+5x0e", "3o+1e"), {}),
        ("one channel", ("0e+0e", "0e+1o"), {}),
        ("axes", ("3x0e", "1o"), {"shape_x": (2, 3), "shape_y": (2, 3)}),
        ("no rows", ("3x0e", "1o"), {"shape_x": (0,), "shape_y": (0,)}),
    )
}
INTERPOLATIONS = {
    "one table": Interpolation((33,)),
    "two tables": Interpolation((5, 2)),
    "linear": Interpolation((3,), order=2),
    "no rows": Interpolation((3,), intervals=()),
}


def named(**kinds):
    return {
        f"{kind}: {name}": case for kind, cases in kinds.items() for name, case in cases.items()
    }


CASES = named(
    elementwise=ELEMENTWISE,
    channelwise=CHANNELWISE,
    weights_channelwise=WEIGHTED_CHANNELWISE,
    weighted=WEIGHTED,
    interpolate=INTERPOLATIONS,
)
# see tiers.value_and_derivatives
CORES = {
    "elementwise": ("mul-33", "l3-both-parities", "cut-blocks", "one-y", "no-rows"),
    "channelwise": ("l3-both-parities", "graph", "graph-no-edges"),
    "weights_channelwise": ("two-paths", "no-edges"),
    "weighted": ("not sorted", "no rows"),
    "interpolate": ("two tables",),
}
CORE = {f"{kind}: {name}" for kind, names in CORES.items() for name in names}
# sizes and layouts between those of others
SLOW = {
    "elementwise: scalars",
    "elementwise: mixed",
    "elementwise: mul-1",
    "elementwise: mul-5",
    "elementwise: none",
    "elementwise: no-axes",
    "elementwise: zero-mul",
    "channelwise: graph-mul-33",
    "weights_channelwise: mul-33",
    "weighted: axes",
    "interpolate: one table",
}


def of_all_kinds():
    """Return the parameters of `tiers.value_and_derivatives` of each kind."""
    found = []
    for kind, names in CORES.items():
        core = [f"{kind}: {name}" for name in names]
        cases = [name for name in CASES if name.startswith(f"{kind}:")]
        mark = tiers.value_and_derivatives(cases, core, core[0], SLOW.intersection(cases))
        found += mark.args[1]
    return found


@pytest.mark.parametrize(("name", "dtype", "backend"), of_all_kinds())
def test_value_and_derivatives(name, dtype, backend):
    assert_parity(CASES[name], dtype, backend)


@natively
@pytest.mark.parametrize(
    "name",
    [
        "elementwise: l3-both-parities",
        "elementwise: cut-blocks",
        "channelwise: graph",
        "weighted: not sorted",
    ],
)
def test_equivariance(name, backend):
    assert_equivariant(CASES[name], backend)


@kernels
@pytest.mark.parametrize(
    "name",
    [
        "elementwise: mul-5",
        "channelwise: graph",
        "weighted: not sorted",
        "interpolate: two tables",
    ],
)
def test_bfloat16_is_rounded_once(name, backend):
    assert_one_rounding(CASES[name], jnp.bfloat16, backend)


@pytest.mark.parametrize(
    "name", tiers.slow_unless(CORE, *(n for n in CASES if not n.startswith("elementwise")))
)
def test_the_backend_e3nn_is_the_same(name):
    case = CASES[name]
    arrays = [a.astype(np.float32) for a in case.operands()]
    found = case.function("e3nn")(*arrays)
    np.testing.assert_allclose(found, case.reference(*arrays), rtol=0, atol=1e-5)


def test_the_backend_e3nn_is_e3nns_elementwise_product(monkeypatch):
    monkeypatch.setattr(e3nn, "elementwise_tensor_product", lambda *a, **k: "the answer of e3nn")
    answer = ops.elementwise_tensor_product("1o", "1o", backend="e3nn")
    assert answer == "the answer of e3nn"


@kernels
@pytest.mark.parametrize("name", ["weighted: one channel", "interpolate: two tables"])
def test_vmap(name, backend):
    case = CASES[name]
    arrays = [a.astype(np.float32) for a in case.operands()]
    found = jax.jit(jax.vmap(case.function(backend)))(*(np.stack([a, 2 * a]) for a in arrays))
    expected = case.reference(*arrays)
    np.testing.assert_allclose(found, np.stack([expected, 4 * expected]), rtol=0, atol=1e-5)


@natively
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_irreps_and_zero_flags_are_those_of_e3nn(name, backend):
    """Irreps as they are printed, neither sorted nor merged, and blocks known to be zero."""
    case = ELEMENTWISE[name]
    x, y = case.irreps_arrays(*(a.astype(np.float32) for a in case.operands()))
    product = functools.partial(ops.elementwise_tensor_product, **case.options, backend=backend)
    expected = jax.eval_shape(lambda: e3nn.elementwise_tensor_product(x, y, **case.options))
    found = jax.eval_shape(lambda: product(x, y))
    assert repr(found.irreps) == repr(expected.irreps)
    assert found.shape == expected.shape
    without_arrays = e3nn.elementwise_tensor_product(x.irreps, y.irreps, **case.options)
    assert repr(product(x.irreps, str(y.irreps))) == repr(without_arrays)
    if name == "zero-blocks":
        found = product(x, y)
        assert found.zero_flags == e3nn.elementwise_tensor_product(x, y).zero_flags
        assert any(found.zero_flags)


@pytest.mark.parametrize("backend", ["e3nn", "xla"])
@pytest.mark.parametrize("name", CHANNELWISE)
def test_channelwise_irreps_are_sorted_and_merged(name, backend):
    case = CHANNELWISE[name]
    x, y = case.irreps_arrays(*(a.astype(np.float32) for a in case.operands()))
    edges = None if case.graph is None else case.graph.edges()
    found = jax.eval_shape(
        lambda: ops.channelwise_tensor_product(x, y, edges, **case.options, backend=backend)
    )
    assert repr(found.irreps) == repr(case.irreps_out)
    given = ops.channelwise_tensor_product(x.irreps, str(y.irreps), **case.options)
    assert repr(given) == repr(case.irreps_out)


@pytest.mark.parametrize("irreps", ["2x0e+2x0o+1o+1e", "3x1o+2x2e+0x0e+2x1o", "5x1o", ""])
@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize(
    "normalization", tiers.slow_unless(["component"], "component", "norm", "none")
)
def test_squares_irreps_and_zero_flags(irreps, normalized, normalization, x64):
    """Float64 to 1e-13: sums of a dozen products."""
    x = e3nn.normal(irreps, jax.random.key(0), (3, 2)).astype(jnp.float64)
    for regroup in (False, True):
        options = {
            "irrep_normalization": normalization,
            "normalized_input": normalized,
            "regroup_output": regroup,
        }
        expected = e3nn.tensor_square(x, **options)
        found = ops.tensor_square(x, backend="xla", **options)
        assert repr(found.irreps) == repr(expected.irreps)
        assert found.zero_flags == expected.zero_flags
        np.testing.assert_allclose(found.array, expected.array, rtol=0, atol=1e-13)
        assert ops.tensor_square(irreps, **options) == e3nn.tensor_square(irreps, **options)


@pytest.mark.parametrize("backend", PORTABLE)
def test_gradients_of_squares(backend, x64):
    irreps = e3nn.Irreps("2x0e+2x1o+1x1o")
    x = e3nn.normal(irreps, jax.random.key(0), (3,)).array.astype(jnp.float64)

    def gradient(square):
        def loss(x):
            return jnp.sum(jnp.sin(square(e3nn.IrrepsArray(irreps, x)).array))

        return jax.jit(jax.value_and_grad(loss))(x)

    expected = gradient(e3nn.tensor_square)
    with only(backend, forbidden=("tensor_square",)):
        found = gradient(lambda x: ops.tensor_square(x, backend=backend))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)


def test_squares_of_zeros():
    x = e3nn.concatenate([e3nn.zeros("2x0e", (3,)), e3nn.normal("1o", jax.random.key(0), (3,))])
    expected, found = e3nn.tensor_square(x), ops.tensor_square(x, backend="xla")
    assert found.zero_flags == expected.zero_flags
    np.testing.assert_allclose(found.array, expected.array, atol=1e-6)


def test_rows_are_grouped_by_interval_in_their_order():
    index = np.array([3, 1, 3, 0, 1, 3])
    for make in (ops.group_by_interval, jax.jit(ops.group_by_interval, static_argnums=1)):
        found = make(jnp.asarray(index, jnp.int32), 5)
        np.testing.assert_array_equal(found.sender_order, [3, 1, 4, 0, 2, 5])
        np.testing.assert_array_equal(found.sender_ptr, [0, 1, 3, 3, 6, 6])
        np.testing.assert_array_equal(found.senders, index)
        assert found.num_nodes == 5


X = e3nn.IrrepsArray("2x1o", jnp.ones((4, 6)))
SIX, FIVE = (e3nn.IrrepsArray("2x1o", jnp.ones((n, 6))) for n in (6, 5))
Y = e3nn.IrrepsArray("0e+1o", jnp.ones((4, 4)))
EDGES = SMALL.edges()
UNKNOWN = {"irrep_normalization": "unit"}, "'unit' is not supported; choose 'component'"
CUDA = {"backend": "cuda"}, "backend 'cuda' is unknown; choose one of triton"
INTERVALS = ops.group_by_interval(jnp.zeros(6, jnp.int32), 4)


def tables(*shapes):
    return [jnp.ones(shape) for shape in shapes]


@pytest.mark.parametrize(
    ("op", "arguments", "keywords", "message"),
    [
        (ops.elementwise_tensor_product, (X, X[:3]), {}, r"\(4,\).*\(3,\)"),
        (ops.elementwise_tensor_product, (X, X[:, :3]), {}, r"of irreps, got 2 \(2x1o\) and 1 \("),
        (ops.elementwise_tensor_product, ("2x1o", "1o"), {}, r"same number of irreps, got 2 \(2x"),
        (ops.elementwise_tensor_product, (X, X), *UNKNOWN),
        (ops.elementwise_tensor_product, (X, X), *CUDA),
        (ops.channelwise_tensor_product, (X, X[:3]), {}, r"\(4,\).*\(3,\)"),
        (ops.channelwise_tensor_product, (X, X[:, :3]), {}, "same multiplicity, got 2x1o and 1x1o"),
        (ops.channelwise_tensor_product, ("2x1o+0e", "2x1o"), {}, r"got 2x1o\+1x0e and 2x1o"),
        (ops.channelwise_tensor_product, (X, X, EDGES), {}, r"x must be \[6 edges, 2x1o\], got"),
        (ops.channelwise_tensor_product, (X[:1], X, EDGES), {}, r"x must be \[6 edges"),
        (
            ops.channelwise_tensor_product,
            (SIX, SIX, EDGES),
            {},
            r"y must be \[5 nodes, 2x1o\], got",
        ),
        (
            ops.channelwise_tensor_product,
            (X, X),
            {"weights": jnp.ones(6)},
            "weights are for a product on a graph, with edges",
        ),
        (
            ops.channelwise_tensor_product,
            (SIX, FIVE, EDGES),
            {"weights": jnp.ones(4)},
            r"weights must be \[6 irreps of .*\], got shape \(4,\)",
        ),
        (ops.channelwise_tensor_product, (X, X), *UNKNOWN),
        (ops.channelwise_tensor_product, (X, X), *CUDA),
        (
            ops.weighted_channels,
            (X, jnp.ones((4, 2))),
            {},
            "must have a multiplicity of 1, got 2x1",
        ),
        (ops.weighted_channels, (Y, jnp.ones((4, 5))), {}, r"\[..., 2 irreps of .*\(4, 5\)"),
        (ops.weighted_channels, (Y, jnp.ones((3, 6))), {}, r"axes \(4,\) of y, got shape \(3, 6\)"),
        (ops.tensor_square, (X,), {"irrep_normalization": "cg"}, "='cg' is not supported"),
        (
            ops.interpolate,
            ([], INTERVALS, jnp.ones((6, 6))),
            {},
            r"tables must be \[4 intervals, order, width\] of order 6, got shapes \[\]",
        ),
        (
            ops.interpolate,
            (tables((3, 6, 2)), INTERVALS, jnp.ones((6, 6))),
            {},
            r"got shapes \[\(3, 6, 2\)\]",
        ),
        (
            ops.interpolate,
            (tables((4, 5, 2)), INTERVALS, jnp.ones((6, 6))),
            {},
            r"of order 6, got shapes \[\(4, 5, 2\)\]",
        ),
        (
            ops.interpolate,
            (tables((4, 6, 2)), INTERVALS, jnp.ones((5, 6))),
            {},
            r"weights must be \[6 rows, order\], got shape \(5, 6\)",
        ),
    ],
)
def test_errors_name_what_is_wrong(op, arguments, keywords, message):
    with pytest.raises(ValueError, match=message):
        op(*arguments, **{"backend": "xla", **keywords})
