"""Rewrite a trace so that layers match: a Linear of gathered rows becomes one of nodes.

Those are Linears of jraph's `update_edge_fn`, and of NequIPs that gather first.
"""

from __future__ import annotations

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr
from jax.lax import GatherScatterMode

from eqfuse.fuse.match import as_rows
from eqfuse.fuse.moves import (
    Gathered,
    Rewrite,
    gather_rows,
    guarded,
    is_within,
    outputs_of,
    outside,
    placed,
)
from eqfuse.fuse.polynomials import Unfit
from eqfuse.fuse.row_polynomials import RowPolynomials
from eqfuse.ops.transforms.trace import Node, Trace, bind

MOST_PASSES = 64
"""How often a trace is rewritten at most: each pass brings something nearer to where it matches."""


def commuted(closed: ClosedJaxpr, known: dict, note) -> Trace:
    """Return the trace in which Linears of gathered rows are Linears of nodes.

    `note` gets the node and the reason where that fails by a fault.
    """
    for _ in range(MOST_PASSES):
        trace = Trace(closed, known)
        rows = RowPolynomials(trace)
        if not any(map(rows.is_product, trace.nodes)):
            return trace
        found = {}
        for node in (n for n in trace.nodes if n.name == "eqfuse_linear_form"):
            with guarded(functools.partial(note, node)), contextlib.suppress(Unfit):
                if (rewrite := linear_of_gathered(trace, rows, node)) is not None:
                    found[node.outputs[0]] = rewrite
        if not found:
            return trace

        def moved(*arrays, trace=trace, found=found):
            return outputs_of(trace, arrays, found, bind)

        closed = jax.make_jaxpr(moved)(*closed.in_avals)
    return trace


def _placed(array, scales, columns):
    """Return [rows, size], each a column of an array [rows, n] times a scale, zero for none."""
    columns = np.where(scales == 0, -1, columns)
    scales = np.where(scales == 0, 1, scales)
    if not np.array_equal(columns, np.arange(array.shape[1])):
        own = np.where(columns < 0, array.shape[1], columns)
        array = jnp.pad(array, ((0, 0), (0, 1)))[:, own] if (columns < 0).any() else array[:, own]
    return array if (scales == 1).all() else array * jnp.asarray(scales, array.dtype)


def linear_of_gathered(trace: Trace, rows: RowPolynomials, node: Node) -> Rewrite | None:
    """Return `linear(x[senders])`, as jraph's `update_edge_fn` has it, as `linear(x)[senders]`."""
    form = node.params["form"]
    first, *others, last = (not o.matrix for o in form.operands)
    if not (first and last) or any(others) or len(form.outputs) > 1 or form.num_sets:
        return None  # not of one array, or not with weights for all rows
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
    fills = {fill for _, mode, fill, _ in ends if mode is GatherScatterMode.FILL_OR_DROP}
    if len(dtypes) > 1 or fills - {0} or (has_bias and (fills or len(ends) > 1)):
        return None

    def function(of):
        gathered = []
        for (index, mode, fill, count), parts in ends.items():
            first, *more = (_placed(as_rows(g, of[g.value]), *own) for g, *own in parts)
            x, at = sum(more, first), of[index]
            # a broken promise: JAX reads the nearest row, adds to none, and either is derived so
            is_promised = mode is GatherScatterMode.PROMISE_IN_BOUNDS
            if is_promised and not is_within(trace, index, count):
                x = jnp.concatenate([x, gather_rows(x, outside(x), mode, fill)])
                at = placed(at, count, count)
            params = node.params | {"num_rows": len(x)}
            [z] = node.eqn.primitive.bind(x, *map(of.get, weights), **params)
            gathered.append(gather_rows(z, at, mode, fill))
        return functools.reduce(jnp.add, gathered)

    indices = (index for index, *_ in ends)
    return Rewrite(node, (*(g.value for g in gathers), *indices, *weights), function)
