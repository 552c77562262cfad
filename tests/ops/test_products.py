"""All products against e3nn-jax: value, derivatives, half precision, irreps.

Errors: test_refused.py.

A kind is an op: its cases, and those of them that run natively by default, four of them on Triton
and the first on XLA too. A case that asks something new of an op or of a kernel belongs to these.
"""

import itertools

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from tests.ops import cases, tiers
from tests.ops.cases import CHANNELWISE, ELEMENTWISE, TENSOR_PRODUCT
from tests.ops.parity import (
    BACKENDS,
    assert_one_rounding,
    assert_parity,
    derivatives,
    derivatives_of_multilinear,
    error,
    largest,
)

KINDS = {
    "product": (
        TENSOR_PRODUCT,
        "mul-33 l3-both-parities one-y many-by-many regroup broadcast one-y-many-by-many no-rows "
        "zero-blocks nothing-left",
    ),
    "graph": (
        cases.GRAPH,
        "mul-33 mul-600 one-w many-by-many l3 not-regrouped unweighted one-y no-edges one-by-many "
        "zero-blocks",
    ),
    "elementwise": (ELEMENTWISE, "mul-33 cut-blocks one-y no-rows"),
    "channelwise": (CHANNELWISE, "graph l3-both-parities graph-no-edges"),
    "weights": (cases.WEIGHTED_CHANNELWISE, "two-paths no-edges"),
    "interpolate": (cases.INTERPOLATE, "two-tables"),
    "contraction": (
        cases.CONTRACTION,
        "two-factors-both-parities three-factors channels-33 own-weights one-index no-rows",
    ),
}
FLOAT32 = ("product", "graph", "contraction", "interpolate")
"""Kinds that run in float32 by default; bfloat16, which is computed in it, is tested of others."""
# coefficients of all normalisations: ir/test_form.py
CASES = {f"{kind}: {name}": c for kind, (of, _) in KINDS.items() for name, c in of.items()}
CORE = {f"{kind}: {name}" for kind, (_, core) in KINDS.items() for name in core.split()}
MIXED = {f"{kind}: {core.split()[0]}" for kind, (_, core) in KINDS.items()}
kernels = pytest.mark.parametrize("backend", tiers.KERNELS)
natively = pytest.mark.parametrize("backend", tiers.NATIVELY)


def of_all_kinds():
    """Yield a case, a dtype and a backend of each comparison, slow where it is not by default."""
    for kind, (of, names) in KINDS.items():
        core = names.split()
        for name, dtype, given in itertools.product(of, ("float64", "float32"), BACKENDS):
            backend, marks = (given, []) if isinstance(given, str) else (*given.values, given.marks)
            if "many-by-many" in name and backend != "llvm":  # e3nn-jax computes it
                continue
            by_default = name in core[: 4 if backend == "triton" else None]
            if backend == "xla" or dtype == "float32":
                by_default = name == core[0] and (backend != "xla" or dtype == "float64")
                by_default &= dtype == "float64" or kind in FLOAT32
            marks = [*marks] if by_default else [*marks, pytest.mark.slow]
            label = f"{kind}: {name}-{dtype}-{backend}"
            yield pytest.param(f"{kind}: {name}", dtype, backend, marks=marks, id=label)


@pytest.mark.parametrize(("name", "dtype", "backend"), list(of_all_kinds()))
def test_value_and_derivatives(name, dtype, backend):
    """The first of the core is derived in both orders of forward and reverse mode."""
    assert_parity(CASES[name], np.dtype(dtype), backend, mixed=name in MIXED)


@pytest.mark.parametrize("name", ["graph: one-w", "weights: zero"])
def test_derivatives_of_the_reference_are_those_that_jax_takes(name):
    """It sums values and VJPs, see `parity.derivatives_of_multilinear`; to a few roundings."""
    case = CASES[name]
    expected = derivatives(case.reference, case, np.dtype("float64"))
    found = derivatives_of_multilinear(case.reference, case)
    assert found.keys() == expected.keys()
    assert all(error(found[n], a) <= 1e-13 * largest(a) for n, a in expected.items())


HALF = ["product: mul-5", "graph: mul-5", "channelwise: graph", "contraction: own-weights"]
HALF += ["interpolate: two-tables"]
MORE = ["elementwise: mul-5", "product: norm", "product: one-y", "graph: one-w", "graph: mul-600"]


@kernels
@pytest.mark.parametrize("dtype", tiers.slow_unless([jnp.bfloat16], jnp.bfloat16, jnp.float16))
@pytest.mark.parametrize("name", tiers.slow_unless(HALF, *HALF, *MORE))
def test_half_precision_is_rounded_once(name, dtype, backend):
    """The gradient of y of many channels on a graph is a sum over blocks of channels."""
    assert_one_rounding(CASES[name], dtype, backend)


OWN = [n for n in CASES if n.split(":")[0] not in ("product", "elementwise", "contraction")]


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


@kernels
@pytest.mark.parametrize("name", ["product: mul-5", "interpolate: two-tables"])
def test_vmap(name, backend):
    case = CASES[name]
    arrays = [a.astype(np.float32) for a in case.operands()]
    found = jax.jit(jax.vmap(case.function(backend)))(*(np.stack([a, 2 * a]) for a in arrays))
    expected = case.reference(*arrays)
    np.testing.assert_allclose(found, np.stack([expected, 4 * expected]), rtol=0, atol=1e-5)


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
