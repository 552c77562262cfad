"""Rewrite a trace so that layers match: what acts on rows alone commutes with what moves rows.

Linears of gathered rows are those of jraph's `update_edge_fn`, Linears of messages those of SEGNN.
`jax.vmap` over graphs, dense neighbour lists, as of jax-md, and one-hot matmuls become gathers and
sums of one graph.
"""

from __future__ import annotations

import contextlib
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr

from eqfuse.fuse.layers import without_masks
from eqfuse.fuse.match import as_rows
from eqfuse.fuse.moves import (
    Gathered,
    Rewrite,
    add_rows,
    gather_rows,
    guarded,
    is_broken,
    mode_of,
    outputs_of,
    outside,
    placed,
    row_indices,
    summed,
)
from eqfuse.fuse.polynomials import Unfit
from eqfuse.fuse.rows import ROWS, ArrayFactor, RowPolynomials, products_behind
from eqfuse.ops._edges import as_int32
from eqfuse.ops.ir.form import Form
from eqfuse.ops.transforms.trace import FLOATS, Node, Trace, bind, gather_dimensions, mark_p, needed

MOST_PASSES = 64
"""How often a trace is rewritten at most: each pass brings something nearer to where it matches."""


def commuted(closed: ClosedJaxpr, known: dict, unmarked: set[int], note) -> Trace:
    """Return the trace in which rows are moved late, and summed early.

    A Linear of gathered rows becomes one of nodes, a sum of rows of a Linear the Linear of a sum,
    and a batch of graphs one graph. Sums along an axis of neighbours and products with one-hot
    matrices become sums and gathers by an index, which `mark_p` gives a number; those of the
    numbers in `unmarked` stay. `note` gets the node and the reason where a rule fails by a fault.
    """
    for count in range(MOST_PASSES):
        trace = Trace(closed, known)
        rows = RowPolynomials(trace)
        if not any(map(rows.is_product, range(len(trace.nodes)))):
            return trace
        found = {}
        for number, node in enumerate(trace.nodes):
            rules = RULES.get(node.name, ())
            rules += MARKED.get(node.name, ()) if not count and number not in unmarked else ()
            for rule in rules:
                rewrite = None
                noted = functools.partial(note, node)
                with guarded(noted), contextlib.suppress(Unfit):
                    rewrite = rule(trace, rows, number)
                if rewrite is not None:
                    found[node.outputs[0]] = rewrite
                    break
        if not found:
            return trace

        def moved(*arrays, trace=trace, found=found):
            def rebound(old: Node, given) -> list:  # as they are, with their marks
                outputs = bind(old.eqn, given)
                for n, value in enumerate(old.outputs):
                    for number in trace.marks.get(value, ()):
                        outputs[n] = mark_p.bind(outputs[n], number=number)
                return outputs

            return outputs_of(trace, arrays, found, rebound)

        closed = jax.make_jaxpr(moved)(*closed.in_avals)
    return trace


def marks_left(trace: Trace, ops: dict) -> set[int]:
    """Return the numbers of marked gathers and sums that no op has replaced."""
    values = [v for n in needed(trace, ops)[1] for v in trace.nodes[n].outputs if v not in ops]
    return {number for v in values for number in trace.marks.get(v, ())}


# a Linear, before the gather and behind the sum


def _plain_linear(node: Node) -> Form | None:
    """Return the form of a node that is a Linear of one array, with weights for all rows."""
    form = node.params["form"]
    rows = [not o.matrix for o in form.operands]
    is_plain = sum(rows) == 2 and rows[0] and len(form.outputs) == 1 and not form.num_sets
    return form if is_plain and rows[-1] else None


def _placed(array, scales, columns):
    """Return [rows, size], each a column of an array [rows, n] times a scale, zero for none."""
    columns = np.where(scales == 0, -1, columns)
    scales = np.where(scales == 0, 1, scales)
    if not np.array_equal(columns, np.arange(array.shape[1])):
        own = np.where(columns < 0, array.shape[1], columns)
        array = jnp.pad(array, ((0, 0), (0, 1)))[:, own] if (columns < 0).any() else array[:, own]
    return array if (scales == 1).all() else array * jnp.asarray(scales, array.dtype)


