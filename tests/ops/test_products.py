"""All ops against e3nn-jax: value, derivatives, half precision, irreps. Errors: test_refused.py."""

import itertools

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from tests.ops import cases, tiers
from tests.ops.cases import CHANNELWISE, ELEMENTWISE, TENSOR_PRODUCT
from tests.ops.layers import LAYERS, LINEARS
from tests.ops.parity import TRITON, WAYS, assert_one_rounding, assert_parity, error, largest

DTYPES = ("float64", "float32", "bfloat16", "float16")


def of_backends(core: str) -> dict[str, str]:
    """Return what runs natively by default; four of it on Triton, and the first on XLA too."""
    names = core.split()
    return {"llvm": core, "triton": " ".join(names[:4]), "xla": names[0]}


CORE_LAYERS = "rows-linear rows-none graph-gate-skip rows-bias graph-channelwise-no-path"
KINDS = {
    "product": (
        TENSOR_PRODUCT,
        of_backends(
            "mul-33 l3-both-parities one-y many-by-many regroup broadcast one-y-many-by-many "
            "no-rows zero-blocks nothing-left"
        ),
    ),
    "graph": (
        cases.GRAPH,
        of_backends(
            "mul-33 mul-600 one-w many-by-many l3 not-regrouped unweighted one-y no-edges "
            "one-by-many zero-blocks one-path"
        ),
    ),
    "elementwise": (ELEMENTWISE, of_backends("mul-33 cut-blocks one-y no-rows")),
    "channelwise": (CHANNELWISE, of_backends("graph l3-both-parities graph-no-edges")),
    "weights": (cases.WEIGHTED_CHANNELWISE, of_backends("two-paths no-edges")),
    "interpolate": (cases.INTERPOLATE, of_backends("two-tables")),
    "contraction": (
        cases.CONTRACTION,
        of_backends(
            "two-factors-both-parities three-factors channels-33 own-weights one-index no-rows"
        ),
    ),
    "linear": (
        LINEARS,
        {
            "llvm": "forced indexed initializer weights instructions",
            "triton": "forced indexed",
            "xla": "indexed",
        },
    ),
    "layer": (
        LAYERS,
        {
            "xla": "rows-linear rows-none rows-nothing-left",
            "llvm": f"{CORE_LAYERS} rows-channelwise rows-fully-connected rows-erf graph-no-edges",
            "llvm always": "rows-gate-skip rows-in-parts rows-sine",
            "triton": f"{CORE_LAYERS} rows-many-columns",
            "triton always": "graph-small",  # whose kernel "auto" takes, too
        },
    ),
}
"""Cases of each kind of op, and what is compared in float64 by default: names, by way.

A case that asks something new of an op or of a kernel belongs to these.
"""
ROUNDED = {
    "product: mul-33",
    "graph: mul-33",
    "contraction: two-factors-both-parities",
    "interpolate: two-tables",
    "layer: graph-gate-skip",
}
"""Those in float32 by default, and bfloat16; which is computed in it, and tested of others."""
# coefficients of all normalisations: ir/test_form.py
CASES = {f"{kind}: {name}": c for kind, (of, _) in KINDS.items() for name, c in of.items()}
OF_PRODUCTS = [kind for kind in KINDS if kind not in ("linear", "layer")]
CORE = {f"{kind}: {name}" for kind in OF_PRODUCTS for name in KINDS[kind][1]["llvm"].split()}
MIXED = {f"{kind}: {KINDS[kind][1]['xla']}" for kind in OF_PRODUCTS}
kernels = pytest.mark.parametrize("backend", tiers.KERNELS)
natively = pytest.mark.parametrize("backend", tiers.NATIVELY)


