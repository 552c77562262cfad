"""Offsets in arrays of more than 2 ** 31 elements: what the last program of each job touches."""

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.predictions import counts
from benchmarks.predictions.launches import launches_of
from eqfuse.ops import Edges, TensorProductLinear
from eqfuse.ops.backends.triton import linear_forms as linear_launches
from eqfuse.ops.backends.triton.runtime.compile import compile_kernel
from eqfuse.ops.ir import linears, products
from eqfuse.ops.primitives import forms, linear_forms
from eqfuse.ops.show import derivatives
from tests.emulator.machine import Machine

pytest.importorskip("triton", reason="triton, which compiles the kernels, is not installed")

MANY = 3 * 2**24
"""Rows, edges and nodes: of 64 numbers each, an array has more than 2 ** 31 and less than 2 ** 32.

An offset of 32 bits is negative then, and so outside of every array.
"""
MOST = 2**32


def structs(operands):
    """Return the shapes of operands of a form, each of `MANY` rows."""
    return [jax.ShapeDtypeStruct((MANY, o.size), jnp.float32) for o in operands]


def last_edge() -> Edges:
    """Return a graph of which only the last edge is looked at, from its last node to that node.

    Pages of these arrays that nobody touches take no memory.
    """
    ends, pointers = np.zeros(MANY, np.int32), np.zeros(MANY + 1, np.int32)
    ends[-1], pointers[-2:] = MANY - 1, (MANY - 1, MANY)
    return Edges(ends, ends, ends, pointers, ends, pointers, MANY)


def product(order: str, on_graph: bool):
    """Return a function of an order of a product, and its arguments."""
    found = products.tensor_product(
        e3nn.Irreps("64x0e"), e3nn.Irreps("0e"), None, "component", weighted=True, on_graph=on_graph
    )
    form = derivatives(found.form)[order]
    if not on_graph:
        return lambda *a: forms.evaluate(form, a, backend="triton"), structs(form.inputs)

    def function(edges, *a):
        return forms.evaluate(form, a, edges, backend="triton")

    return function, [last_edge(), *structs(form.inputs)]


def linear(order: str):
    """Return a function of an order of a Linear, and its arguments."""
    irreps = e3nn.Irreps("64x0e")
    form = derivatives(linears.linear(irreps, (False,), irreps).linear_form)[order]
    arrays = [jax.ShapeDtypeStruct(form.shape(o, MANY), jnp.float32) for o in form.inputs]
    return lambda *a: linear_forms.evaluate(form, list(a), None, MANY, "triton"), arrays


def fused():
    """Return a fused op over rows, and its arguments."""
    module = TensorProductLinear("64x0e", backend="triton", fused="always")
    x, y = (jax.ShapeDtypeStruct((MANY, n), jnp.float32) for n in (64, 1))

    def call(method, *args):
        *first, x, y = args
        return method(*first, e3nn.IrrepsArray("64x0e", x), e3nn.IrrepsArray("0e", y))

    small = [jnp.ones((1, n), jnp.float32) for n in (64, 1)]
    initial = TensorProductLinear("64x0e", backend="e3nn").init
    params = jax.eval_shape(lambda *a: call(initial, jax.random.key(0), *a), *small)
    return lambda params, x, y: call(module.apply, params, x, y).array, [params, x, y]


CASES = {
    "rows": lambda: product("forward", False),
    "receivers": lambda: product("forward", True),
    "senders": lambda: product("backward", True),
    "Linear": lambda: linear("forward"),
    "gradient of a Linear": lambda: linear("backward"),
    "fused rows": fused,
}


@pytest.mark.parametrize("name", CASES)
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
            access.spread()
            array, offsets = access.group.memory.find(access)
            element = int(access.active(offsets).max()) // array.itemsize
            touched[array.name] = max(touched.get(array.name, 0), element)

    kernel = compile_kernel(launch.spec, "sm_90")
    machine = Machine(kernel.assembly, kernel.shared_bytes, inside, addresses_only=True)
    _, arguments = counts._arguments(launch, None, kernel.num_warps)
    last = np.cumsum(counts._jobs(launch)) - 1
    machine.run(arguments, launch.grid, last, checked=False)
    return touched
