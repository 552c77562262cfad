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


def product(lib, mul_y, mode, has_weight=True, **options):
    y = mul_y * e3nn.Irreps("0e+1o")
    muls = {"uvu": 1, "uvw": 1, "uvuv": mul_y}[mode]
    out = e3nn.Irreps([(X[i].mul * muls, (l, (-1) ** (i + j))) for i, j, l, _ in PATHS])
    if mode == "uvw":
        out = e3nn.Irreps([(5, ir) for _, ir in out])
    paths = [(i, j, k, mode, has_weight) for i, j, _, k in PATHS]
    paths += [(0, 1, 1, mode, has_weight)]  # equal to another one
    return y, lib.FunctionalTensorProduct(X, y, out, paths, **options)


def weights_of(tp, flat, shape=()):
    shapes = [i.path_shape for i in tp.instructions if i.has_weight]
    rng = np.random.default_rng(1)
    arrays = [jnp.asarray(rng.normal(size=(*shape, *s))) for s in shapes]
    if not flat or not arrays:
        return arrays
    return jnp.concatenate([a.reshape(*shape, -1) for a in arrays], axis=-1)


CASES = {
    "uvu": (1, "uvu", {}),
    "uvu, channels of y": (2, "uvu", {"path_normalization": "path"}),
    "uvu without weights": (2, "uvu", {"has_weight": False}),
    "uvuv": (2, "uvuv", {"irrep_normalization": "norm"}),
    "uvw": (2, "uvw", {"gradient_normalization": "path"}),
}


@pytest.mark.parametrize(("name", "flat"), [*((name, True) for name in CASES), ("uvu", False)])
def test_rows_and_gradients_are_e3nns(name, flat):
    mul_y, mode, options = CASES[name]

    def function(lib):
        y, tp = product(lib, mul_y, mode, **options)

        def rows(x, y_array, *weights):
            weights = weights[0] if flat and weights else list(weights)
            operands = e3nn.IrrepsArray(X, x), e3nn.IrrepsArray(y, y_array)
            return e3nn.utils.vmap(tp.left_right)(weights, *operands)

        return rows, tp, y

    with jax.enable_x64(True):
        theirs, tp, y = function(e3nn.legacy)
        ours, own, _ = function(ops)
        assert own.instructions == tp.instructions
        given = weights_of(tp, flat, (EDGES,))
        given = list(given) if isinstance(given, list) else [given]
        rng = np.random.default_rng(2)
        operands = [jnp.asarray(rng.normal(size=(EDGES, i.dim))) for i in (X, y)] + given
        found, expected = ours(*operands), theirs(*operands)
        assert found.irreps == expected.irreps
        second = name == "uvw"
        found, expected = (results(f, operands, second) for f in (ours, theirs))
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


@pytest.mark.usefixtures("one_op")
@pytest.mark.parametrize("name", ["uvu", "uvw"])
def test_fuse_takes_it_to_the_graph(name, capsys):
    """As in the NequIPs of jax-md and mlip ("uvu"), and with weights of all edges ("uvw")."""
    mul_y, mode, options = CASES[name]

    def function(lib):
        y, tp = product(lib, mul_y, mode, **options)

        def layer(x, y_array, weights):
            operands = e3nn.IrrepsArray(X, x)[SENDERS], e3nn.IrrepsArray(y, y_array)
            of_row = functools.partial(tp.left_right, weights) if mode == "uvw" else tp.left_right
            m = e3nn.utils.vmap(of_row)(*([] if mode == "uvw" else [weights]), *operands)
            return e3nn.scatter_sum(m, dst=RECEIVERS, output_size=NODES)

        return layer, tp, y

    with jax.enable_x64(True):
        theirs, tp, y = function(e3nn.legacy)
        weights = weights_of(tp, True, () if mode == "uvw" else (EDGES,))
        rng = np.random.default_rng(2)
        operands = [jnp.asarray(rng.normal(size=s)) for s in ((NODES, X.dim), (EDGES, y.dim))]
        operands.append(weights)
        fused = ops.fuse(function(ops)[0], report=True)
        found, expected = (results(f, operands, False) for f in (fused, theirs))
        report = capsys.readouterr().out
        assert "as written" not in report
        assert ("TensorProductLinear" if mode == "uvw" else "graph_tensor_product") in report
        assert_close(found, expected, 1e-12, least=1.0)
