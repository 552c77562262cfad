"""Bad input of ops: one table of arguments, and what the message says; none wraps or is ignored."""

import functools

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from tests.ops.cases import SMALL

X = e3nn.IrrepsArray("2x1o", jnp.ones((4, 6)))
SIX, FIVE = (e3nn.IrrepsArray("2x1o", jnp.ones((n, 6))) for n in (6, 5))
Y, SCALARS = e3nn.IrrepsArray("0e+1o", jnp.ones((4, 4))), e3nn.IrrepsArray("0e", np.ones((6, 1)))
PAIR = e3nn.IrrepsArray("2x0e+2x1o", np.ones((4, 8), np.float32))
W, INDEX = np.ones((3, 5, 2), np.float32), np.zeros(4, int)  # 1 + 2 + 2 paths to 0e
EDGES, INTERVALS = SMALL.edges(), ops.group_by_interval(jnp.zeros(6, jnp.int32), 4)
ENDS = np.array([0, 1]), np.array([1, 2])
ONES, SKIP = jnp.ones((6, 6)), e3nn.IrrepsArray("5x0e", jnp.ones((5, 5)))
NODES = e3nn.IrrepsArray("2x0e", jnp.ones((5, 2)))
UNKNOWN = {"irrep_normalization": "unit"}, "'unit' is not supported; choose 'component'"
CUDA = {"backend": "cuda"}, "backend 'cuda' is unknown; choose one of triton"
HALF = {"input_precision": "half"}, "input_precision 'half' is unknown"
BIASES = {"biases": "2x0e"}, "biases must be True, False, or one of them for each"
NO_INDEX = {"num_indexed_weights": 2}, "index is needed with num_indexed_weights"
AS_WEIGHTS, A_TUPLE = "as the weights.*edges=edges", "Edges, got tuple: Edges"


def tables(*shape):
    return [jnp.ones(shape)]


def module(cls, *operands, **options):
    return cls("4x0e", **options).init(jax.random.key(0), *operands)


def edges(senders, receivers, backend):
    return ops.Edges.from_arrays(np.array(senders), np.array(receivers), 5)


def layer(cls):
    """Return what both layers refuse."""
    return [
        ((cls, NODES, SCALARS, None, EDGES, SKIP), {}, r"skip must be \[5, 4x0e\]"),
        ((cls, FIVE, SCALARS, jnp.ones((6, 2))), {}, "give edges as well"),
        ((cls, X, Y, EDGES), {}, AS_WEIGHTS),
        ((cls, X, Y, None, ENDS), {}, A_TUPLE),
        ((cls, X, Y), *HALF),
        ((lambda out, **options: cls(out, "2x0e", **options), X, Y), {}, BIASES[1]),
        ((cls, X, Y), {"channel_out": 2}, "unexpected keyword argument 'channel_out'", TypeError),
    ]


