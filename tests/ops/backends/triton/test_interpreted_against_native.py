"""The interpreted Triton kernels and the native ones, on products as large as models have.

`xla` takes minutes to compile these; numpy computes them by the definition of their form, which is
checked against e3nn on the small cases.
"""

import dataclasses

import jax
import numpy as np
import pytest

from eqfuse import ops
from eqfuse.bench.cases import BOTH2, BOTH3, SH2, SH3, Case, Contraction, times
from eqfuse.ops.ir.form import Form, Index
from eqfuse.ops.primitives import forms
from tests.ops.ir.test_form import evaluate
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


def definition(form: Form, coefficient, arrays, edges) -> list[np.ndarray]:
    """Return the outputs in float64, term by term, with `function` of each coefficient."""
    paths = tuple(
        dataclasses.replace(p, terms=tuple((place, coefficient(c)) for place, c in p.terms))
        for p in form.paths
    )
    form = dataclasses.replace(form, paths=paths)
    named = {o.name: a.astype(np.float64) for o, a in zip(form.inputs, arrays, strict=True)}
    nodes = () if edges is None else (edges.senders, edges.receivers, NODES)
    found = evaluate(form, named, *nodes)
    return [found[o.name] for o in form.outputs]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_both_kernels_equal_the_definition(name):
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
    expected = definition(form, lambda c: c, arrays, edges)
    sizes = definition(form, abs, [abs(a) for a in arrays], edges)
    counts = definition(form, lambda c: 1.0, [np.ones_like(a) for a in arrays], edges)
    for backend in ("llvm", "triton-interpret"):
        with only(backend):
            found = forms.evaluate(form, arrays, edges, backend=backend)
            found = [np.asarray(a) for a in jax.block_until_ready(found)]
        results = zip(form.outputs, found, expected, sizes, counts, strict=True)
        for operand, a, b, size, count in results:
            # terms are products of up to 7 factors; products and sums round once each, at random
            rounding = 4 * np.sqrt(7 + count) * np.finfo(np.float32).eps / 2 * size
            assert np.abs(a).max() > 0, operand
            assert (np.abs(a - b) <= rounding).all(), (backend, operand)
