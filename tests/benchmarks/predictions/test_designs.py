"""The designs that are counted on paper compute what the kernels of today do."""

import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.predictions import designs
from eqfuse import ops
from eqfuse.bench.cases import Case
from eqfuse.ops.ir.form import Index
from eqfuse.ops.primitives import forms

NODES = 4
EDGES = ops.Edges.from_arrays(np.array([0, 1, 3, 3, 0]), np.array([1, 0, 2, 1, 3]), NODES)
CASE = Case("8x0e+8x1o", "0e+1o", "0e+1o")


def arrays_of(form):
    """Return random rows for each input, by its name, of whole numbers: sums are exact."""
    rng = np.random.default_rng(0)
    rows = {o.name: EDGES.num_edges if o.index is Index.ROW else NODES for o in form.inputs}
    return {o.name: rng.integers(-3, 4, (rows[o.name], o.size)) for o in form.inputs}


def evaluated(form, arrays):
    inputs = [jnp.asarray(arrays[o.name], jnp.float32) for o in form.inputs]
    found = forms.evaluate(form, inputs, EDGES, backend="xla")
    return {o.name: np.asarray(a) for o, a in zip(form.outputs, found, strict=True)}


def turned(operand, array):
    """Return rows with the channels of each component side by side."""
    parts = [
        array[:, s.offset : s.offset + s.mul * s.dim].reshape(-1, s.mul, s.dim).swapaxes(1, 2)
        for s in operand.segments
    ]
    return np.concatenate([part.reshape(len(array), -1) for part in parts], axis=1)


@pytest.mark.parametrize("order", ["forward", "backward", "double"])
def test_component_major_is_the_same_form(order):
    form = CASE.forms()[order]
    other = designs.component_major(form)
    assert other != form
    arrays = arrays_of(form)
    sides = {o.name: o for o in (*form.inputs, *form.outputs)}
    changed = {
        o.name
        for o, p in zip((*form.inputs, *form.outputs), (*other.inputs, *other.outputs), strict=True)
        if o != p
    }
    given = {n: turned(sides[n], a) if n in changed else a for n, a in arrays.items()}
    found, expected = evaluated(other, given), evaluated(form, arrays)
    for name, array in expected.items():
        array = turned(sides[name], array) if name in changed else array
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-4)


def test_the_parts_by_receivers_are_the_second_order():
    form = CASE.forms()["double"]
    parts = designs.by_receivers(form)
    found = {n: a for part in parts for n, a in evaluated(part, arrays_of(form)).items()}
    for name, array in evaluated(form, arrays_of(form)).items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-4)