# of each op: arguments, keywords, what the message says, and the error if it is no ValueError
REFUSED = {
    ops.tensor_product: [
        ((X, X[:3]), {}, r"\(4,\).*\(3,\)"),
        ((X, X), *UNKNOWN),
        ((X, X), *CUDA),
    ],
    ops.graph_tensor_product: [
        ((FIVE, SCALARS), {}, r"needs edges: eqfuse.ops.Edges.from_arrays makes them"),
        ((X, SCALARS, None, EDGES), {}, r"x must be \[5 nodes, 2x1o\], got shape \(4, 6\)"),
        ((FIVE, SCALARS[:2], None, EDGES), {}, r"y must be \[6 edges, 1x0e\], or one .* \(2, 1\)"),
        ((FIVE, SCALARS, np.ones((6, 3)), EDGES), {}, r"\[6 edges, 2 irreps of 2x1o\].* \(6, 3\)"),
        ((FIVE, SCALARS, np.ones(6), EDGES), {}, r"\[6 edges, 2 irreps of 2x1o\], or 1 .* \(6,\)"),
        ((FIVE, SCALARS, EDGES), {}, AS_WEIGHTS),
        ((FIVE, SCALARS, None, ENDS), {}, A_TUPLE),
    ],
    ops.elementwise_tensor_product: [
        ((X, X[:3]), {}, r"\(4,\).*\(3,\)"),
        ((X, X[:, :3]), {}, r"of irreps, got 2 \(2x1o\) and 1 \("),
        (("2x1o", "1o"), {}, r"same number of irreps, got 2 \(2x1o\) and 1 \(1x1o\)"),
        ((X, X), *UNKNOWN),
        ((X, X), *CUDA),
    ],
    ops.channelwise_tensor_product: [
        ((X, X[:3]), {}, r"\(4,\).*\(3,\)"),
        ((X, X[:, :3]), {}, "same multiplicity, got 2x1o and 1x1o"),
        (("2x1o+0e", "2x1o"), {}, r"got 2x1o\+1x0e and 2x1o"),
        ((X, X, EDGES), {}, r"x must be \[6 edges, 2x1o\], got"),
        ((X[:1], X, EDGES), {}, r"x must be \[6 edges"),
        ((SIX, SIX, EDGES), {}, r"y must be \[5 nodes, 2x1o\], got"),
        ((X, X), {"weights": jnp.ones(6)}, "weights are for a product on a graph, with edges"),
        ((SIX, FIVE, EDGES), {"weights": jnp.ones(4)}, r"\[6 irreps of .*\], got shape \(4,\)"),
        ((X, X, ENDS), {}, A_TUPLE),
        ((X, X), *UNKNOWN),
        ((X, X), *CUDA),
    ],
    ops.interpolate: [
        (([], INTERVALS, ONES), {}, r"\[4 intervals, order, width\] of order 6, got.*\[\]"),
        ((tables(3, 6, 2), INTERVALS, ONES), {}, r"got shapes \[\(3, 6, 2\)\]"),
        ((tables(4, 5, 2), INTERVALS, ONES), {}, r"order 6, got shapes \[\(4, 5, 2\)\]"),
        ((tables(4, 6, 2), INTERVALS, ONES[:5]), {}, r"\[6 rows, order\], got shape \(5, 6\)"),
    ],
    functools.partial(ops.symmetric_contraction, correlation=3): [
        ((PAIR, W[:, :4], INDEX), {}, r"\[num_indices, 5 paths, 2 channels\], got .*\(3, 4, 2\)"),
        ((PAIR, W[0, 1:]), {}, r"\[..., 5 paths, 2 channels\], got shape \(4, 2\)"),
        ((PAIR, W, INDEX.astype(float)), {}, "index must hold integers, got float"),
        ((PAIR, W, INDEX[:3]), {}, r"index must be \(4,\), one for each row, got shape \(3,\)"),
        ((PAIR, W[:1], INDEX[:3]), {}, r"index must be \(4,\), one for each"),
        ((PAIR, W), {}, r"got shape \(3, 5, 2\), and the axes before are \(4,\) in x"),
        ((PAIR, W, INDEX), {"irreps_out": "3x0e"}, r"one multiplicity.*2x0e\+2x1o and 3x0e"),
        ((PAIR[:, :5], W, INDEX), {}, r"one multiplicity.*2x0e\+1x1o and 2x0e"),
        ((PAIR, W, INDEX), {"irreps_out": "2x0o"}, "0o, which no symmetric product of up to 3"),
        ((PAIR, W, INDEX), {"correlation": 0}, "correlation must be at least 1, got 0"),
        ((PAIR, W, INDEX), *CUDA),
    ],
    ops.linear: [
        (
            (X, {}, "0e"),
            {"weights": jnp.ones((4, 2)), "index": INDEX},
            "index and weights exclude each other",
        )
    ],
    ops.grouped_dense: [
        ((ONES, [ONES, ONES[:2]]), {}, r"of one n_in are needed, got \[\(6, 6\), \(2, 6\)\]"),
        ((ONES[:, :4], [ONES[:3]] * 2), {}, r"x must be \[rows, 3\] or \[rows, 6\]"),
    ],
    module: [
        ((ops.Linear, X), *NO_INDEX),
        ((ops.Linear, X), *HALF),
        ((ops.Linear, X), *BIASES),
        ((ops.Linear, INDEX, X), {}, "index is needed with num_indexed_weights, and only"),
        (
            (ops.Linear, jnp.ones((4, 3)), X),
            {"num_indexed_weights": 2},
            "index must be of integers, got float32",
        ),
        *layer(ops.TensorProductLinear),
        *layer(ops.TensorProductLinearGate),
    ],
    edges: [
        (([0, 1], [0]), {}, r"vectors of one length, got shapes \(2,\) and \(1,\)"),
        (([0, 5], [0, 1]), {}, r"senders must be in \[0, 5\), got 0 to 5"),
        (([0, 1], [-1, 1]), {}, r"receivers must be in \[0, 5\), got -1 to 1"),
        (([0.0, 1.0], [0, 1]), {}, "senders must be integers, got float64", TypeError),
    ],
}
ROWS = [(op, *row) for op, rows in REFUSED.items() for row in rows]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[3][:30])
def test_bad_input_is_named(row):
    op, arguments, keywords, message, *kind = row
    options = {"backend": "xla"} | keywords
    if getattr(op, "func", None) is ops.symmetric_contraction:
        options = {"irreps_out": "2x0e"} | options
    with pytest.raises(*kind or (ValueError,), match=message):
        op(*arguments, **options)
