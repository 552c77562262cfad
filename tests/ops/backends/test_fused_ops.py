"""Fused ops in every way that they are computed: whole, of nodes, in blocks, and natively."""

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from eqfuse.ops.ir.form import Form
from eqfuse.ops.ir.linear import LinearForm
from eqfuse.ops.ir.program import Program
from eqfuse.ops.primitives import choice
from tests.ops import tiers
from tests.ops.linear_cases import CASES, EDGES, NODES, Case, Problem
from tests.ops.linear_parity import (
    assert_all_orders,
    assert_low_precision,
    gradients,
    launches_of_each_way,
    orders,
    orders_of_e3nn,
    worst,
)
from tests.ops.parity import INTERPRETED, NEEDS_TRITON, PORTABLE, only
from tests.ops.test_fused_argument import SMALL, always

FORCED = (("force_irreps_out", True),)
OVER_ROWS = {n: c for n, c in CASES.items() if not c.graph or dict(c.options).get("channelwise")}
OVER_NODES = {n: c for n, c in CASES.items() if n not in OVER_ROWS} | {
    "graph-small": SMALL,
    # more rows and columns of matrices than a tile has: several turns of both loops
    "graph-many-columns": Case(
        ops.TensorProductLinearGate,
        True,
        "5x0e+34x1o",
        "0e+1o",
        "70x0e+40x0e+40x1o",
        skip=True,
        options=FORCED,
    ),
}
IN_BLOCKS = OVER_ROWS | {
    "small": Case(
        ops.TensorProductLinear,
        True,
        "2x0e+2x1o",
        "2x0e+2x1o",
        "2x0e+1x1o",
        weighted=False,
        options=(("channelwise", True),),
    ),
    "skip-indexed": Case(
        ops.TensorProductLinearGate,
        False,
        "2x0e+2x1o",
        "0e+1o",
        "3x0e+1x0e+1x1o",
        indexed=True,
        skip=True,
        options=FORCED,
    ),
}
KINDS = {"rows": OVER_ROWS, "nodes": OVER_NODES, "blocks": IN_BLOCKS}


def of_kinds(quick, *kinds):
    """Return pairs of a kind of kernel and a case, slow where the pair is not `quick`."""
    found = tiers.slow_unless(quick, *(f"{k}: {n}" for k in kinds for n in KINDS[k]))
    return [
        pytest.param(*p.values[0].split(": "), id=p.values[0], marks=[*p.marks, *INTERPRETED.marks])
        for p in found
    ]


@pytest.fixture
def any_product_is_large(monkeypatch):
    """Compute three rows at a time: two blocks, and what is left."""
    monkeypatch.setattr(choice, "LARGE", 0)
    monkeypatch.setattr(choice, "BLOCK", 3)


@pytest.mark.parametrize(
    ("kind", "name"),
    of_kinds(["rows: rows-linear", "nodes: graph-small", "blocks: small"], *KINDS),
)
def test_all_orders_equal_e3nn(kind, name, request):
    case = KINDS[kind][name]
    if kind == "blocks":
        request.getfixturevalue("any_product_is_large")
    assert_all_orders(case, "triton-interpret", None if kind == "blocks" else always(case).case)


DTYPES = [np.float32, jnp.bfloat16, jnp.float16]
QUICK = ["rows: rows-linear", "rows: rows-gate", "rows: rows-indexed-bias", "nodes: graph-small"]


@pytest.mark.parametrize(("kind", "name"), of_kinds(QUICK, "rows", "nodes"))
def test_gradients_equal_e3nn(kind, name, x64):
    """Float64, 1e-12; a backward that nothing differentiates is the fused kernel."""
    case = KINDS[kind][name]
    expected = gradients(Problem(case), "e3nn")
    assert worst(gradients(always(case), "triton-interpret"), expected) < 1e-12


@pytest.mark.parametrize("dtype", tiers.slow_unless(DTYPES[:2], *DTYPES))
@pytest.mark.parametrize(("kind", "name"), of_kinds(QUICK[:1], "rows", "nodes"))
def test_low_precision_errs_as_e3nn_does(kind, name, dtype):
    case = KINDS[kind][name]
    assert_low_precision(case, "triton-interpret", dtype, always(case).case)


@NEEDS_TRITON
def test_operands_of_many_components_are_shared_among_programs(x64):
    """The cotangents of 50 components are those of four programs in float64, each of 14 at most."""
    wide, options = "5x0e+5x1o+5x2e+5x3o+5x4e", (("channelwise", True),)
    case = Case(ops.TensorProductLinear, False, wide, wide, "3x0e", options=options)
    found = gradients(always(case), "triton-interpret")
    assert worst(found, gradients(Problem(case), "e3nn")) < 1e-12


@NEEDS_TRITON
@pytest.mark.parametrize(
    ("case", "launches"),
    [
        # one more computes gradients of parameters, of the product computed again
        (CASES["rows-linear"], [1, 1, 2]),
        (CASES["rows-gate"], [1, 1, 2]),
        # backward one to the sums and one to the operands; one of the parameters
        (SMALL, [1, 2, 3]),
    ],
)
def test_launches_of_each_way(case, launches):
    assert launches_of_each_way(always(case, np.float32)) == launches