def comparisons():
    """Yield a case, a dtype and a way of each, slow where it is not by default."""
    for kind, (of, core) in KINDS.items():
        for key, dtype, way in itertools.product(of, DTYPES, WAYS):
            if not of[key].has(way, dtype):
                continue
            name, by_default = f"{kind}: {key}", key in core.get(way, "").split()
            if dtype != "float64":
                by_default = name in ROUNDED and way in ("llvm", "triton") and dtype != "float16"
            marks = [] if by_default else [pytest.mark.slow]
            marks += TRITON.marks if "triton" in way else []
            yield pytest.param(name, dtype, way, marks=marks, id=f"{name}-{dtype}-{way}")


@pytest.mark.parametrize(("name", "dtype", "way"), list(comparisons()))
def test_value_and_derivatives(name, dtype, way, request):
    """The first of the core is derived in both orders of forward and reverse mode."""
    if "blocks" in way:
        request.getfixturevalue("any_product_is_large")
    orders = 3 if name in MIXED else 2 if name[:5] != "layer" or dtype == "float64" else 1
    assert_parity(CASES[name], jnp.dtype(dtype), way, orders)


HALF = ["product: mul-5", "graph: mul-5", "channelwise: graph", "contraction: own-weights"]
HALF += ["interpolate: two-tables", "linear: plain", "linear: indexed"]
MORE = ["elementwise: mul-5", "product: norm", "product: one-y", "graph: one-w", "graph: mul-600"]


@kernels
@pytest.mark.parametrize("dtype", tiers.slow_unless([jnp.bfloat16], jnp.bfloat16, jnp.float16))
@pytest.mark.parametrize("name", tiers.slow_unless(HALF, *HALF, *MORE))
def test_half_precision_is_rounded_once(name, dtype, backend):
    """The gradient of y of many channels on a graph is a sum over blocks of channels."""
    if not CASES[name].runs(backend):
        pytest.skip("XLA has no kernels of Linears, and rounds as it likes")
    assert_one_rounding(CASES[name], dtype, backend)


OWN = [n for n in CASES if n.split(":")[0] in ("graph", "channelwise", "weights", "interpolate")]


@pytest.mark.parametrize("name", tiers.slow_unless(CORE, *OWN))
def test_the_backend_e3nn_is_the_definition(name, x64):
    case = CASES[name]
    found, expected = (
        np.asarray(jax.jit(f)(*case.operands())) for f in (case.function("e3nn"), case.reference)
    )
    assert error(found, expected) <= 1e-13 * largest(expected)


@pytest.mark.parametrize("name", ["tensor_product", "elementwise_tensor_product"])
def test_the_backend_e3nn_is_e3nn(name, monkeypatch):
    monkeypatch.setattr(e3nn, name, lambda *args, **keywords: (args, keywords["filter_ir_out"]))
    answer = getattr(ops, name)("1o", "2x1o", filter_ir_out="0e", backend="e3nn")
    assert answer == (("1o", "2x1o"), (e3nn.Irrep("0e"),))


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


def test_the_square_of_a_vector_by_hand():
    x = e3nn.IrrepsArray("2x1o", jnp.array([[1.0, 2.0, 2.0, 0.0, 3.0, 4.0]]))
    options = {"irreps_out": "2x0e", "correlation": 2, "backend": "xla"}
    out = ops.symmetric_contraction(x, jnp.array([[[2.0, -1.0]]]), jnp.array([0]), **options)
    # (x . x) / sqrt(3), the map of norm one
    np.testing.assert_allclose(out.array, [[2 * 9 / 3**0.5, -25 / 3**0.5]], rtol=1e-6)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="GPUs gather weights by row")
def test_weights_of_a_contraction_are_read_where_they_are():
    x = e3nn.IrrepsArray("8x0e+8x1o", jnp.ones((1000, 32)))
    weights, index = jnp.ones((3, 5, 8)), jnp.arange(1000) % 3

    def total(x):
        return ops.symmetric_contraction(x, weights, index, irreps_out="8x0e").array.sum()

    used = jax.jit(jax.grad(total)).lower(x).compile().memory_analysis().temp_size_in_bytes
    assert used < 1000 * weights[0].nbytes / 2
