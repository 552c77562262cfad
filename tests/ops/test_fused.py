"""Fused ops in every way that they are computed: in parts, whole, of nodes, and in blocks."""

import functools
import math
import re

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from eqfuse.ops.primitives import choice
from tests import interpreter
from tests.ops.fused_cases import (
    CASES,
    EDGES,
    NODES,
    Case,
    Problem,
    assert_all_orders,
    assert_low_precision,
    gradients,
    rows,
    worst,
)
from tests.ops.parity import NEEDS_TRITON, TRITON, UNOPTIMIZED

WAYS = {
    "xla": ("xla", None),
    "llvm": ("llvm", None),
    "llvm always": ("llvm", "always"),
    "triton": ("triton", None),
    "triton always": ("triton", "always"),
    "triton blocks": ("triton", None),
}
"""Backends, and what `fused` is; in blocks, products count as large, and rows go three by three."""


def possible(name: str, way: str) -> bool:
    if "blocks" in way:
        return CASES[name].over_rows
    if "always" in way and CASES[name].by_e3nn:
        return False
    return way != "llvm always" or CASES[name].over_rows


def ways(by_default: dict[str, str]) -> list:
    """Return cases and ways, slow but for those that are listed: names of cases by way."""
    return [
        pytest.param(
            *(name, way),
            id=f"{name}-{way}",
            marks=[
                *(TRITON.marks if "triton" in way else ()),
                *([] if name in by_default.get(way, "").split() else [pytest.mark.slow]),
            ],
        )
        for name in CASES
        for way in WAYS
        if possible(name, way)
    ]


@pytest.fixture
def any_product_is_large(monkeypatch):
    """Compute three rows at a time: two blocks, and what is left."""
    monkeypatch.setattr(choice, "LARGE", 0)
    monkeypatch.setattr(choice, "BLOCK", 3)


@pytest.fixture
def run_by(way, request):
    """Return the backend and `fused` of a way."""
    if "blocks" in way:
        request.getfixturevalue("any_product_is_large")
    return WAYS[way]


CORE = "rows-linear graph-gate-skip rows-bias graph-channelwise-no-path"
ORDERS = {
    "xla": "rows-linear",
    "llvm": f"{CORE} rows-channelwise rows-fully-connected",
    "llvm always": "rows-gate-skip",
    "triton": f"{CORE} rows-many-columns",
    "triton always": "graph-small",  # whose kernel "auto" takes, too
}


@pytest.mark.parametrize(("name", "way"), ways(ORDERS))
def test_all_orders_equal_e3nn(name, way, run_by):
    assert_all_orders(CASES[name], *run_by)


ROUNDED = "rows-linear graph-gate-skip"
"""Those that are rounded in the product, the Linear, the gate and a skip."""
LOW = {"llvm": "graph-gate-skip", "triton": "graph-gate-skip"}


@pytest.mark.parametrize(("name", "way"), [w for w in ways(LOW) if "blocks" not in w.values[1]])
@pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16", pytest.param("float16", marks=pytest.mark.slow)]
)
def test_low_precision_errs_as_e3nn_does(name, dtype, way, run_by):
    if way == "llvm always" and dtype != "float32":
        pytest.skip("native kernels of whole ops have no half precision")
    assert_low_precision(CASES[name], *run_by[:1], jnp.dtype(dtype), run_by[1])


@functools.cache
def pulled_by_e3nn(case: Case):
    """Return the gradients of parameters and arrays for a cotangent that is cos of the result."""
    problem = Problem(case)

    def both(params, arrays):
        out, pull = jax.vjp(lambda *a: problem.apply("e3nn", *a).array, params, arrays)
        return dict(zip(("params", "arrays"), pull(jnp.cos(out)), strict=True))

    return jax.jit(both, compiler_options=UNOPTIMIZED)(problem.params, problem.arrays)


