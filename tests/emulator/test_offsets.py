"""Offsets in arrays of more than 2 ** 31 elements: what the last program of each job touches."""

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.predictions import counts
from benchmarks.predictions.launches import launches_of
from eqfuse.ops import Edges, TensorProductLinear, _edges
from eqfuse.ops.backends.triton import primitive as linear_launches
from eqfuse.ops.backends.triton.compile import compile_kernel
from eqfuse.ops.ir import linear as linears
from eqfuse.ops.ir.form import Index, derivatives
from eqfuse.ops.primitives import forms
from tests.emulator.machine import Machine
from tests.ops import tiers
from tests.ops.cases import product_form

pytest.importorskip("triton", reason="triton, which compiles the kernels, is not installed")

MANY = 3 * 2**24
"""Rows, edges and nodes: of 64 numbers each, an array has more than 2 ** 31 and less than 2 ** 32.

An offset of 32 bits is negative then, and so outside of every array.
"""
MOST = 2**32
SETS = 3 * 2**18
"""Sets of matrices of 64 by 64, which are as many numbers."""


@pytest.fixture(autouse=True)
def unchecked(monkeypatch):
    """Let `last_edge` be a graph."""
    monkeypatch.setattr(_edges, "_check_order", lambda *_: None)


def last_edge() -> Edges:
    """Return a graph of which only the last edge is looked at, from its last node to that node.

    Pages of these arrays that nobody touches take no memory.
    """
    ends, pointers = np.zeros(MANY, np.int32), np.zeros(MANY + 1, np.int32)
    ends[-1], pointers[-2:] = MANY - 1, (MANY - 1, MANY)
    return Edges(ends, ends, ends, pointers, ends, pointers, MANY)


def product(order: str, on_graph: bool, rows_only: bool = False):
    """Return a function of an order of a product, and its arguments.

    With `rows_only`, only gradients of rows are wanted, so that nothing is summed over edges.
    """
    form = derivatives(product_form("64x0e", "0e", on_graph=on_graph))[order]
    if rows_only:
        form = form.restrict(tuple(o.index is Index.ROW for o in form.outputs))

    def function(edges, *a):
        return forms.evaluate(form, a, edges, backend="triton")

    arrays = [jax.ShapeDtypeStruct((MANY, o.size), jnp.float32) for o in form.inputs]
    return function, [last_edge() if on_graph else None, *arrays]


def linear(order: str, rows: int = MANY, num_sets: int = 0):
    """Return a function of an order of a Linear, and its arguments."""
    irreps = e3nn.Irreps("64x0e")
    found = linears.linear(irreps, (False,), irreps, num_sets=num_sets).linear_form
    form = derivatives(found)[order]
    arrays = [jax.ShapeDtypeStruct(form.shape(o, rows), jnp.float32) for o in form.inputs]
    index = np.zeros(rows, np.int32) if num_sets else None
    if num_sets:
        index[-1] = num_sets - 1

    def function(index, *arrays):
        return forms.evaluate_linear(form, list(arrays), index, rows, "triton")

    return function, [index, *arrays]


def fused(edges: Edges | None = None, **fields):
    """Return a fused op with these fields over rows or on a graph, and its arguments."""
    irreps_y = e3nn.Irreps("64x0e" if fields.get("channelwise") else "0e")
    module = TensorProductLinear("64x0e", backend="triton", fused="always", **fields)

    def rows(x, y):
        return e3nn.IrrepsArray("64x0e", x), e3nn.IrrepsArray(irreps_y, y)

    def function(params, x, y, edges):
        return module.apply(params, *rows(x, y), None, edges).array

    x, y = (jax.ShapeDtypeStruct((MANY, n), jnp.float32) for n in (64, irreps_y.dim))
    init = lambda x, y: module.init(jax.random.key(0), *rows(x, y), None, edges)  # noqa: E731
    return function, [jax.eval_shape(init, x, y), x, y, edges]


def cotangents_of_nodes():
    """Return the gradient of a fused op on a graph by x, and its arguments."""
    function, args = fused(edges=last_edge())

    def gradient(params, x, *others):
        def of_x(x):
            return function(params, x, *others)

        return jax.vjp(of_x, x)[1](jax.eval_shape(of_x, x))

    return gradient, args


CASES = {
    "rows": lambda: product("forward", False),
    "rows that read nodes": lambda: product("backward", True, rows_only=True),
    "receivers": lambda: product("forward", True),
    "senders": lambda: product("backward", True),
    "Linear": lambda: linear("forward"),
    "gradient of a Linear": lambda: linear("backward"),
    "sets of a Linear": lambda: linear("forward", 64, SETS),
    "fused rows": fused,
    "fused nodes": lambda: fused(edges=last_edge()),
    "cotangents of fused nodes": cotangents_of_nodes,
    "fused edges that read nodes": lambda: fused(edges=last_edge(), channelwise=True),
}


@pytest.mark.parametrize("name", tiers.slow_unless([*CASES][:7], *CASES))
def test_the_last_programs_stay_in_arrays_of_more_than_two_thousand_million(name, monkeypatch):
    # a program for few rows of a gradient of weights, and more than 2 ** 31 elements of such sums
    monkeypatch.setattr(linear_launches, "ROWS_OF_A_PART", 1)
    monkeypatch.setattr(linear_launches, "MOST_PARTS", 3 * 2**18)
    function, args = CASES[name]()
    launches = [n for n in launches_of(function, *args) if not n.spec.name.startswith("reduction")]
    assert launches
    for launch in launches:
        touched = last_programs(launch)
        assert max(touched.values()) > 2**31
        assert max(touched.values()) < MOST


def last_programs(launch) -> dict[str, int]:
    """Run the last program of each job; return the largest element that is touched of each array.

    Raises:
      OutOfBoundsError: an access that is outside of every array.
    """
    touched: dict[str, int] = {}

    def inside(instruction, space, access):
        if space == "global" and (access.mask is None or access.mask.any()):
            array, offsets = access.group.memory.find(access)
            element = int(access.active(offsets).max()) // array.itemsize
            touched[array.name] = max(touched.get(array.name, 0), element)

    kernel = compile_kernel(launch.spec, "sm_90")
    machine = Machine(kernel.assembly, kernel.shared_bytes, inside, addresses_only=True)
    _, arguments = counts._arguments(launch, None, kernel.num_warps)
    last = np.cumsum(counts._jobs(launch)) - 1
    machine.run(arguments, launch.grid, last, checked=False)
    return touched