def linear_of_gathered(trace: Trace, rows: RowPolynomials, number: int) -> Rewrite | None:
    """Return `linear(x[senders])`, as jraph's `update_edge_fn` has it, as `linear(x)[senders]`."""
    node = trace.nodes[number]
    if (form := _plain_linear(node)) is None:
        return None
    value, *weights = node.inputs
    ends: dict[tuple, list] = {}
    for key, terms in rows.of(value).terms.items():
        if len(key) != 1 or not isinstance(key[0], Gathered):
            return None
        scales, [columns] = (a.T for a in terms.by_place(form.inputs[0].size))
        gather, count = key[0], trace.avals[key[0].value].shape[0]
        end = gather.index, gather.mode, gather.fill, count
        ends.setdefault(end, []).append((gather, scales, columns))
    if not ends or sum(count for *_, count in ends) > trace.avals[value].shape[0]:
        return None
    gathers = [gather for parts in ends.values() for gather, *_ in parts]
    dtypes = {trace.avals[v].dtype for v in (value, *(g.value for g in gathers))}
    has_bias = any(t.x is None for t in form.terms)
    fills = {fill for _, mode, fill, _ in ends if mode == "FILL_OR_DROP"}
    if len(dtypes) > 1 or fills - {0} or (has_bias and (fills or len(ends) > 1)):
        return None

    def function(of):
        gathered = []
        for (index, mode, fill, count), parts in ends.items():
            first, *more = (_placed(as_rows(g, of[g.value]), *own) for g, *own in parts)
            x, at = sum(more, first), of[index]
            if is_broken(trace, index, count, mode):
                x = jnp.concatenate([x, gather_rows(x, outside(x), mode, fill)])
                at = placed(at, count, count)
            gathered.append(gather_rows(_linear_of(node, x, of), at, mode, fill))
        return functools.reduce(jnp.add, gathered)

    indices = (index for index, *_ in ends)
    return Rewrite(node, (*(g.value for g in gathers), *indices, *weights), function)


def _linear_of(node: Node, x, of: dict):
    """Return what the Linear of a node makes of other rows."""
    weights = (of[w] for w in node.inputs[1:])
    return node.eqn.primitive.bind(x, *weights, **node.params | {"num_rows": len(x)})[0]


class _LinearRows(RowPolynomials):
    """Rows in which those of a Linear are factors, followed through arithmetic."""

    def starts(self, number: int) -> bool:
        return self.trace.nodes[number].name == "eqfuse_linear_form"


def sum_of_linear(trace: Trace, rows: RowPolynomials, number: int) -> Rewrite | None:
    """Return a sum of a Linear of each message as the Linear of a sum of messages."""
    scatter = summed(trace, number)
    if scatter is None:
        return None
    updates, masks = without_masks(trace, rows, scatter.updates)
    [(key, terms), *others] = _LinearRows(trace).of(*updates).terms.items() or [((), None)]
    made = [(n, trace.node(f.value)) for n, f in enumerate(key) if isinstance(f, ArrayFactor)]
    made = [(n, node) for n, node in made if node and node.name == "eqfuse_linear_form"]
    if len(made) != 1 or len(key) > 2 or others:
        return None
    [(at, node)] = made
    form = _plain_linear(node)
    if form is None or any(t.x is None for t in form.terms) or key[at].axes != ROWS:
        return None
    others = [n for n in range(len(key)) if n != at]
    key = [ArrayFactor(k.rows, ROWS) if isinstance(k, Gathered) else k for k in key]
    if not all(isinstance(k, ArrayFactor) for k in key):
        return None
    if any(len(np.unique(terms.index[:, n])) > 1 for n in others):
        return None  # a weight for each edge alone commutes with the Linear
    value, *weights = node.inputs
    start = trace.avals[scatter.start]
    dtypes = {trace.avals[v].dtype for v in (value, updates[0], scatter.start)}
    if len(dtypes) > 1:
        return None
    scales, index = terms.by_place(math.prod(start.shape[1:]))
    columns = index[:, at]
    mode, count = scatter.mode, start.shape[0]
    broken = is_broken(trace, scatter.index, count, mode)

    def function(of):
        x, index = of[value], of[scatter.index]
        for n in others:
            x = x * as_rows(key[n], of[key[n].value])[:, terms.index[0, n], None]
        for mask in masks:
            x = jnp.where(mask.kept(of)[:, None], x, 0)
        index = placed(index, count, count) if broken else index
        x = add_rows(jnp.zeros((count + 2 * broken, x.shape[1]), x.dtype), index, x, mode)
        z = _linear_of(node, x, of)
        z = add_rows(z[:count], outside(z[:count]), z[count:], mode) if broken else z
        return of[scatter.start] + _placed(z, scales, columns).reshape(start.shape)

    factors = (*(key[n] for n in others), *(m.value for m in masks))
    inputs = scatter.start, scatter.index, value, *(f.value for f in factors), *weights
    return Rewrite(trace.nodes[number], inputs, function)


