"""Rewrite a trace so that layers match: what acts on rows alone commutes with what moves rows."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr

from eqfuse import _jax_compat
from eqfuse.ops.ir.linear import LinearForm, Rows
from eqfuse.ops.transforms.fuse.match import as_rows
from eqfuse.ops.transforms.fuse.rows import ROWS, ArrayFactor, RowPolynomials, Unfit
from eqfuse.ops.transforms.fuse.trace import (
    Gathered,
    Node,
    Terms,
    TooLargeError,
    Trace,
    needed,
    outputs_of,
    summed,
)

MARK = "eqfuse_rows_"
"""The scope, with a number behind, of what only serves to be matched."""


@dataclasses.dataclass(frozen=True)
class Rewrite:
    """A value of a trace, computed in another way from others."""

    node: Node  # that makes it
    inputs: tuple[int, ...]
    function: Callable
    scope: str = ""

    def compute(self, arrays: dict, shared: dict):
        eqn, scope = self.node.eqn, jax.named_scope(self.scope) if self.scope else nullcontext()
        with _jax_compat.same_source(eqn.source_info), eqn.ctx.manager, scope:
            return self.function(*(arrays[v] for v in self.inputs))


def commuted(closed: ClosedJaxpr, known: dict, unmarked: set[int]) -> Trace:
    """Return the trace in which rows are moved late, and summed early.

    A Linear of gathered rows becomes one of nodes, a sum of rows of a Linear the Linear of a sum,
    and a batch of graphs one graph. Sums along an axis of neighbours, rows of all pairs and
    products with one-hot matrices become sums and gathers by an index, in scopes of the name
    `MARK` and a number; those of the numbers in `unmarked` stay.
    """
    marks = True
    while True:
        trace = Trace(closed, known)
        rows = RowPolynomials(trace)
        if not any(map(rows.is_product, range(len(trace.nodes)))):
            return trace
        found = {}
        for number, node in enumerate(trace.nodes):
            rules = RULES.get(node.name, ())
            rules += MARKED.get(node.name, ()) if marks and number not in unmarked else ()
            for rule in rules:
                try:
                    rewrite = rule(trace, rows, number)
                except (Unfit, TooLargeError):
                    continue
                if rewrite is not None:
                    found[node.outputs[0]] = rewrite
                    break
        marks = False
        if not found:
            return trace

        def moved(*arrays, trace=trace, found=found):
            return outputs_of(trace, arrays, found, _bind)

        closed = jax.make_jaxpr(moved)(*closed.in_avals)


def _bind(node: Node, arrays) -> list:
    eqn = node.eqn
    with _jax_compat.same_source(eqn.source_info), eqn.ctx.manager:
        results = eqn.primitive.bind(*arrays, **eqn.primitive.get_bind_params(eqn.params))
    return list(results) if eqn.primitive.multiple_results else [results]


def marks_left(trace: Trace, ops: dict) -> set[int]:
    """Return the numbers of marked nodes that no op has replaced."""
    scopes = [str(trace.nodes[n].eqn.source_info.name_stack) for n in needed(trace, ops)[1]]
    return {int(s.split(MARK)[1].split("/")[0]) for s in scopes if MARK in s}


def _gather(array, index, mode: str = "PROMISE_IN_BOUNDS", fill=None):
    mode = jax.lax.GatherScatterMode[mode]
    return array.at[index].get(mode=mode, fill_value=fill, wrap_negative_indices=False)


def _add(start, index, rows, mode: str = "PROMISE_IN_BOUNDS"):
    mode = jax.lax.GatherScatterMode[mode]
    return start.at[index].add(rows, mode=mode, wrap_negative_indices=False)


# a Linear, before the gather and behind the sum


def _plain_linear(node: Node) -> LinearForm | None:
    """Return the form of a node that is a Linear of one array, with weights for all rows."""
    form = node.params["form"]
    rows = [isinstance(o, Rows) for o in form.operands]
    is_plain = sum(rows) == 2 and rows[0] and len(form.outputs) == 1 and not form.num_sets
    return form if is_plain and rows[-1] else None


def _columns(terms: Terms, factor: int, size: int):
    """Return which element of a factor, -1 for none, is each element of a row, and its scale."""
    if len(np.unique(terms.place)) < len(terms.place):
        raise Unfit("rows are added to each other")
    columns, scales = np.full(size, -1), np.ones(size)
    columns[terms.place], scales[terms.place] = terms.index[:, factor], terms.scale
    return columns, scales


def _placed(array, columns, scales):
    """Return [rows, size], from an array [rows, n], by the columns and scales of `_columns`."""
    if not np.array_equal(columns, np.arange(array.shape[1])):
        own = np.where(columns < 0, array.shape[1], columns)
        array = jnp.pad(array, ((0, 0), (0, 1)))[:, own] if (columns < 0).any() else array[:, own]
    return array if (scales == 1).all() else array * jnp.asarray(scales, array.dtype)


def linear_of_gathered(trace: Trace, rows: RowPolynomials, number: int) -> Rewrite | None:
    """Return a Linear of gathered rows as the gathered rows of a Linear."""
    node = trace.nodes[number]
    if (form := _plain_linear(node)) is None:
        return None
    value, *weights = node.inputs
    ends: dict[tuple, list] = {}
    for key, terms in rows.of(value).terms.items():
        if len(key) != 1 or not isinstance(key[0], Gathered):
            return None
        columns = _columns(terms, 0, form.inputs[0].size)
        gather = key[0]
        ends.setdefault((gather.index, gather.mode, gather.fill), []).append((gather, *columns))
    counts = [trace.avals[parts[0][0].value].shape[0] for parts in ends.values()]
    if not ends or sum(counts) > trace.avals[value].shape[0]:
        return None
    if {trace.avals[g.value].dtype for p in ends.values() for g, *_ in p} != {
        trace.avals[value].dtype
    }:
        return None
    has_bias = any(t.x is None for t in form.terms)
    if len(ends) > 1 and (has_bias or any(mode == "FILL_OR_DROP" for _, mode, _ in ends)):
        return None
    [(_, mode, fill), parts] = next(iter(ends.items()))
    if mode == "FILL_OR_DROP" and (fill != 0 or has_bias):
        whole = len(parts) == 1 and (parts[0][1] >= 0).all()
        if not (np.isnan(fill) and whole and _reads_all(form)):
            return None
    arrays = [g.value for parts in ends.values() for g, *_ in parts]

    def function(*operands):
        of = dict(zip(arrays, operands, strict=False))
        indices, own = operands[len(arrays) :][: len(ends)], operands[len(arrays) + len(ends) :]
        out = None
        for ((_, mode, fill), parts), index in zip(ends.items(), indices, strict=True):
            placed = [_placed(as_rows(g, of[g.value]), c, s) for g, c, s in parts]
            x = sum(placed[1:], placed[0])
            params = node.params | {"num_rows": x.shape[0]}
            [z] = node.eqn.primitive.bind(x, *own, **params)
            z = _gather(z, index, mode, fill)
            out = z if out is None else out + z
        return out

    return Rewrite(node, (*arrays, *(index for index, *_ in ends), *weights), function)


def _reads_all(form: LinearForm) -> bool:
    """Return whether each element of the result has a term of all channels of a block."""
    [out] = form.outputs
    reached = {t.z.block for t in form.terms if t.x is not None}
    return sum(out.blocks[n].mul * out.blocks[n].dim for n in reached) == out.size


class _LinearRows(RowPolynomials):
    """Rows in which those of a Linear are factors, followed through arithmetic."""

    def starts(self, number: int) -> bool:
        return self.trace.nodes[number].name == "eqfuse_linear_form"


def sum_of_linear(trace: Trace, rows: RowPolynomials, number: int) -> Rewrite | None:
    """Return a sum of the rows of a Linear as the Linear of a sum."""
    scatter = summed(trace, number)
    if scatter is None:
        return None
    [(key, terms), *others] = _LinearRows(trace).of(scatter.updates).terms.items() or [((), None)]
    made = [(n, trace.node(f.value)) for n, f in enumerate(key) if isinstance(f, ArrayFactor)]
    made = [(n, node) for n, node in made if node and node.name == "eqfuse_linear_form"]
    if len(made) != 1 or len(key) > 2 or others:
        return None
    [(at, node)] = made
    form = _plain_linear(node)
    if form is None or any(t.x is None for t in form.terms) or key[at].axes != ROWS:
        return None
    others = [n for n in range(len(key)) if n != at]
    if any(len(np.unique(terms.index[:, n])) > 1 for n in others):
        return None  # a weight for each edge alone commutes with the Linear
    value, *weights = node.inputs
    start = trace.avals[scatter.start]
    dtypes = {trace.avals[v].dtype for v in (value, scatter.updates, scatter.start)}
    if len(dtypes) > 1:
        return None
    columns, scales = _columns(terms, at, math.prod(start.shape[1:]))
    factors = tuple(key[n] for n in others)
    element = [int(terms.index[0, n]) for n in others]

    def function(start, index, x, *rest):
        for factor, array, n in zip(factors, rest, element, strict=False):
            x = x * as_rows(factor, array)[:, n : n + 1]
        x = _add(jnp.zeros((start.shape[0], x.shape[1]), x.dtype), index, x, scatter.mode)
        params = node.params | {"num_rows": x.shape[0]}
        [z] = node.eqn.primitive.bind(x, *rest[len(factors) :], **params)
        return start + _placed(z, columns, scales).reshape(start.shape)

    inputs = scatter.start, scatter.index, value, *(f.value for f in factors), *weights
    return Rewrite(trace.nodes[number], inputs, function)


RULES = {
    "eqfuse_linear_form": (linear_of_gathered,),
    "scatter-add": (sum_of_linear,),
}
MARKED = {}
