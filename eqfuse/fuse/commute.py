"""Rewrite a trace so that layers match: what acts on rows alone commutes with what moves rows.

Linears of gathered rows are those of jraph's `update_edge_fn`, Linears of messages those of SEGNN.
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
    outputs_of,
    outside,
    placed,
    summed,
)
from eqfuse.fuse.polynomials import Unfit
from eqfuse.fuse.rows import ROWS, ArrayFactor, RowPolynomials
from eqfuse.ops.ir.form import Form
from eqfuse.ops.transforms.trace import Node, Trace, bind

MOST_PASSES = 64
"""How often a trace is rewritten at most: each pass brings something nearer to where it matches."""


def commuted(closed: ClosedJaxpr, known: dict, note) -> Trace:
    """Return the trace in which rows are moved late, and summed early.

    A Linear of gathered rows becomes one of nodes, and a sum of rows of a Linear the Linear of a
    sum. `note` gets the node and the reason where a rule fails by a fault.
    """
    for _ in range(MOST_PASSES):
        trace = Trace(closed, known)
        rows = RowPolynomials(trace)
        if not any(map(rows.is_product, range(len(trace.nodes)))):
            return trace
        found = {}
        for number, node in enumerate(trace.nodes):
            if (rule := RULES.get(node.name)) is None:
                continue
            with guarded(functools.partial(note, node)), contextlib.suppress(Unfit):
                if (rewrite := rule(trace, rows, number)) is not None:
                    found[node.outputs[0]] = rewrite
        if not found:
            return trace

        def moved(*arrays, trace=trace, found=found):
            return outputs_of(trace, arrays, found, _as_it_is)

        closed = jax.make_jaxpr(moved)(*closed.in_avals)
    return trace


def _as_it_is(node: Node, arrays) -> list:
    return bind(node.eqn, arrays)


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


RULES = {"eqfuse_linear_form": linear_of_gathered, "scatter-add": sum_of_linear}
"""What may be computed in another way, by primitive."""
