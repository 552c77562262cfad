"""A product on a graph whose weights are read from a table, as one kernel each way on a CPU.

    out[receiver of e] += product(x[sender of e], y[e], w[e])
    w[e, u] = sum over n:  table[interval of e, n, u] * number[e] ** n

The rows w, of several times the size of all else, are computed where the product reads them, and
their gradient becomes that of the number there. Neither is ever in memory.
"""

import dataclasses
from itertools import compress

import jax
import jax.numpy as jnp
from jax.interpreters import ad, mlir

from eqfuse.ops._edges import Edges, group_by_interval
from eqfuse.ops.ir.form import Form, Table, tabulated
from eqfuse.ops.ir.products import interpolation
from eqfuse.ops.primitives import forms, rules

WANTED = 0, 1, 4
"""The operands with derivatives in kernels, of x, y, table, intervals and numbers."""
NATIVE = "float32", "float64"
"""Dtypes of kernels: in 16 bits, a number of an interval would be rounded."""


@dataclasses.dataclass(frozen=True)
class Call(rules.Call):
    """The static arguments of one call."""

    form: Form
    num_rows: int
    num_nodes: int | tuple[int, int]
    backend: str
    num_operands = 5

    @property
    def unwritten(self) -> int:
        """Return the elements of the rows of weights, or of their gradient."""
        return self.num_rows * self.form.inputs[2].size


def evaluate(form: Form, x, y, weights, edges: Edges, backend: str) -> list[jax.Array]:
    """Return the outputs of a form of x, y and weights, an `ops.Tabulated` without its factor."""
    num_nodes = edges.num_nodes
    if edges.num_receivers is not None:
        num_nodes = edges.num_receivers, num_nodes
    call = Call(form, edges.num_edges, num_nodes, backend)
    arrays = x, y, weights.table, weights.intervals, weights.numbers, *forms.indices_of(edges)
    return tabulated_p.bind(*rules.vary_alike(arrays), call=call)


def _definition(*arrays, call: Call):
    if call.derivatives:
        return rules.derivative(_definition, arrays, call)
    x, y, table, intervals, numbers, *integers = arrays
    powers = [jnp.ones_like(numbers)]
    for _ in range(table.shape[1] - 1):
        powers.append(powers[-1] * numbers)
    form = interpolation((table.shape[2],), table.shape[1])
    flat = [table.reshape(len(table), -1), jnp.concatenate(powers, axis=1)]
    rows = group_by_interval(intervals, len(table))
    [weights] = forms.evaluate(form, flat, rows, backend=call.backend)
    arrays = rules.vary_alike([x, y, weights, *integers])
    return forms.form_p.bind(*arrays, form=call.form, **call.counts)


def _abstract(x, *arrays, call: Call):
    shapes = call.form.output_shapes(call.num_rows, call.num_nodes)
    return [x.update(shape=shape, weak_type=False) for shape in shapes]


def _jvp(primals, tangents, *, call: Call):
    # a table that is differentiated, as in training, or a second derivative
    if call.derivatives or type(tangents[2]) is not ad.Zero:
        return rules.jvp_of(_definition)(primals, tangents, call=call)
    operands, _, integers = call.split(primals)
    active = [type(t) is not ad.Zero for t in tangents[: call.num_operands]]
    outputs = tabulated_p.bind(*primals, call=call)
    if not any(active):
        return outputs, list(map(rules.zero, outputs))
    arrays = rules.vary_alike([*operands, *compress(tangents, active), *integers])
    return outputs, tabulated_p.bind(*arrays, call=call.then(active))


tabulated_p = rules.derived_primitive("eqfuse_tabulated", _definition, _abstract, _jvp)


def _lower(*arrays, call: Call):
    """Compute by the native kernel where there is one, or as it is defined."""
    (x, y, table, intervals, numbers), cotangents, integers = call.split(arrays)
    is_native = call.backend == "llvm" and call.num_rows and x.dtype.name in NATIVE
    if not is_native or not call.form.paths or call.is_tangent:
        return _definition(*arrays, call=call)
    polynomials = Table(len(table), table.shape[1])
    wanted = tuple(call.derivatives[0][n] for n in WANTED) if call.derivatives else ()
    form, used = tabulated(call.form, 2, polynomials, wanted)
    place = jnp.concatenate([intervals[:, None].astype(x.dtype), numbers], axis=1)
    arrays = *compress([x, y, table.reshape(1, -1), *cotangents], used), place, *integers
    return forms.form_p.bind(*rules.vary_alike(arrays), form=form, **call.counts)


rules.definitions[tabulated_p] = _lower
mlir.register_lowering(tabulated_p, rules.lowering_by(_lower))