# gathers and sums of a batch of graphs, as those of one graph


def rows_of_batch(trace: Trace, rows: RowPolynomials, number: int) -> Rewrite | None:
    """Return a gather or a sum in `jax.vmap` over graphs as one in a graph of all of them."""
    node = trace.nodes[number]
    is_gather, d = node.name == "gather", gather_dimensions(node)
    x, index = (trace.avals[v] for v in node.inputs[:2])
    moved = trace.avals[node.outputs[0] if is_gather else node.inputs[2]].shape
    before = 1 + max((*d.start_index_map, *d.operand_batching_dims), default=0)  # axes of nodes
    removed = {*d.collapsed_slice_dims, *d.operand_batching_dims}
    kept = [n for n in range(x.ndim) if n not in removed]
    if (
        x.dtype.name not in FLOATS
        or (before == 1 and index.ndim == 2)  # of one graph
        or tuple(d.start_index_map) != tuple(d.collapsed_slice_dims)
        or len(d.start_index_map) != 1
        or index.shape[-1:] != (1,)
        or [moved[n] for n in d.offset_dims] != [x.shape[n] for n in kept]
        or before == x.ndim
        or 0 in x.shape
    ):
        return None
    counts = {n.params["num_rows"] for n in trace.nodes if n.name == "eqfuse_form"}
    shared = before - 1 > len(d.operand_batching_dims)
    if is_gather and shared and x.shape[0] in counts and trace.constant(node.inputs[1]) is not None:
        return None  # channels of each row, in another order
    [axis], nodes, last = d.start_index_map, x.shape[:before], x.shape[before:]
    of_last = [d.offset_dims[k] for k, n in enumerate(kept) if n >= before]
    order = [*(n for n in range(len(moved)) if n not in of_last), *of_last]
    sizes = tuple(1 if n >= before or n in removed else s for n, s in enumerate(x.shape))
    mode, fill, count = mode_of(node.params), node.params.get("fill_value"), x.shape[axis]
    total = math.prod(nodes)
    # rows out of range come behind all, for each graph what JAX gathers or where it adds
    extends = is_broken(trace, node.inputs[1], count, mode)
    if extends and trace.constant(node.inputs[1]) is not None:
        return None
    beyond = (*nodes[:axis], 2, *nodes[axis + 1 :])
    own = np.arange(total).reshape(nodes), np.arange(math.prod(beyond)).reshape(beyond) + total
    table = np.concatenate(own, axis).astype(np.int32)
    table = table.reshape(*table.shape, *[1] * len(last))

    def numbers(index):
        """Return the number of each row among those of all graphs, [rows]."""
        if mode == "CLIP":
            index = jnp.clip(as_int32(index), 0, count - 1)
        index = placed(index, count, count)
        promised = jax.lax.GatherScatterMode.PROMISE_IN_BOUNDS
        return jax.lax.gather(jnp.asarray(table), index, d, sizes, mode=promised).reshape(-1)

    def gathered(of):
        x, index = (of[v] for v in node.inputs)
        flat = x.reshape(-1, *last)
        if extends:
            rest = gather_rows(x, outside(x, axis), mode, fill)
            flat = jnp.concatenate([flat, rest.reshape(-1, *last)])
        out = gather_rows(flat, numbers(index), mode, fill)
        return out.reshape([moved[n] for n in order]).transpose(np.argsort(order))

    def added(of):
        x, index, updates = (of[v] for v in node.inputs)
        flat, rows = x.reshape(-1, *last), updates.transpose(order).reshape(-1, *last)
        if not extends:
            return add_rows(flat, numbers(index), rows, mode).reshape(x.shape)
        flat = jnp.concatenate([flat, jnp.zeros((math.prod(beyond), *last), x.dtype)])
        out = add_rows(flat, numbers(index), rows)
        own, rest = out[:total].reshape(x.shape), out[total:].reshape(*beyond, *last)
        return add_rows(own, outside(own, axis), rest, mode)

    return Rewrite(node, node.inputs, gathered if is_gather else added)