@NEEDS_TRITON
def test_gradients_of_parameters_alone_equal_e3nn(x64):
    """The backward then stops at the cotangent of the pre-activation."""

    def found(problem, backend):
        def loss(params):
            return jnp.sum(jnp.sin(problem.apply(backend, params, problem.arrays).array))

        return jax.grad(loss)(problem.params)

    case = CASES["rows-gate"]
    expected = found(Problem(case), "e3nn")
    assert worst(found(always(case), "triton-interpret"), expected) < 1e-12


@pytest.mark.parametrize("name", tiers.slow_unless(["rows-linear", "graph-gate-skip"], *CASES))
def test_all_orders_of_native_kernels_equal_e3nn(name, kernels, x64):
    """Float64, 1e-12: sums of at most a few hundred products, each rounded to 1e-16.

    Rows that are mixed one by one are one kernel each way, with the gate in it.
    """
    case, problem = CASES[name], Problem(CASES[name])
    whole = {Program} if name in OVER_ROWS and not case.indexed else set()
    with only("llvm", kinds={Form, LinearForm} | whole):
        found = orders(problem, "llvm")
    assert worst(found, orders_of_e3nn(case)) < 1e-12


WITHOUT_BIASES = {
    "indexed": Case(
        ops.TensorProductLinear, False, "5x0e+5x1o", "2x0e+1o", "7x0e+4x1o", indexed=True
    ),
    "skip": Case(
        ops.TensorProductLinear, False, "5x0e+5x1o", "0e+1o", "7x0e+4x1o", skip=True, options=FORCED
    ),
}


@pytest.mark.parametrize("backend", tiers.slow_unless(["llvm"], *PORTABLE))
@pytest.mark.parametrize("name", WITHOUT_BIASES)
def test_gradients_of_a_loss_on_forces_equal_e3nns(name, backend, x64, monkeypatch):
    monkeypatch.setattr(choice, "LARGE", 0)  # where products are small, a GPU has them in memory
    problem = Problem(WITHOUT_BIASES[name])

    def gradients(backend):
        def energy(operands, params, arrays):
            return jnp.sum(jnp.sin(problem.apply(backend, params, arrays | operands).array))

        def loss(params, arrays):
            forces = jax.grad(energy)({n: arrays[n] for n in "xy"}, params, arrays)
            return sum(jnp.sum(jnp.cos(force)) for force in jax.tree.leaves(forces))

        return jax.jit(jax.grad(loss, (0, 1)))(problem.params, problem.arrays)

    with only(backend, kinds={Form, LinearForm}):
        found = gradients(backend)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), found, gradients("e3nn")
    )


def lowered(problem: Problem, order: str) -> str:
    """Return the text of the value of a case, its gradients, or those of a loss on its forces."""

    def energy(arrays, params):
        return jnp.sum(problem.apply("triton-interpret", params, arrays).array ** 3)

    def loss(arrays, params):
        forces = jax.grad(energy)(arrays, params)
        return sum(jnp.sum(force**2) for force in jax.tree.leaves(forces))

    gradients = {"gradient": jax.grad(energy, (0, 1)), "loss": jax.grad(loss, (0, 1))}
    function = gradients.get(order, energy)
    return jax.jit(function).lower(problem.arrays, problem.params).as_text()


def size_of_product(case: Case) -> int:
    keep = sorted({ir for _, ir in e3nn.Irreps(case.out)})
    channelwise = dict(case.options).get("channelwise")
    product = ops.channelwise_tensor_product if channelwise else ops.tensor_product
    return product(case.x, case.y, filter_ir_out=keep).dim


@NEEDS_TRITON
@pytest.mark.usefixtures("any_product_is_large")
@pytest.mark.parametrize("order", ["value", "gradient", "loss"])
@pytest.mark.parametrize("name", tiers.slow_unless(["small"], "small", "rows-gate"))
@pytest.mark.parametrize("fused", ["auto", "always", "never"])
def test_the_product_of_all_rows_is_in_no_array(fused, name, order):
    case = IN_BLOCKS[name]
    text = lowered(always(case, np.float32, fused), order)
    rows = EDGES if case.graph else NODES
    assert f"tensor<{rows}x{e3nn.Irreps(case.x).dim}xf32>" in text
    product = f"tensor<{rows}x{size_of_product(case)}xf32>"
    assert (product in text) == (fused == "never")


@NEEDS_TRITON
def test_where_blocks_begin(monkeypatch):
    """At the bytes of the product of all rows."""
    case = CASES["rows-linear"]
    problem = Problem(case, np.float32)
    bytes_of_product = 4 * NODES * size_of_product(case)
    for large, expected in ((bytes_of_product, "in blocks: "), (bytes_of_product + 1, "apart: ")):
        monkeypatch.setattr(choice, "LARGE", large)
        with ops.recorded() as calls:
            problem.apply("triton-interpret", problem.params, problem.arrays)
        assert calls[-1].fused.startswith(expected)
