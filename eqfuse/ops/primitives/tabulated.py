"""A product on a graph whose weights are read from a table, as one kernel each way on a CPU.

    out[receiver of e] += product(x[sender of e], y[e], w[e])
    w[e, u] = sum over n:  table[interval of e, n, u] * number[e] ** n

The rows w, of several times the size of all else, are computed where the product reads them, and
their gradient becomes that of the number there. Neither is ever in memory.
"""

import dataclasses
import functools
from itertools import compress

import jax
import jax.numpy as jnp
from jax.interpreters import ad, mlir

from eqfuse.ops._edges import Edges, group_by_interval
from eqfuse.ops.ir.form import Form, Table, tabulated
from eqfuse.ops.ir.products import interpolation
from eqfuse.ops.primitives import forms, rules
from eqfuse.ops.primitives.rules import split

NUM_ARRAYS = 5
"""x, y, table, intervals and numbers; tangents or cotangents and index arrays follow."""
ALONG = 0, 1, 4
"""Those with derivatives in kernels: x, y and the numbers."""
NATIVE = "float32", "float64"
"""Dtypes of kernels: in 16 bits, a number of an interval would be rounded."""


@dataclasses.dataclass(frozen=True)
class Call:
    """The static arguments of one call; `active` are the operands of `ALONG` with tangents."""

    form: Form
    num_rows: int
    num_nodes: int | tuple[int, int]
    backend: str
    active: tuple[bool, ...] = ()

    @property
    def places(self) -> list[int]:
        return list(compress(ALONG, self.active))

    @property
    def unwritten(self) -> int:
        """Return the elements of the rows of weights, or of their gradient."""
        return self.num_rows * self.form.inputs[2].size

    @property
    def counts(self) -> dict:
        """Return the parameters of `form_p` besides the form."""
        return {name: getattr(self, name) for name in ("num_rows", "num_nodes", "backend")}


def evaluate(form: Form, x, y, weights, edges: Edges, backend: str) -> list[jax.Array]:
    """Return the outputs of a form of x, y and weights, an `ops.Tabulated` without its factor."""
    num_nodes = edges.num_nodes
    if edges.num_receivers is not None:
        num_nodes = edges.num_receivers, num_nodes
    call = Call(form, edges.num_edges, num_nodes, backend)
    arrays = x, y, weights.table, weights.intervals, weights.numbers, *forms.indices_of(edges)
    return tabulated_p.bind(*rules.vary_alike(arrays), call=call)


def _definition(x, y, table, intervals, numbers, *integers, call: Call):
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


def _along(arrays, call: Call):
    """Return the definition as a function of the operands that have tangents, and these."""
    return rules.along(_definition, call.places, arrays, {"call": call})


def _jvp(primals, tangents, *, call: Call):
    if type(tangents[2]) is not ad.Zero:  # a table that is differentiated, as in training
        return rules.jvp_of(_definition)(primals, tangents, call=call)
    active = tuple(type(tangents[n]) is not ad.Zero for n in ALONG)
    outputs = tabulated_p.bind(*primals, call=call)
    if not any(active):
        return outputs, list(map(rules.zero, outputs))
    along = dataclasses.replace(call, active=active)
    arrays, integers = split(primals, NUM_ARRAYS)
    chosen = [tangents[n] for n in along.places]
    return outputs, tangent_p.bind(*rules.vary_alike([*arrays, *chosen, *integers]), call=along)


def _tangent(*arrays, call: Call):
    primals, tangents, integers = split(arrays, NUM_ARRAYS, sum(call.active))
    return jax.jvp(*_along([*primals, *integers], call), tangents)[1]


def _transpose(cotangents, *arrays, call: Call):
    primals, tangents, integers = split(arrays, NUM_ARRAYS, sum(call.active))
    if not all(map(ad.is_undefined_primal, tangents)):
        return rules.transpose_of(_tangent, cotangents, arrays, call=call)
    cotangents = [ad.instantiate_zeros(c) for c in cotangents]
    found = gradient_p.bind(*rules.vary_alike([*primals, *cotangents, *integers]), call=call)
    return [None] * NUM_ARRAYS + list(found) + [None] * len(integers)


def _gradient(*arrays, call: Call):
    primals, cotangents, integers = split(arrays, NUM_ARRAYS, 1)
    function, chosen = _along([*primals, *integers], call)
    return jax.vjp(function, *chosen)[1](cotangents)


def _gradient_abstract(*arrays, call: Call):
    return [arrays[n].update(weak_type=False) for n in call.places]


tabulated_p = rules.defined_primitive("eqfuse_tabulated", _definition, _abstract, jvp=_jvp)
tangent_p = rules.defined_primitive(
    "eqfuse_tabulated_tangent", _tangent, _abstract, transpose=_transpose
)
gradient_p = rules.defined_primitive("eqfuse_tabulated_gradient", _gradient, _gradient_abstract)


def _lower(definition, *arrays, call: Call):
    """Compute by the native kernel where there is one, or as it is defined."""
    x, y, table, intervals, numbers, *rest = arrays
    is_native = call.backend == "llvm" and call.num_rows and x.dtype.name in NATIVE
    if not is_native or not call.form.paths:
        return definition(*arrays, call=call)
    cotangents, integers = split(rest, len(call.active) > 0)
    polynomials = Table(len(table), table.shape[1])
    form, used = tabulated(call.form, 2, polynomials, call.active)
    place = jnp.concatenate([intervals[:, None].astype(x.dtype), numbers], axis=1)
    arrays = *compress([x, y, table.reshape(1, -1), *cotangents], used), place, *integers
    return forms.form_p.bind(*rules.vary_alike(arrays), form=form, **call.counts)


for _p, _f in ((tabulated_p, _definition), (gradient_p, _gradient), (tangent_p, None)):
    _function = functools.partial(_lower, _f) if _f else _tangent
    rules.definitions[_p] = _function
    mlir.register_lowering(_p, mlir.lower_fun(_function, multiple_results=True))
