"""Match Linears of products, and put the fused op in their place."""

from __future__ import annotations

import dataclasses

import e3nn_jax as e3nn
import jax.numpy as jnp
import numpy as np

from eqfuse.ops.ir.form import INDEX_ARRAYS, Form, Index
from eqfuse.ops.ir.fused import Fused
from eqfuse.ops.ir.linear import Linear, LinearForm, Parameter, Rows
from eqfuse.ops.primitives import layer as _fused
from eqfuse.ops.primitives.choice import choose, resolve_fused
from eqfuse.ops.primitives.layer import Call
from eqfuse.ops.transforms.fuse import graphs
from eqfuse.ops.transforms.fuse.gate import GateMatch, gate_behind
from eqfuse.ops.transforms.fuse.graphs import GraphProduct
from eqfuse.ops.transforms.fuse.match import CONVERT, Joined, Match, as_rows, match_product
from eqfuse.ops.transforms.fuse.rows import ArrayFactor, RowPolynomials, Unfit
from eqfuse.ops.transforms.fuse.trace import Polynomial, Terms, Trace, merged, summed


@dataclasses.dataclass(frozen=True)
class Layer:
    """A Linear of a product, to be computed by the fused op."""

    product: Match | GraphProduct
    linear: Linear
    parameters: tuple[int, ...]  # values of the trace
    index: int | None  # which set of weights a row takes; None if there is one
    num_rows: int  # of the result
    inside: frozenset[int]  # values that it computes and keeps to itself: sum, pre-activation
    gated: GateMatch | None  # with what is added before it

    @property
    def name(self) -> str:
        return "TensorProductLinear" if self.gated is None else "TensorProductLinearGate"

    @property
    def pattern(self) -> str:
        if self.gated is None:
            return "product, Linear"
        return f"product, Linear, {'skip, ' if self.gated.skip is not None else ''}gate"

    @property
    def inputs(self) -> tuple[int, ...]:
        others = () if self.index is None else (self.index,)
        if self.gated is not None and self.gated.skip is not None:
            others += (self.gated.skip.value,)
        return tuple(dict.fromkeys((*self.product.inputs, *self.parameters, *others)))

    def compute(self, arrays: dict, shared: dict):
        if isinstance(self.product, GraphProduct):
            product, (operands, edges) = self.product.match, self.product.operands(arrays, shared)
            num_rows, num_nodes = edges.num_edges, edges.num_nodes
        else:
            product, edges, num_rows, num_nodes = self.product, None, self.num_rows, 0
            named = product.operands(arrays, num_rows)
            operands = [named[name] for name in product.names]
        form, operands = _unshared(product.form, operands, num_rows)
        integers, count = [], self.num_rows if edges is None else num_nodes
        if self.index is not None:
            index = arrays[self.index]
            integers.append(jnp.pad(index, (0, count - self.num_rows)))
        if edges is not None:
            integers += [jnp.asarray(getattr(edges, n)) for n in INDEX_ARRAYS]
        added = [] if self.gated is None else _skip(self.gated, arrays, count)
        gate = None if self.gated is None else self.gated.gate
        fused = Fused.build(form, self.linear, gate, bool(added))
        mode, dtype = resolve_fused(None), operands[0].dtype
        chosen = choose(mode, fused, num_rows, num_nodes, product.backend, dtype)
        call = Call(fused, num_rows, num_nodes, product.backend, chosen.kernels)
        floats = [*operands, *(arrays[p] for p in self.parameters), *added]
        return _fused.evaluate(call, floats, integers)[0][: self.num_rows]


def _skip(gated: GateMatch, arrays: dict, count: int) -> list:
    """Return the skip that is added before a gate, if there is one, [count, size of the Linear]."""
    if gated.skip is None:
        return []
    array, columns = as_rows(gated.skip, arrays[gated.skip.value]), gated.columns
    if not np.array_equal(columns, np.arange(array.shape[1])):
        array = jnp.where(columns < 0, jnp.zeros((), array.dtype), array[:, columns])
    return [jnp.pad(array, ((0, count - array.shape[0]), (0, 0)))]


def _unshared(form: Form, operands, num_rows: int):
    """Return the form and its operands with a row each where one was shared by all."""
    shared = [n for n, o in enumerate(form.inputs) if o.index is Index.SHARED]
    operands = [
        jnp.broadcast_to(a, (num_rows, a.shape[1])) if n in shared else a
        for n, a in enumerate(operands)
    ]
    return form.indexed(dict.fromkeys(shared, Index.ROW)), operands


