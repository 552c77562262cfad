"""`ops.FunctionalTensorProduct` against e3nn-jax's legacy interface, alone and in `ops.fuse`."""

import functools

import e3nn_jax as e3nn
import e3nn_jax.legacy
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from tests.fuse.test_patterns import results
from tests.ops.parity import assert_close

NODES, EDGES = 4, 7
SENDERS, RECEIVERS = np.random.default_rng(0).integers(0, NODES, (2, EDGES))
X = e3nn.Irreps("3x0e+2x1o")
PATHS = [(0, 0, 0, 0), (0, 1, 1, 1), (1, 0, 1, 2), (1, 1, 0, 3), (1, 1, 2, 4)]
"""i_in1, i_in2, l of the output, and its number: of X and y, 0e+1o, with these multiplicities."""


CASES = {
    "uvu": (1, "uvu", {}),
    "uvu, channels of y": (2, "uvu", {"path_normalization": "path"}),
    "uvu without weights": (2, "uvu", {"has_weight": False}),
    "uvuv": (2, "uvuv", {"irrep_normalization": "norm"}),
    "uvw": (2, "uvw", {"gradient_normalization": "path"}),
}


def product(lib, mul_y, mode, has_weight=True, **options):
    y = mul_y * e3nn.Irreps("0e+1o")
    muls = {"uvu": 1, "uvw": 1, "uvuv": mul_y}[mode]
    out = e3nn.Irreps([(X[i].mul * muls, (l, (-1) ** (i + j))) for i, j, l, _ in PATHS])
    if mode == "uvw":
        out = e3nn.Irreps([(5, ir) for _, ir in out])
    paths = [(i, j, k, mode, has_weight) for i, j, _, k in PATHS]
    paths += [(0, 1, 1, mode, has_weight)]  # equal to another one
    return y, lib.FunctionalTensorProduct(X, y, out, paths, **options)


def problem(name, flat=True, graph=False):
    """Return e3nn's product and ours, their instructions, and operands: of rows, or on a graph.

    On a graph, "uvw" has weights of all edges, as elsewhere each row has its own.
    """
    mul_y, mode, options = CASES[name]
    shared = graph and mode == "uvw"

    def function(lib):
        y, tp = product(lib, mul_y, mode, **options)

        def rows(x, y_array, *weights):
            weights = weights[0] if flat and weights else list(weights)
            x = e3nn.IrrepsArray(X, x)[SENDERS] if graph else e3nn.IrrepsArray(X, x)
            op = functools.partial(tp.left_right, weights) if shared else tp.left_right
            operands = (x, e3nn.IrrepsArray(y, y_array))
            m = e3nn.utils.vmap(op)(*(operands if shared else (weights, *operands)))
            return e3nn.scatter_sum(m, dst=RECEIVERS, output_size=NODES) if graph else m

        return rows, tp.instructions

    functions, instructions = zip(*map(function, (e3nn.legacy, ops)), strict=True)
    rng = np.random.default_rng(2)
    leading = () if shared else (EDGES,)
    weights = [rng.normal(size=(*leading, *i.path_shape)) for i in instructions[0] if i.has_weight]
    if flat and weights:
        weights = [np.concatenate([a.reshape(*leading, -1) for a in weights], axis=-1)]
    sizes = (NODES if graph else EDGES, X.dim), (EDGES, mul_y * 4)
    arrays = *(rng.normal(size=size) for size in sizes), *weights
    return functions, instructions, [*map(jnp.asarray, arrays)]


@pytest.mark.parametrize(("name", "flat"), [*((name, True) for name in CASES), ("uvu", False)])
def test_rows_and_gradients_are_e3nns(name, flat, x64):
    (theirs, ours), instructions, operands = problem(name, flat)
    assert instructions[0] == instructions[1]
    assert ours(*operands).irreps == theirs(*operands).irreps
    found, expected = (results(f, operands, name == "uvw") for f in (ours, theirs))
    assert_close(found, expected, 1e-12, least=1.0)


def test_blocks_that_are_zero_and_other_modes_are_e3nns():
    with jax.enable_x64(True):
        x = e3nn.from_chunks(X, [jnp.ones((3, 1)), None], (), jnp.float64)
        y = e3nn.IrrepsArray("3x1o", jnp.arange(9.0))
        for paths in ([(0, 0, 0, "uvu", False), (1, 0, 1, "uvu", False)], [(0, 0, 0, "uuu", True)]):
            out = e3nn.Irreps("3x1o+2x0e")
            found, expected = (
                lib.FunctionalTensorProduct(X, y.irreps, out, paths).left_right(
                    *([] if not paths[0][-1] else [[jnp.arange(3.0)]]), x, y
                )
                for lib in (ops, e3nn.legacy)
            )
            assert found.zero_flags == expected.zero_flags == (False, True)
            np.testing.assert_allclose(found.array, expected.array, rtol=0, atol=1e-14)
    tp = ops.FunctionalTensorProduct(X, "1o", "3x1o", [(0, 0, 0, "uvu", True)])
    with pytest.raises(ValueError, match="weights must be"):
        tp.left_right(jnp.ones(4), *(e3nn.normal(i, jax.random.key(0)) for i in (X, "1o")))


@pytest.mark.usefixtures("one_op", "x64")
@pytest.mark.parametrize("name", ["uvu", "uvw"])
def test_fuse_takes_it_to_the_graph(name, capsys):
    """As in the NequIPs of jax-md and mlip ("uvu"), and with weights of all edges ("uvw")."""
    (theirs, ours), _, operands = problem(name, graph=True)
    found, expected = (results(f, operands, False) for f in (ops.fuse(ours, report=True), theirs))
    report = capsys.readouterr().out
    assert "as written" not in report
    assert ("TensorProductLinear" if name == "uvw" else "graph_tensor_product") in report
    assert_close(found, expected, 1e-12, least=1.0)