@pytest.mark.slow
@NEEDS_TRITON
@pytest.mark.parametrize(("wanted", "launches"), [("arrays", 1), ("params", 2)])
def test_gradients_of_some_operands(wanted, launches, x64):
    """Those of operands are one kernel; parameters have one more, of the product computed again.

    The first kernel stops at the cotangent of the pre-activation where no operand is wanted.
    """
    case = CASES["rows-gate-skip"]
    problem = Problem(case, fused="always")
    given = {"params": problem.params, "arrays": problem.arrays}

    def value(operand):
        return problem.apply("triton", *(given | {wanted: operand}).values()).array

    out, pull = jax.vjp(value, given[wanted])
    before = interpreter.interpret_count()
    [found] = jax.block_until_ready(pull(jnp.cos(out)))
    assert interpreter.interpret_count() - before == launches
    assert worst(found, pulled_by_e3nn(case)[wanted]) < 1e-12


@NEEDS_TRITON
@pytest.mark.parametrize("name", ROUNDED.split())
def test_kernels_are_bitwise_repeatable(name):
    """Twice the same bits, the gradients of the parameters included, which are sums of parts."""
    problem = Problem(CASES[name], np.float32)
    for a, b in zip(*(gradients(problem, "triton") for _ in range(2)), strict=True):
        np.testing.assert_array_equal(a, b)


@NEEDS_TRITON
def test_operands_of_many_components_are_shared_among_programs(x64):
    """The cotangents of 50 components are those of four programs in float64, each of 14 at most."""
    wide = "5x0e+5x1o+5x2e+5x3o+5x4e"
    case = rows(wide, wide, "3x0e", channelwise=True)
    found = gradients(Problem(case, fused="always"), "triton")
    assert worst(found, gradients(Problem(case), "e3nn")) < 1e-12


def test_many_rows_in_parts(x64):
    """Float64, 1e-12: rows are cut into parts, whose sums of the gradients of weights are added."""
    rng = np.random.default_rng(0)
    x, y = (
        e3nn.IrrepsArray(i, jnp.asarray(rng.normal(size=(601, e3nn.Irreps(i).dim))))
        for i in ("3x0e+2x1o", "0e+1o")
    )
    module = ops.TensorProductLinearGate("3x0e+2x0e+2x1o", fused="always", backend="llvm")
    params = module.init(jax.random.key(0), x, y)

    def gradients(module):
        def energy(params, x, y):
            return jnp.sum(module.apply(params, x, y).array ** 2)

        return jax.jit(jax.grad(energy, (0, 1, 2)))(params, x, y)

    assert worst(gradients(module), gradients(module.clone(backend="e3nn", fused=None))) < 1e-12


def lowered(problem: Problem, order: str) -> str:
    """Return the text of the value of a case, its gradients, or those of a loss on its forces."""

    def energy(arrays, params):
        return jnp.sum(problem.apply("triton", params, arrays).array ** 3)

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
@pytest.mark.parametrize(
    "name", ["graph-channelwise-small", pytest.param("rows-gate", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("fused", ["auto", "always", "never"])
def test_the_product_of_all_rows_is_in_no_array(fused, name, order):
    case = CASES[name]
    text = lowered(Problem(case, np.float32, fused), order)
    rows = EDGES if case.graph else NODES
    assert f"tensor<{rows}x{e3nn.Irreps(case.x).dim}xf32>" in text
    leading = re.findall(rf"tensor<([\dx]+)x{size_of_product(case)}xf32>", text)
    is_there = any(math.prod(map(int, shape.split("x"))) >= rows - rows % 3 for shape in leading)
    # second derivatives of a kernel over rows are those of the parts
    assert is_there == (fused == "never" or (fused, order) == ("always", "loss"))


@NEEDS_TRITON
def test_blocks_begin(monkeypatch):
    """At the bytes of the product of all rows."""
    problem = Problem(CASES["rows-linear"], np.float32)
    bytes_of_product = 4 * NODES * size_of_product(problem.case)
    for large, expected in ((bytes_of_product, "in blocks: "), (bytes_of_product + 1, "apart: ")):
        monkeypatch.setattr(choice, "LARGE", large)
        with ops.recorded() as calls:
            problem.apply("triton", problem.params, problem.arrays)
        assert calls[-1].fused.startswith(expected)
