"""The interpreted Triton kernels against the native ones, on products as large as models have.

`xla` takes minutes to compile these. Neither side vouches for the other: both are checked against
e3nn on the small cases; here two generators that share the form only have to agree.
"""

import dataclasses

import jax
import numpy as np
import pytest

from benchmarks.cases import BOTH2, BOTH3, SH2, SH3, Case, Contraction, times
from eqfuse import ops
from eqfuse.ops._form import Form, Index
from eqfuse.ops._primitive import evaluate
from tests.ops.parity import only

pytest.importorskip("triton", reason="the interpreter is part of triton")

NODES = 5
CASES = {
    "NequIP l<=2": (Case(times(64, BOTH2), SH2, BOTH2), "forward", 40),
    "NequIP l<=2, backward": (Case(times(64, BOTH2), SH2, BOTH2), "backward", 16),
    "NequIP l<=2, odd, double": (Case(times(33, BOTH2), SH2, BOTH2), "double", 6),
    "MACE-large, backward": (Case(times(128, "0e+1o+2e"), SH3, SH3), "backward", 16),
    "NequIP l<=3": (Case(times(64, BOTH3), SH3, BOTH3), "forward", 10),
    "contraction to l<=1, backward": (Contraction(SH3, "0e+1o"), "backward", 4),
}


def native(form: Form, coefficient, arrays, edges) -> list[np.ndarray]:
    """The outputs with a function of every coefficient in its place."""
    paths = tuple(
        dataclasses.replace(p, terms=tuple((place, coefficient(c)) for place, c in p.terms))
        for p in form.paths
    )
    form = dataclasses.replace(form, paths=paths)
    return [np.asarray(a) for a in evaluate(form, arrays, edges, backend="numba")]


@pytest.mark.parametrize("name", CASES)
def test_interpreted_and_native_kernels_agree(name):
    case, order, rows = CASES[name]
    form = case.forms()[order]
    rng = np.random.default_rng(0)
    edges = None
    if form.on_graph:
        edges = ops.Edges.from_arrays(*rng.integers(0, NODES, (2, rows)), NODES)
    arrays = [
        rng.normal(size=(rows if o.index is Index.ROW else NODES, o.size)).astype(np.float32)
        for o in form.inputs
    ]
    found = {}
    for backend in ("numba", "triton-interpret"):
        with only(backend):
            found[backend] = jax.block_until_ready(evaluate(form, arrays, edges, backend=backend))
    sizes = native(form, abs, [abs(a) for a in arrays], edges)
    counts = native(form, lambda c: 1.0, [np.ones_like(a) for a in arrays], edges)
    results = zip(form.outputs, *found.values(), sizes, counts, strict=True)
    for operand, a, b, size, count in results:
        # terms are products of up to 7 factors; products and sums round once each, at random
        rounding = 4 * np.sqrt(7 + count) * np.finfo(np.float32).eps * size
        assert np.abs(a).max() > 0, operand
        assert (np.abs(np.asarray(a) - np.asarray(b)) <= rounding).all(), operand