# what is neither a gather nor a sum by an index, as one


def sum_along_axis(trace: Trace, rows: RowPolynomials, number: int) -> Rewrite | None:
    """Return a sum along the axis of dense neighbour lists as a sum by an index."""
    node = trace.nodes[number]
    shape = trace.avals[node.inputs[0]].shape
    behind = products_behind(trace, rows, number)
    counts, axes = {trace.nodes[n].params["num_rows"] for n in behind}, tuple(node.params["axes"])
    count = next((n for n in range(2, len(shape)) if math.prod(shape[:n]) in counts), 0)
    if len(axes) != 1 or axes[0] >= count:
        return None
    others = [s for n, s in enumerate(shape[:count]) if n != axes[0]]
    index = np.expand_dims(np.arange(math.prod(others), dtype=np.int32).reshape(others), axes[0])
    index = np.broadcast_to(index, shape[:count]).reshape(-1)

    def function(of):
        [x] = (of[v] for v in node.inputs)
        start = jnp.zeros((math.prod(others), *shape[count:]), x.dtype)
        added = add_rows(start, jnp.asarray(index), x.reshape(-1, *shape[count:]))
        added = mark_p.bind(added, number=number)
        return added.reshape(*others, *shape[count:])

    return Rewrite(node, node.inputs, function)


def _one_hot(trace: Trace, value: int) -> tuple[int, int] | None:
    """Return the indices, [rows], of a one-hot matrix, and its axis of rows; None for others."""
    axis = 0
    while (node := trace.node(value)) is not None and node.name in (
        "transpose",
        "convert_element_type",
    ):
        axis ^= node.name == "transpose"
        [value] = node.inputs
    if node is None or node.name != "eq" or len(trace.avals[value].shape) != 2:
        return None
    index, counted = node.inputs
    known, n = trace.constant(counted), trace.avals[value].shape[1]
    if known is None or not np.array_equal(known.reshape(-1), np.arange(n)):
        return None
    found = row_indices(trace, index)
    is_integer = found is not None and jnp.issubdtype(trace.avals[found].dtype, jnp.integer)
    return (found, axis) if is_integer else None


def one_hot_matmul(trace: Trace, rows: RowPolynomials, number: int) -> Rewrite | None:
    """Return a matmul with `one_hot(receivers).T` as a sum, with `one_hot(senders)` as a gather."""
    node = trace.nodes[number]
    contract, batch = node.params["dimension_numbers"]
    for side in (0, 1):
        found, x = _one_hot(trace, node.inputs[side]), node.inputs[1 - side]
        if found is not None and not any(batch) and tuple(contract[1 - side]) == (0,):
            break
    else:
        return None
    index, axis = found
    count = trace.avals[node.inputs[side]].shape[1 - contract[side][0]]
    own, out = trace.avals[x], trace.avals[node.outputs[0]]
    if own.dtype != out.dtype or 0 in own.shape:
        return None

    def function(of):
        if contract[side][0] == axis:
            start = jnp.zeros((count, *own.shape[1:]), own.dtype)
            rows = add_rows(start, of[index], of[x], "FILL_OR_DROP")
        else:
            rows = gather_rows(of[x], of[index], "FILL_OR_DROP", 0)
        rows = mark_p.bind(rows, number=number)
        return rows if side == 0 else jnp.moveaxis(rows, 0, -1)

    return Rewrite(node, (x, index), function)


RULES = {
    "eqfuse_linear_form": (linear_of_gathered,),
    "scatter-add": (sum_of_linear, rows_of_batch),
    "gather": (rows_of_batch,),
}
MARKED = {
    "reduce_sum": (sum_along_axis,),
    "dot_general": (one_hot_matmul,),
}
"""Rules by primitive: those of every pass, and those whose results need an op in their place."""
