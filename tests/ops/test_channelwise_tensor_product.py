"""`channelwise_tensor_product` against e3nn-jax's product of each channel."""

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from tests.ops import tiers
from tests.ops.cases import CHANNELWISE, SMALL, WEIGHTED_CHANNELWISE
from tests.ops.parity import BACKENDS, assert_equivariant, assert_one_rounding, assert_parity

all_backends = pytest.mark.parametrize("backend", BACKENDS)
# see tiers.value_and_derivatives
CORE = {"l3-both-parities", "graph", "graph-no-edges"}


@tiers.value_and_derivatives(CHANNELWISE, CORE)
def test_value_and_derivatives(name, dtype, backend):
    assert_parity(CHANNELWISE[name], dtype, backend)


@tiers.value_and_derivatives(WEIGHTED_CHANNELWISE, {"two-paths", "no-edges"})
def test_value_and_derivatives_with_weights(name, dtype, backend):
    assert_parity(WEIGHTED_CHANNELWISE[name], dtype, backend)


@pytest.mark.parametrize(
    "case",
    [
        *(pytest.param(case, id=name) for name, case in CHANNELWISE.items()),
        *(pytest.param(case, id=f"weights-{name}") for name, case in WEIGHTED_CHANNELWISE.items()),
    ],
)
def test_the_backend_e3nn_is_the_same(case):
    arrays = [a.astype(np.float32) for a in case.operands()]
    found = case.function("e3nn")(*arrays)
    np.testing.assert_allclose(found, case.reference(*arrays), rtol=0, atol=1e-5)


@pytest.mark.parametrize("backend", tiers.KERNELS)
def test_equivariance(backend):
    assert_equivariant(CHANNELWISE["graph"], backend)


@all_backends
def test_bfloat16_is_rounded_once(backend):
    assert_one_rounding(CHANNELWISE["graph"], jnp.bfloat16, backend)


@pytest.mark.parametrize("backend", ["e3nn", "xla"])
@pytest.mark.parametrize("name", CHANNELWISE)
def test_irreps_are_sorted_and_merged(name, backend):
    case = CHANNELWISE[name]
    x, y = case.irreps_arrays(*(a.astype(np.float32) for a in case.operands()))
    edges = None if case.graph is None else case.graph.edges()
    found = jax.eval_shape(
        lambda: ops.channelwise_tensor_product(x, y, edges, **case.options, backend=backend)
    )
    assert repr(found.irreps) == repr(case.irreps_out)
    given = ops.channelwise_tensor_product(x.irreps, str(y.irreps), **case.options)
    assert repr(given) == repr(case.irreps_out)


X = e3nn.IrrepsArray("2x1o", jnp.ones((4, 6)))


@pytest.mark.parametrize(
    ("arguments", "keywords", "message"),
    [
        ((X, X[:3]), {}, r"\(4,\).*\(3,\)"),
        ((X, X[:, :3]), {}, r"all irreps must have the same multiplicity, got 2x1o and 1x1o"),
        (("2x1o+0e", "2x1o"), {}, r"the same multiplicity, got 2x1o\+1x0e and 2x1o"),
        ((X, X, SMALL.edges()), {}, r"x must be \[6 edges, 2x1o\], got shape \(4, 6\)"),
        ((X[:1], X, SMALL.edges()), {}, r"x must be \[6 edges"),
        ((X, X), {"weights": jnp.ones(6)}, "weights are for a product on a graph, with edges"),
        ((X, X), {"irrep_normalization": "unit"}, "'unit' is not supported; choose 'component'"),
        ((X, X), {"backend": "cuda"}, "backend 'cuda' is unknown; choose one of triton"),
    ],
)
def test_errors_name_what_is_wrong(arguments, keywords, message):
    with pytest.raises(ValueError, match=message):
        ops.channelwise_tensor_product(*arguments, **{"backend": "xla", **keywords})


def test_weights_of_another_shape_are_refused():
    x, y = (e3nn.IrrepsArray("2x1o", jnp.ones((n, 6))) for n in (6, 5))
    with pytest.raises(ValueError, match=r"weights must be \[6 irreps of .*\], got shape \(4,\)"):
        ops.channelwise_tensor_product(x, y, SMALL.edges(), weights=jnp.ones(4), backend="xla")


def test_nodes_that_do_not_fit_the_edges_are_refused():
    x = e3nn.IrrepsArray("2x1o", jnp.ones((6, 6)))
    with pytest.raises(ValueError, match=r"y must be \[5 nodes, 2x1o\], got shape \(6, 6\)"):
        ops.channelwise_tensor_product(x, x, SMALL.edges(), backend="xla")