def layers(trace: Trace, rows: RowPolynomials, number: int) -> list[tuple[int, Layer]]:
    """Return the Linear of a product that a node computes, and with the gate behind it, by value.

    Raises Unfit where the node computes something else.
    """
    node = trace.nodes[number]
    linear_form: LinearForm = node.params["form"]
    linear = _linear(linear_form)
    dtypes = {trace.avals[v].dtype for v in node.inputs[: len(linear_form.inputs)]}
    if len(dtypes) > 1:
        raise Unfit("dtypes change before the Linear", CONVERT)
    row = rows.of(node.inputs[0], 0)
    arrays = [name for key in row.terms for name in key if isinstance(name, ArrayFactor)]
    made = {name.value: trace.producer[name.value][0] for name in arrays if trace.node(name.value)}
    sums = {value: n for value, n in made.items() if summed(trace, n) is not None}
    if sums:
        product = _summed(trace, rows, row, sums)
        form, backend = product.match.form, product.match.backend
    else:
        product = match_product(trace, rows, row, Index.ROW, dtypes.pop(), on_graph=False)
        form, backend = product.form, product.backend
        if product.groups or any(isinstance(n, Joined) and n.one for n in product.names):
            raise Unfit("weights, or other rows, are with the product")
    if backend != node.params["backend"]:
        raise Unfit("the Linear has another backend")
    _check_blocks(form, linear)
    index = node.inputs[-1] if linear_form.needs_integers else None
    parameters = node.inputs[1 : len(linear_form.inputs)]
    z, count = node.outputs[0], node.params["num_rows"]
    inside = frozenset(sums)
    alone = Layer(product, linear, tuple(parameters), index, count, inside, None)
    gated = gate_behind(trace, z, linear)
    if gated is None:
        return [(z, alone)]
    if gated.skip is not None and trace.avals[gated.skip.value].dtype != trace.avals[z].dtype:
        return [(z, alone)]
    return [(z, alone), (gated.value, dataclasses.replace(alone, gated=gated, inside=inside | {z}))]


def _linear(linear_form: LinearForm) -> Linear:
    """Return the Linear of a row that a linear form is, or raise Unfit."""
    rows = [o for o in linear_form.operands if isinstance(o, Rows)]
    if len(rows) != 2 or len(linear_form.outputs) != 1 or rows[0] is not linear_form.inputs[0]:
        raise Unfit("a Linear of several rows")
    [out] = linear_form.outputs
    ends = np.cumsum([0, *(b.mul * b.dim for b in out.blocks)])
    if list(ends[:-1]) != [b.offset for b in out.blocks] or ends[-1] != out.size:
        raise Unfit("a Linear that leaves out a part of its result")
    irreps = e3nn.Irreps([(b.mul, (b.dim // 2, 1)) for b in out.blocks])
    parameters = tuple(
        Parameter(str(n), w.shape, 0.0) for n, w in enumerate(linear_form.inputs[1:])
    )
    return Linear(linear_form, parameters, irreps)


def _summed(trace: Trace, rows: RowPolynomials, row: Polynomial, sums: dict) -> GraphProduct:
    """Return the product on a graph that gives this row of the nodes."""
    if len(row.terms) > 1 or any(len(key) != 1 for key in row.terms):
        raise Unfit(
            "more than a sum over edges goes into the Linear",
            "apply a Linear to the sum alone, and add the other one",
        )
    scatter = summed(trace, *sums.values())
    if trace.uniform(scatter.start) != 0:
        raise Unfit("the sum over edges does not start from zero")
    updates, masks = graphs.without_masks(trace, rows, scatter.updates)
    [outer] = row.terms.values()
    inner = rows.of(updates, 0).take(outer.index[:, 0])
    terms = {
        key: merged(Terms(outer.place[t.place], t.scale * outer.scale[t.place], t.index))
        for key, t in inner.terms.items()
    }
    whole = Polynomial(row.shape, terms)
    return graphs.of_row(trace, rows, scatter, whole, masks)


def _check_blocks(form: Form, linear: Linear):
    """Refuse segments that are not whole channels of one block of the Linear."""
    [out] = form.outputs
    for path in form.paths:
        s = out.segments[path.output.segment]
        last = dataclasses.replace(s, offset=s.offset + (s.mul - 1) * s.channel_stride)
        held = [b.holds(s) and b.holds(last) for b in linear.blocks_in]
        touched = [b.holds(s) or b.holds(last) for b in linear.blocks_in]
        aligned = all((s.offset - b.offset) % b.dim == 0 for b in linear.blocks_in if b.holds(s))
        if held != touched or not aligned or s.component_stride != 1:
            raise Unfit("channels of the product are not those of the Linear")
