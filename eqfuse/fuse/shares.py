"""Estimate which share of a function's time fused ops take over, and what the rest is."""

from __future__ import annotations

import collections
import math

from eqfuse.fuse.rows import ARITHMETIC, MOVES
from eqfuse.ops.transforms.trace import Node, Trace, needed

FLOPS_PER_BYTE, OF_ARITHMETIC, OF_FUNCTIONS, OF_PRODUCTS = 4.0, 0.25, 2.0, 4.0
"""On a core of a CPU: operations of a matmul in the time of a byte that is moved, and how often a
byte counts of arithmetic, which is part of other loops, of exp and its kin, and of products."""
KINDS = {
    "dot_general": "matmuls",
    "eqfuse_linear_form": "Linears",
    "eqfuse_form": "products of rows",
    "gather": "gathers",
    "scatter-add": "sums over edges",
}
KINDS |= dict.fromkeys((MOVES | ARITHMETIC) - KINDS.keys(), "moves and arithmetic")
LEAST = 0.05
"""The least share that is named."""


def lines(trace: Trace, ops: dict) -> list[str]:
    """Return what to report of the time that `ops` take over, and of what is left: [] or a line."""
    times = {n: _time(trace, trace.nodes[n]) for n in needed(trace, {})[1]}
    whole = sum(times.values())
    if not whole:
        return []
    left: dict = collections.defaultdict(float)
    for n in needed(trace, ops)[1] & times.keys():
        left[KINDS.get(trace.nodes[n].name, "functions")] += times[n] / whole
    named = sorted(((s, kind) for kind, s in left.items() if s >= LEAST), reverse=True)
    rest = ", ".join(f"{share:.0%} {kind}" for share, kind in named)
    fused = f"{max(0.0, 1.0 - sum(left.values())):.0%} of the time is in what fused ops replace"
    return [f"estimated from shapes: {fused}" + (f"; the rest: {rest}" if rest else "")]


def _time(trace: Trace, node: Node) -> float:
    """Return how long a node takes, in bytes that could be moved meanwhile."""
    avals = [trace.avals[v] for v in (*node.inputs, *node.outputs)]
    sizes = [a.size * getattr(a.dtype, "itemsize", 4) for a in avals]
    out = sum(sizes[len(node.inputs) :])
    kind = KINDS.get(node.name)
    if kind == KINDS["mul"] or kind is None:
        return out * (OF_FUNCTIONS if kind is None else OF_ARITHMETIC)
    if node.name == "eqfuse_form":
        return OF_PRODUCTS * sum(sizes)
    return max(sum(sizes), _operations(node, avals) / FLOPS_PER_BYTE)


def _operations(node: Node, avals) -> float:
    if node.name == "dot_general":
        contracted = node.params["dimension_numbers"][0][0]
        return 2.0 * avals[-1].size * math.prod(avals[0].shape[n] for n in contracted)
    if node.name == "eqfuse_linear_form":
        form, rows = node.params["form"], node.params["num_rows"]
        terms = ((form.inputs[t.w].size, p) for t, p in zip(form.terms, form.paths, strict=True))
        return 2.0 * rows * sum(size * len(p.terms) for size, p in terms)
    return 0.0
